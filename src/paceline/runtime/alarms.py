"""Conditions under which a run learns nothing, or soon will, although nothing fails: said aloud, again after twice as many updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PATIENCE = 3
"""Updates in a row before the first warning."""
BASELINE = 5
"""First updates, whose mean later ones are compared with."""

Row = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One condition on an update's metrics and on the means of the first ones."""

    holds: Callable[[Row, Row], bool]
    """(row, baseline). The baseline is empty until BASELINE updates are seen."""
    what: str
    advice: str


def _is(name: str, value: float) -> Callable[[Row, Row], bool]:
    return lambda row, first: row.get(name) == value


def _above(name: str, limit: float) -> Callable[[Row, Row], bool]:
    return lambda row, first: row.get(name, 0.0) > limit


def _grown(name: str, factor: float, floor: float) -> Callable[[Row, Row], bool]:
    """More than `factor` times what it was at first, and more than `floor`."""
    return lambda row, first: name in first and row.get(name, 0.0) > max(factor * first[name], floor)


def _shrunk(name: str, factor: float, floor: float) -> Callable[[Row, Row], bool]:
    """Less than `factor` times what it was at first, or less than `floor`."""
    return lambda row, first: name in row and row[name] < max(factor * first.get(name, 0.0), floor)


def _constant(row: Row, first: Row) -> bool:
    """Some reward function gave every sample of the update the same value."""
    return row.get("update/samples", 0) > 1 and any(
        value == 0 for name, value in row.items() if name.startswith("rewards/") and name.endswith("/std")
    )


ALARMS: tuple[Alarm, ...] = (
    Alarm(
        _constant,
        "a reward function gives every answer the same value",
        "it cannot teach anything: call it by hand on a right and a wrong answer (rewards/NAME/mean is the value)",
    ),
    Alarm(
        _is("frac_reward_zero_std", 1.0),
        "every group has equal rewards: there is no signal to learn from",
        "the task is too hard or too easy, the reward reads no answer, or the policy has become deterministic (see entropy)",
    ),
    Alarm(_is("unparsed_ratio", 1.0), "no answer could be parsed", "check the reward's marker and the prompt"),
    Alarm(
        _above("completions/clipped_ratio", 0.9),
        "more than 90 % of the samples were cut at rollout.max_tokens: most answers never end",
        "raise rollout.max_tokens, or ask for short answers in the prompt",
    ),
    Alarm(
        _shrunk("completions/mean_length", 0.25, 2.0),
        "answers have become less than a quarter as long as at first, or empty",
        "the policy has found that saying nothing pays: look at what the reward gives short answers",
    ),
    Alarm(
        _grown("logprob_gap/mean", 3.0, 0.01),
        "the log-probs of engine and trainer drift apart: three times as far as at first",
        "ratios lose their meaning; look for a version that was not loaded whole, use float32, or a correction",
    ),
    Alarm(
        _shrunk("entropy", 0.1, 0.01),
        "entropy has collapsed to less than a tenth of what it was: the policy no longer explores",
        "lower trainer.learning_rate, or stop here: groups will soon have equal rewards",
    ),
    Alarm(
        _above("clip_ratio/region_mean", 0.3),
        "more than 30 % of the tokens were clipped: the policy has moved far from the one that sampled",
        "lower trainer.learning_rate, take fewer updates per publish, or a smaller staleness",
    ),
    Alarm(
        _above("reward_waiting_ratio", 0.3),
        "the trainer spends more than 30 % of the time waiting for rewards alone",
        "raise pool.reward_workers, or make the reward faster (`paceline timeline` shows which groups)",
    ),
)
"""Names are those of metrics.jsonl."""


@dataclass
class Alarms:
    """Counts updates in a row under each condition; feed every update, in order."""

    streaks: list[int] = field(default_factory=lambda: [0] * len(ALARMS))
    due: list[int] = field(default_factory=lambda: [PATIENCE] * len(ALARMS))
    _sums: dict[str, float] = field(default_factory=dict)
    _seen: int = 0

    def feed(self, row: Row) -> list[str]:
        """Warnings that this update's metrics make due."""
        first, warnings = self._baseline(), []
        for number, alarm in enumerate(ALARMS):
            if not alarm.holds(row, first):
                self.streaks[number], self.due[number] = 0, PATIENCE
                continue
            streak = self.streaks[number] = self.streaks[number] + 1
            if streak >= self.due[number]:
                self.due[number] = 2 * streak
                warnings.append(f"{streak} updates in a row: {alarm.what}; {alarm.advice}")
        self._remember(row)
        return warnings

    def present(self) -> list[tuple[Alarm, int]]:
        """Alarms that hold now and have held for long enough to be told, with their updates in a row."""
        return [(alarm, streak) for alarm, streak in zip(ALARMS, self.streaks, strict=True) if streak >= PATIENCE]

    def _baseline(self) -> Row:
        return {name: total / BASELINE for name, total in self._sums.items()} if self._seen >= BASELINE else {}

    def _remember(self, row: Row) -> None:
        """A metric that is missing or not finite in one of the first updates has no baseline: its sum is not finite."""
        if self._seen < BASELINE:
            names = row if not self._seen else self._sums
            self._sums = {name: total for name in names if math.isfinite(total := self._sums.get(name, 0.0) + row.get(name, math.nan))}
            self._seen += 1
