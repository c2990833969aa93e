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
Condition = Callable[[Row, Row], str | None]
"""(an update's metrics, means of the first updates) -> what is seen, in words ("" = nothing more to say); None where it does not hold. The
means are empty until BASELINE updates are seen."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One condition on an update's metrics and on the means of the first ones."""

    seen: Condition
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Sounding:
    """An alarm that holds now."""

    what: str
    """With the values at the last update."""
    advice: str
    streak: int
    """Updates in a row."""


def _is(name: str, value: float, beside: str = "") -> Condition:
    """A value exactly; `beside`: the metric that tells more."""
    return lambda row, first: None if row.get(name) != value else f"{beside} {row[beside]:.3g}" if beside in row else ""


def _above(name: str, limit: float) -> Condition:
    return lambda row, first: f"{row[name]:.3g}" if row.get(name, 0.0) > limit else None


def _grown(name: str, factor: float, floor: float, unit: str) -> Condition:
    """More than `factor` times what it was at first, and more than `floor`."""

    def _seen(row: Row, first: Row) -> str | None:
        grown = name in first and row.get(name, 0.0) > max(factor * first[name], floor)
        return _beside(row[name], first[name], unit) if grown else None

    return _seen


def _shrunk(name: str, factor: float, floor: float, unit: str) -> Condition:
    """Less than `factor` times what it was at first, or less than `floor`."""

    def _seen(row: Row, first: Row) -> str | None:
        shrunk = name in row and row[name] < max(factor * first.get(name, 0.0), floor)
        return _beside(row[name], first.get(name), unit) if shrunk else None

    return _seen


def _beside(now: float, first: float | None, unit: str) -> str:
    return f"{now:.3g} {unit}" + ("" if first is None else f", at first {first:.3g}")


def _constant(row: Row, first: Row) -> str | None:
    """Reward functions that gave every sample the same value, the one that they have given since the start.

    One that came to give everything its best value, as a reward for the format does, has taught what it can: that is no fault.
    """
    if row.get("update/samples", 0) <= 1:
        return None
    found = []
    for deviation in (name for name, value in row.items() if name.startswith("rewards/") and name.endswith("/std") and value == 0):
        mean = f"{deviation.removesuffix('std')}mean"
        given = row.get(mean, math.nan)
        if not first or (first.get(deviation) == 0 and math.isclose(first.get(mean, math.nan), given, abs_tol=1e-9)):
            found.append(f"{deviation.removeprefix('rewards/').removesuffix('/std')} gives {given:.3g}")
    return ", ".join(found) or None


ALARMS: tuple[Alarm, ...] = (
    Alarm(
        _constant,
        "a reward function gives every answer the same value",
        "it teaches nothing: call it by hand on a right and on a wrong answer. A penalty that no answer deserved is no fault",
    ),
    Alarm(
        _is("frac_reward_zero_std", 1.0, "reward"),
        "every group has equal rewards: there is no signal to learn from",
        "the task is too hard or too easy (see the mean), the reward reads no answer, or the policy has become deterministic (see entropy)",
    ),
    Alarm(_is("unparsed_ratio", 1.0), "no answer could be parsed", "check the reward's marker and the prompt"),
    Alarm(
        _above("completions/clipped_ratio", 0.9),
        "more than 90 % of the samples were cut at rollout.max_tokens: most answers never end",
        "raise rollout.max_tokens, or ask for short answers in the prompt",
    ),
    Alarm(
        _shrunk("completions/mean_length", 0.25, 2.0, "tokens"),
        "answers have become less than a quarter as long as at first, or empty",
        "the policy has found that saying nothing pays: look at what the reward gives short answers",
    ),
    Alarm(
        _grown("logprob_gap/mean", 3.0, 0.01, "nats"),
        "the log-probs of engine and trainer drift apart: three times as far as at first",
        "ratios lose their meaning; look for a version that was not loaded whole, use float32, or a correction",
    ),
    Alarm(
        _shrunk("entropy", 0.1, 0.01, "nats"),
        "entropy has collapsed: the answers to a prompt are nearly alike",
        "further updates teach little. Late in a run whose evaluation has risen that is a normal end (the quickstart's, too); early, or "
        "with an evaluation that falls, lower trainer.learning_rate",
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
    _said: list[str] = field(default_factory=lambda: [""] * len(ALARMS))
    """Each alarm with what the last update showed."""
    due: list[int] = field(default_factory=lambda: [PATIENCE] * len(ALARMS))
    _sums: dict[str, float] = field(default_factory=dict)
    _seen: int = 0

    def feed(self, row: Row) -> list[str]:
        """Warnings that this update's metrics make due."""
        first, warnings = self._baseline(), []
        for number, alarm in enumerate(ALARMS):
            if (seen := alarm.seen(row, first)) is None:
                self.streaks[number], self.due[number] = 0, PATIENCE
                continue
            streak = self.streaks[number] = self.streaks[number] + 1
            said = self._said[number] = f"{alarm.what} ({seen})" if seen else alarm.what
            if streak >= self.due[number]:
                self.due[number] = 2 * streak
                warnings.append(f"{streak} updates in a row: {said}; {alarm.advice}")
        self._remember(row)
        return warnings

    def present(self) -> list[Sounding]:
        """Alarms that hold now and have held for long enough to be told."""
        all_of_them = zip(ALARMS, self._said, self.streaks, strict=True)
        return [Sounding(said, alarm.advice, streak) for alarm, said, streak in all_of_them if streak >= PATIENCE]

    def _baseline(self) -> Row:
        return {name: total / BASELINE for name, total in self._sums.items()} if self._seen >= BASELINE else {}

    def _remember(self, row: Row) -> None:
        """A metric that is missing or not finite in one of the first updates has no baseline: its sum is not finite."""
        if self._seen < BASELINE:
            names = row if not self._seen else self._sums
            self._sums = {name: total for name in names if math.isfinite(total := self._sums.get(name, 0.0) + row.get(name, math.nan))}
            self._seen += 1
