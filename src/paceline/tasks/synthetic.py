"""Prompts for an emulated engine: numbered, of one length, with one gold answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.config.schema import TaskConfig
from paceline.tasks.rows import Row

GOLD = "1"


def rows(config: TaskConfig) -> Iterator[Row]:
    """`config.size` rows."""
    for number in range(config.size):
        yield Row(number, f"synthetic row {number}", f"problem {number}", None, GOLD)


class SyntheticTokenizer:
    """Makes `tokens` ids of any text, so that every prompt has the same length: its bytes, cut, or repeated."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`, the number of the row first."""
        ids = list(reversed(text.encode()))
        return (ids * -(-self._tokens // len(ids)))[: self._tokens]

    def apply_chat_template(self, conversation: list[dict[str, Any]], **arguments: Any) -> list[int]:
        """The last message alone: there is no template."""
        return self.encode(conversation[-1]["content"])
