"""Sums over a stretch of a run: seconds by state, levels over time, counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Moment:
    """How things stand while time passes."""

    trainer: str
    """State of the trainer (`causes.TRAINER`)."""
    slots: tuple[tuple[str, int], ...]
    """Slots by state (`causes.ROLLOUT`)."""
    busy: tuple[str, ...]
    """Stages in which something runs."""
    levels: tuple[int, ...]
    """Of LEVELS, in their order."""


LEVELS = ("in_flight", "open", "judged", "trainable", "trajectories", "versions")
"""What is followed as a level; `Tally.level_seconds` and `most` have these names."""


@dataclass(slots=True)
class Tally:
    """One stretch: an update, a publish period, a lineage. Seconds and counts; shares and means are derived."""

    seconds: float = 0.0
    trainer: dict[str, float] = field(default_factory=dict)
    """Seconds by state of the trainer (`causes.TRAINER`); they sum to `seconds`."""
    slots: dict[str, float] = field(default_factory=dict)
    """Slot-seconds by state of a rollout slot (`causes.ROLLOUT`), over all instances that were up."""
    busy: dict[str, float] = field(default_factory=dict)
    """Seconds during which at least one trajectory decoded (`rollout`), one group was judged (`reward`), the trainer computed (`train`),
    weights were written or loaded (`publish`)."""
    level_seconds: dict[str, float] = field(default_factory=dict)
    """Integral over time of each of LEVELS."""
    most: dict[str, int] = field(default_factory=dict)
    """Largest value of each of LEVELS that lasted."""
    staleness: dict[int, int] = field(default_factory=dict)
    """Groups consumed, by staleness in versions."""
    staleness_updates: dict[int, int] = field(default_factory=dict)
    """The same in updates."""
    tokens: int = 0
    """Sampled tokens of trajectories that finished."""
    trajectories: int = 0
    migrated: int = 0
    """Trajectories that moved between instances."""
    prefilled: int = 0
    """Tokens that those moves had to prefill."""
    filtered: int = 0
    """Groups that ended without training because the filter or the bound said so."""
    overstale: int = 0
    """Trainable groups that got older than the bound: generated anew, or filtered, as the schedule says."""
    failed: int = 0
    """Groups that were given up."""
    failed_attempts: int = 0
    """Attempts that ended without a trajectory."""
    failed_rewards: int = 0
    """Groups that could not be judged."""

    def spend(self, seconds: float, moment: Moment) -> None:
        """Time passes as things stand."""
        self.seconds += seconds
        increase(self.trainer, moment.trainer, seconds)
        for name, count in moment.slots:
            increase(self.slots, name, count * seconds)
        for name in moment.busy:
            increase(self.busy, name, seconds)
        for name, level in zip(LEVELS, moment.levels, strict=True):
            increase(self.level_seconds, name, level * seconds)
            if level > self.most.get(name, 0):
                self.most[name] = level

    def add(self, other: Tally) -> None:
        """Another stretch joins this one."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if not isinstance(mine, dict):
                setattr(self, each.name, mine + theirs)
                continue
            for key, value in theirs.items():
                mine[key] = max(mine.get(key, 0), value) if each.name == "most" else mine.get(key, 0) + value

    @property
    def groups(self) -> int:
        """Groups consumed."""
        return sum(self.staleness.values())

    def mean_level(self, name: str) -> float:
        """Mean over time of one of LEVELS; 0 for an empty stretch."""
        return self.level_seconds.get(name, 0.0) / self.seconds if self.seconds > 0 else 0.0


def increase(sums: dict[Any, Any], key: Any, by: float) -> None:
    """More of `key`."""
    sums[key] = sums.get(key, 0) + by


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by state as shares that sum to 1; empty when there are none."""
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def mean(histogram: Mapping[int, int]) -> float:
    """Mean of a histogram value -> count; 0 when it is empty."""
    count = sum(histogram.values())
    return sum(value * n for value, n in histogram.items()) / count if count else 0.0


@dataclass(slots=True)
class Window:
    """From the start of rollout to the end of training: of a round, or of a publish period where there are no rounds.

    Left out is time in which a publish, a checkpoint or an evaluation kept the trainer from work that was there.
    """

    start: float | None = None
    """Rounds: the first admission after a publish. Else: the end of the training before, or the first admission of all."""
    first_dispatch: float | None = None
    """Seconds from the start to the first dispatch, without what is left out."""
    train: float = 0.0
    """Seconds in which the trainer computed."""
    left_out: float = 0.0

    def seconds(self, now: float) -> float:
        """Length so far."""
        return 0.0 if self.start is None else now - self.start - self.left_out

    def waiting(self, now: float) -> tuple[float, float]:
        """The trainer's waiting ratios: (a) the wait before the first dispatch, (b) all waiting, each over the window."""
        length = self.seconds(now)
        if length <= 0:
            return 0.0, 0.0
        return (length if self.first_dispatch is None else self.first_dispatch) / length, max(0.0, 1 - self.train / length)
