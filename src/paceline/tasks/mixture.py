"""Several tasks in one data order, by weight, as a pure function of position."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.tasks.task import RowTask
from paceline.types.errors import DataError
from paceline.types.records import Prompt


class Mixture:
    """A Task of several, each with its share of every epoch.

    An epoch has as many prompts as all tasks have rows; `shares` says how many of each. Task k gives the next ones of its own endless
    data order: within its own epoch no row comes twice, however often the mixture's epochs end meanwhile. The prompts of a task are
    spread evenly over the epoch, so that every stretch of it, an update say, holds each task by its weight to within one prompt.
    """

    def __init__(self, tasks: Mapping[str, RowTask], weights: Sequence[float] | None = None) -> None:
        """tasks by name, in order. weights: one per task, relative; None = numbers of rows, so that an epoch has every row once."""
        self.tasks = dict(tasks)
        rows = [len(task) for task in self.tasks.values()]
        self.shares = tuple(rows) if weights is None else _shares(sum(rows), weights)
        """Prompts of each task in an epoch; their sum is the number of all rows."""
        for name, share in zip(self.tasks, self.shares, strict=True):
            if share == 0:
                raise DataError(f"task {name}: its weight gives it no prompt in an epoch of {sum(rows)}; raise it")
        self._order = _interleaved(self.shares)

    def __len__(self) -> int:
        """Prompts per epoch."""
        return len(self._order)

    def prompt(self, index: int) -> Prompt:
        """The prompt at position `index` >= 0 of the run's data order, with that index; its `task` says where it is from."""
        if index < 0:
            raise DataError(f"prompt index {index}: positions start at 0")
        epoch, position = divmod(index, len(self._order))
        which, turn = self._order[position]
        task = list(self.tasks.values())[which]
        return replace(task.prompt(epoch * self.shares[which] + turn), index=index)

    def every_row(self) -> list[Prompt]:
        """Every row of every task once."""
        return [prompt for task in self.tasks.values() for prompt in task.every_row()]

    def fingerprint(self) -> str:
        """BLAKE2b over names, shares and the tasks' own fingerprints."""
        parts = [(name, share, task.fingerprint()) for (name, task), share in zip(self.tasks.items(), self.shares, strict=True)]
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` divided in proportion to the weights: rounded down, what is left to the largest remainders."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda k: (shares[k] - exact[k], k))
    for k in by_remainder[: total - sum(shares)]:
        shares[k] += 1
    return tuple(shares)


def _interleaved(shares: Sequence[int]) -> list[tuple[int, int]]:
    """(task, turn) per position of an epoch: turn j of n lies at (2j + 1) / 2n of the way."""
    places = [((2 * turn + 1) / (2 * share), which, turn) for which, share in enumerate(shares) for turn in range(share)]
    return [(which, turn) for _, which, turn in sorted(places)]
