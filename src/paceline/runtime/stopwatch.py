"""Where the time of a run goes: how long each stage was busy, overlapping work of one stage counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Stage = Literal["rollout", "reward", "train", "publish"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one row."""

    step: float
    rollout: float
    reward: float
    train: float
    publish: float
    window: float
    first_wait: float
    round_train: float


class Stopwatch:
    """Busy seconds per stage since the row before, and the window of the present round."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._depth: dict[Stage, int] = {"rollout": 0, "reward": 0, "train": 0, "publish": 0}
        self._since: dict[Stage, float] = {}
        self._busy: dict[Stage, float] = dict.fromkeys(self._depth, 0.0)
        self._row = now()
        self._round: float | None = None
        self._first_dispatch: float | None = None
        self._round_train = 0.0

    def enter(self, stage: Stage) -> None:
        """One more piece of work of a stage runs."""
        if self._depth[stage] == 0:
            self._since[stage] = self._now()
        self._depth[stage] += 1
        if stage == "rollout" and self._round is None:
            self._round = self._now()
        if stage == "train" and self._first_dispatch is None:
            self._first_dispatch = self._now()

    def leave(self, stage: Stage) -> None:
        """One piece of work of a stage ended."""
        self._depth[stage] -= 1
        assert self._depth[stage] >= 0, f"{stage} ended more often than it began"
        if self._depth[stage] == 0:
            self._bank(stage)

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        """`enter` and `leave` around a block."""
        self.enter(stage)
        try:
            yield
        finally:
            self.leave(stage)

    def new_round(self) -> None:
        """A version was published: the next admission opens a window."""
        self._round = self._first_dispatch = None
        self._round_train = 0.0

    def cut(self) -> Times:
        """Times of the row that ends now."""
        now = self._now()
        for stage, depth in self._depth.items():
            if depth:
                self._bank(stage)
                self._since[stage] = now
        start = now if self._round is None else self._round
        times = Times(
            step=now - self._row,
            **self._busy,
            window=now - start,
            first_wait=max(0.0, (self._first_dispatch or now) - start),
            round_train=self._round_train,
        )
        self._row = now
        self._busy = dict.fromkeys(self._busy, 0.0)
        return times

    def _bank(self, stage: Stage) -> None:
        seconds = self._now() - self._since[stage]
        self._busy[stage] += seconds
        if stage == "train":
            self._round_train += seconds
