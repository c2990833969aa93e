"""From a row to the token ids that the engine reads: taken from the tokenizer as they are, never cut and never made from rendered text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.config.schema import TaskConfig
from paceline.tasks.rows import Row
from paceline.types.errors import DataError


class Tokenizer(Protocol):
    """What a task needs of a tokenizer; those of transformers have it."""

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool, **arguments: Any
    ) -> Any:
        """Ids of a conversation (a list of ints with tokenize=True, return_dict=False)."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text with the special tokens that the model expects around it."""


def render(row: Row, config: TaskConfig, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Prompt ids of a row, int32 [p], p >= 1. Raises DataError naming the row."""
    if config.template == "plain":
        if row.messages is not None:
            raise DataError(f"{row.where}: messages need task.template = 'chat'")
        ids = tokenizer.encode((config.system or "") + row.question + config.suffix)
    else:
        ids = _chat(row, config, tokenizer)
    if not ids:
        raise DataError(f"{row.where}: the prompt has no tokens")
    return np.asarray(ids, dtype=np.int32)


def _chat(row: Row, config: TaskConfig, tokenizer: Tokenizer) -> list[int]:
    conversation = _conversation(row, config)
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=False, **config.template_arguments
        )
    # A template is a program that comes with the model: it refuses conversations with errors of its own.
    except Exception as error:
        raise DataError(f"{row.where}: the chat template raised {type(error).__name__}: {error}") from error
    return ids


def _conversation(row: Row, config: TaskConfig) -> list[dict[str, Any]]:
    messages: list[Mapping[str, Any]] = list(row.messages or ({"role": "user", "content": row.question},))
    if config.suffix:
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + config.suffix}
    if config.system is not None:
        if messages[0]["role"] == "system":
            raise DataError(f"{row.where}: has a system message of its own, and task.system is set")
        messages.insert(0, {"role": "system", "content": config.system})
    return [dict(message) for message in messages]
