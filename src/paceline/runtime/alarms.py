"""Conditions under which a run learns nothing although nothing fails: said aloud, again after twice as many updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PATIENCE = 3
"""Updates in a row before the first warning."""

CONDITIONS: Mapping[str, Callable[[Mapping[str, float]], bool]] = {
    "more than 90 % of the samples were cut at rollout.max_tokens: most answers never end, raise it": (
        lambda row: row.get("completions/clipped_ratio", 0.0) > 0.9
    ),
    "every group has equal rewards: there is no signal to learn from (task too hard or too easy, or the reward reads no answer)": (
        lambda row: row.get("frac_reward_zero_std", 0.0) == 1.0
    ),
    "no answer could be parsed: check the reward's marker and the prompt": lambda row: row.get("unparsed_ratio", 0.0) == 1.0,
}


@dataclass
class Alarms:
    """Counts updates in a row under each condition."""

    streaks: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)

    def feed(self, row: Mapping[str, float]) -> list[str]:
        """Warnings that this update's metrics make due."""
        warnings = []
        for message, holds in CONDITIONS.items():
            if not holds(row):
                self.streaks[message], self.due[message] = 0, PATIENCE
                continue
            self.streaks[message] = self.streaks.get(message, 0) + 1
            if self.streaks[message] >= self.due.get(message, PATIENCE):
                self.due[message] = 2 * self.streaks[message]
                warnings.append(f"{self.streaks[message]} updates in a row: {message}")
        return warnings
