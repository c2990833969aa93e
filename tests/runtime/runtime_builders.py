"""Small records for runtime tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.schedule import Schedule
from paceline.types.progress import UpdateReport
from paceline.types.records import FinishReason, Prompt, Score, ScoredGroup, Trajectory


def prompt(index: int = 0) -> Prompt:
    return Prompt(index, index, np.array([1, 2, 3], dtype=np.int32), f"question {index}", "4", {}, "memory")


def trajectory(group: int, sample: int, length: int, finish: FinishReason = "eos") -> Trajectory:
    columns = {"logprob": np.full(length, -1.0, dtype=np.float32), "version": np.zeros(length, dtype=np.int32)}
    return Trajectory(group, sample, 0, prompt().ids, np.arange(length, dtype=np.int32), columns, finish, "text")


def group(
    index: int,
    rewards: Sequence[float],
    lengths: Sequence[int] | None = None,
    finishes: Sequence[FinishReason] | None = None,
    parts: dict[str, tuple[float | None, ...]] | None = None,
    scores: dict[str, tuple[Score, ...]] | None = None,
) -> ScoredGroup:
    lengths = lengths or [2] * len(rewards)
    finishes = finishes or ["eos"] * len(rewards)
    trajectories = tuple(trajectory(index, i, n, f) for i, (n, f) in enumerate(zip(lengths, finishes, strict=True)))
    return ScoredGroup(index, prompt(index), trajectories, tuple(rewards), tuple(rewards), parts or {}, scores or {})


def report(update: int = 1, **metrics: float) -> UpdateReport:
    return UpdateReport(update, True, (0,), 2, 4, metrics)


def schedule(**changes: Any) -> Schedule:
    """A serial schedule of two groups of two, three updates, groups consumed in order."""
    base = Schedule("serial", 2, 2, 2, 2, 1, "all", total_updates=3, in_order=True)
    return replace(base, **changes)


SCHEDULES: dict[str, dict[str, Any]] = {
    "serial": {},
    "pipelined": {"preset": "pipelined", "start_when": "dispatch", "groups_per_dispatch": 1, "frontier": 2},
    **{
        f"streaming-{how}": {
            "preset": "streaming", "start_when": "dispatch", "groups_per_dispatch": 1, "staleness": 1, "buffer_groups": 4,
            "at_publish": how, "in_order": False,
        }
        for how in ("keep", "recompute", "drain")
    },
    "multiversion": {"preset": "multiversion", "start_when": "dispatch", "version_window": 2, "in_order": False},
}  # fmt: skip
"""What makes a schedule of each preset of the serial one."""


def scheduled(name: str, **changes: Any) -> Schedule:
    """A schedule of `SCHEDULES`: two groups of two per update and publish."""
    return schedule(**SCHEDULES[name], **changes)
