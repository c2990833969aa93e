"""Payloads of the groups that are under way, by id. The machine decides by ids alone; here lies what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.types.records import Prompt, ScoredGroup, Trajectory


@dataclass
class Board:
    """Filled by performers, emptied at each group's terminal state, so that its size is bounded by the work in flight."""

    prompts: dict[int, Prompt] = field(default_factory=dict)
    trajectories: dict[int, dict[int, Trajectory]] = field(default_factory=dict)
    """group -> sample -> the trajectory of its latest attempt."""
    scored: dict[int, ScoredGroup] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        """Keep a finished trajectory unless its group is gone or a later attempt is here."""
        if trajectory.group not in self.prompts:
            return
        samples = self.trajectories.setdefault(trajectory.group, {})
        held = samples.get(trajectory.sample)
        if held is None or held.attempt <= trajectory.attempt:
            samples[trajectory.sample] = trajectory

    def samples(self, group: int, samples: Sequence[int]) -> tuple[Trajectory, ...]:
        """Finished trajectories of a group in the order asked for."""
        return tuple(self.trajectories[group][sample] for sample in samples)

    def release(self, group: int) -> None:
        """Forget a group."""
        self.prompts.pop(group, None)
        self.trajectories.pop(group, None)
        self.scored.pop(group, None)
