"""Rows as their sources give them, before a tokenizer saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One usable row. `number` counts the rows of the source from 0; `where` is how a user finds it (`data.jsonl line 8`)."""

    number: int
    where: str
    question: str
    """The question, or for a conversational row the contents of its messages (system left out)."""
    messages: tuple[Mapping[str, Any], ...] | None
    gold: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used; `reason` names file, row, column and what is wrong."""

    number: int
    reason: str
