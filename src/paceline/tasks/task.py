"""Loading a task: rows from their source, rendered once, in an order that is a pure function of (seed, epoch)."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from paceline.config.checks import task_name
from paceline.config.schema import TaskConfig
from paceline.tasks.render import Tokenizer, render
from paceline.tasks.rows import BadRow, Row
from paceline.types.errors import DataError
from paceline.types.records import Prompt

_SOURCES = {"reasoning_gym": "paceline.tasks.gym", "file": "paceline.tasks.files", "synthetic": "paceline.tasks.synthetic"}
"""Modules with `rows(config)`; only the one in use is imported."""
_SHOWN = 10


class RowTask:
    """A Task over rendered rows held in memory.

    Data order: epoch e is the rows sorted by BLAKE2b(seed, e, row number), or file order without shuffle. So the order needs no state to
    resume, and rows that are left out do not change the order of the others.
    """

    def __init__(
        self, prompts: Iterable[Prompt], *, seed: int, shuffle: bool, counts: Mapping[str, int], skipped: tuple[str, ...] = ()
    ) -> None:
        """prompts: rows in source order, each with its `row` number. Raises DataError when there are none."""
        self._prompts = tuple(prompts)
        self._seed = seed
        self._shuffle = shuffle
        self.counts = dict(counts)
        """Rows: `read`, `bad` (skipped), `duplicate` (generated twice), `over_limit` (too long, filtered), `excluded`, `kept`."""
        self.skipped = skipped
        """Reasons of the first skipped and filtered rows, at most 10."""
        if not self._prompts:
            held = "; eval.hold_out leaves the evaluation's problems out of training" if self.counts.get("excluded") else ""
            why = f"; the first that was left out: {skipped[0]}" if skipped else ""
            raise DataError(f"no rows left: {', '.join(f'{name} {count}' for name, count in self.counts.items())}{held}{why}")
        self._order = lru_cache(maxsize=4)(self._permutation)

    def __len__(self) -> int:
        """Rows per epoch."""
        return len(self._prompts)

    def prompt(self, index: int) -> Prompt:
        """The prompt at position `index` >= 0 of the run's data order, with that index."""
        if index < 0:
            raise DataError(f"prompt index {index}: positions start at 0")
        epoch, position = divmod(index, len(self._prompts))
        return replace(self._prompts[self._order(epoch)[position]], index=index)

    def every_row(self) -> tuple[Prompt, ...]:
        """Every row once, in the order of the source."""
        return self._prompts

    def fingerprint(self) -> str:
        """BLAKE2b over seed, shuffle and every row (number, ids, question, gold, columns); the file's name does not count."""
        digest = hashlib.blake2b(f"{self._seed}/{self._shuffle}".encode(), digest_size=16)
        for prompt in self._prompts:
            digest.update(prompt.ids.tobytes())
            digest.update(
                _canonical((prompt.row, prompt.text, prompt.gold, prompt.columns, prompt.messages)).encode("utf-8", "surrogatepass")
            )
        return digest.hexdigest()

    def contents(self) -> str:
        """BLAKE2b over the row numbers and `digests`."""
        return _digest(self.digests)

    @cached_property
    def digests(self) -> dict[int, str]:
        """Row number -> BLAKE2b over what the row holds (question, gold, columns, messages), before any template."""
        return {p.row: _digest((p.text, p.gold, p.columns, p.messages)) for p in self._prompts}

    def excluding(self, questions: set[str]) -> RowTask:
        """The same task without the rows whose question text is in `questions` (of a held-out split), which `counts["excluded"]` counts.

        Raises DataError when nothing is left.
        """
        kept = [prompt for prompt in self._prompts if prompt.text not in questions]
        gone = len(self._prompts) - len(kept)
        counts = {**self.counts, "excluded": self.counts.get("excluded", 0) + gone, "kept": len(kept)}
        return RowTask(kept, seed=self._seed, shuffle=self._shuffle, counts=counts, skipped=self.skipped)

    def without(self, bad: Mapping[int, str]) -> RowTask:
        """The same task without these rows (row number -> what is wrong with it), which `counts["bad"]` counts.

        Raises DataError when nothing is left.
        """
        kept = [prompt for prompt in self._prompts if prompt.row not in bad]
        counts = {**self.counts, "bad": self.counts.get("bad", 0) + len(self._prompts) - len(kept), "kept": len(kept)}
        left_out = (f"{prompt.where or f'row {prompt.row}'}, {bad[prompt.row]}" for prompt in self._prompts if prompt.row in bad)
        notes = (*self.skipped, *left_out)[:_SHOWN]
        return RowTask(kept, seed=self._seed, shuffle=self._shuffle, counts=counts, skipped=notes)

    def _permutation(self, epoch: int) -> tuple[int, ...]:
        if not self._shuffle:
            return tuple(range(len(self._prompts)))
        return tuple(sorted(range(len(self._prompts)), key=lambda i: _sort_key(self._seed, epoch, self._prompts[i].row)))


def load(
    config: TaskConfig, tokenizer: Tokenizer, *, seed: int, max_prompt_tokens: int, over_limit: Literal["refuse", "filter"] = "refuse"
) -> RowTask:
    """Load and render a task; everything that can be wrong with its rows is found here, before anything is generated.

    seed: the run's seed, for the data order. max_prompt_tokens: rows whose prompt is longer are refused together, with id, length and
    limit, or left out and counted; no prompt is ever cut. Raises ConfigError for the mapping or the generator, DataError for rows (file,
    row, column, reason), for a missing column or file, and when no row is left.
    """
    rows: Callable[[TaskConfig], Iterator[Row | BadRow]] = importlib.import_module(_SOURCES[config.kind]).rows
    reading = _Reading(config, tokenizer, max_prompt_tokens, task_name(config))
    for row in rows(config):
        if config.limit is not None and len(reading.prompts) == config.limit:
            break
        reading.take(row)
    reading.refuse_long(over_limit)
    return RowTask(reading.prompts, seed=seed, shuffle=config.shuffle, counts=reading.counts(), skipped=tuple(reading.notes[:_SHOWN]))


class _Reading:
    """What came out of the rows so far."""

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer, limit: int, name: str) -> None:
        self._config, self._tokenizer, self._limit, self._name = config, tokenizer, limit, name
        self.prompts: list[Prompt] = []
        self.notes: list[str] = []
        self._questions: set[str] = set()
        self._read = self._bad = self._duplicate = 0
        self._long: list[str] = []

    def take(self, row: Row | BadRow) -> None:
        """Render one row, or count why not."""
        self._read += 1
        if isinstance(row, BadRow):
            self._reject(row.reason)
        elif self._config.kind == "reasoning_gym" and row.question in self._questions:
            self._duplicate += 1
        else:
            self._questions.add(row.question)
            self._render(row)

    def refuse_long(self, over_limit: str) -> None:
        """Raise DataError listing rows over the limit, unless they are filtered."""
        if self._long and over_limit == "refuse":
            more = f"\n... and {len(self._long) - _SHOWN} more" if len(self._long) > _SHOWN else ""
            raise DataError(
                f"{len(self._long)} of {self._read} prompts are longer than max_prompt_tokens = {self._limit}:\n"
                + "\n".join(self._long[:_SHOWN])
                + more
                + "\nraise rollout.max_prompt_tokens, or leave them out with rollout.over_limit = 'filter'"
            )
        self.notes.extend(self._long)

    def counts(self) -> dict[str, int]:
        """See RowTask.counts."""
        return {
            "read": self._read,
            "bad": self._bad,
            "duplicate": self._duplicate,
            "over_limit": len(self._long),
            "excluded": 0,
            "kept": len(self.prompts),
        }

    def _reject(self, reason: str) -> None:
        if self._config.bad_rows == "refuse":
            raise DataError(f"{reason} (task.bad_rows = 'skip' leaves such rows out)")
        self._bad += 1
        self.notes.append(reason)

    def _render(self, row: Row) -> None:
        try:
            ids = render(row, self._config, self._tokenizer)
        except DataError as error:
            self._reject(str(error))
            return
        if len(ids) > self._limit:
            self._long.append(f"{row.where}{_identity(row)}: {len(ids)} tokens, limit {self._limit}")
            return
        where = row.where if self._config.kind == "file" else ""
        self.prompts.append(Prompt(row.number, row.number, ids, row.question, row.gold, row.columns, self._name, row.messages, where))


def _identity(row: Row) -> str:
    """The row's own id, when it has one."""
    return next((f" ({key} {row.columns[key]!r})" for key in ("id", "uid", "question_id") if key in row.columns), "")


def _digest(value: Any) -> str:
    return hashlib.blake2b(_canonical(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _sort_key(seed: int, epoch: int, row: int) -> bytes:
    return hashlib.blake2b(f"order/{seed}/{epoch}/{row}".encode(), digest_size=16).digest()


def _canonical(value: Any) -> str:
    """A text that is the same in every process: dictionaries and sets sorted, foreign objects by their type only."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "<" + ",".join(sorted(map(_canonical, value))) + ">"
    if isinstance(value, np.ndarray):
        return _canonical(value.tolist())
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return repr(value)
    return f"{type(value).__name__}({value})" if isinstance(value, (date, time, Decimal)) else type(value).__name__
