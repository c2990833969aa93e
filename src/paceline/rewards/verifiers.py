"""The rewards that paceline brings: a verifier of numbers, text or mathematics, and the task's own scorer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.rewards.answers import Verifier, pick_number
from paceline.rewards.boxes import after_marker, spoken
from paceline.rewards.maths import MathVerifier
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Score, Trajectory

Scorer = Callable[[Prompt, str], float]
"""Judges an answer to a prompt; for reasoning-gym `paceline.tasks.gym.scorer` makes one."""

_OPENS, _CLOSES = "<answer>", "</answer>"


@dataclass(slots=True)
class VerifierReward:
    """`numeric` or `exact`: 1 for the gold answer, else 0 with a reason."""

    name: str
    verifier: Verifier

    def check(self, prompt: Prompt) -> None:
        """Raise RewardError when the row's gold is no answer of this kind."""
        self.verifier.check_gold(prompt.gold)

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair; RewardError naming the row for a bad gold."""
        return [self._one(prompt, trajectory) for prompt, trajectory in zip(prompts, trajectories, strict=True)]

    def _one(self, prompt: Prompt, trajectory: Trajectory) -> Score:
        try:
            return self.verifier.score(prompt.gold, trajectory.text)
        except RewardError as error:
            raise RewardError(f"reward {self.name} on {prompt.place}: {error}") from error


@dataclass(slots=True)
class MathReward:
    """`math`: 1 for an answer equal to the gold, else 0 with a reason; see `rewards.maths`."""

    name: str
    verifier: MathVerifier

    def prepare(self) -> None:
        """Start the verifier processes."""
        self.verifier.prepare()

    def problems(self, prompts: Sequence[Prompt]) -> Sequence[str | None]:
        """What is wrong with the gold of each row, None where nothing is."""
        return self.verifier.problems([prompt.gold for prompt in prompts])

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order; RewardError naming the rows for a bad gold, a lost verifier and a mistake of ours."""
        pairs = [(prompt.gold, trajectory.text) for prompt, trajectory in zip(prompts, trajectories, strict=True)]
        try:
            return self.verifier.scores(pairs)
        except RewardError as error:
            rows = ", ".join(dict.fromkeys(p.place for p in sorted(prompts, key=lambda p: (p.task, p.row))))
            raise RewardError(f"reward {self.name} on {rows}: {error}") from error

    def close(self) -> None:
        """End the verifier processes."""
        self.verifier.close()


@dataclass(slots=True)
class TaskReward:
    """The task's own scorer on an answer cut out of the completion.

    answer: `tag` = inside the last `<answer>...</answer>` (reasoning-gym's convention), `number` = the last number as written, `text` =
    everything. marker: for `number` and `text`, only the first line with text after the last marker. No answer scores 0 and never reaches
    the scorer.
    """

    name: str
    scorer: Scorer
    answer: Literal["tag", "number", "text"] = "tag"
    marker: str | None = None

    def __post_init__(self) -> None:
        if self.answer not in ("tag", "number", "text"):
            raise ConfigError(f"answer = {self.answer!r}: one of tag, number, text")
        if self.answer == "tag" and self.marker is not None:
            raise ConfigError(f"marker = {self.marker!r} has no effect with answer = 'tag'; use 'number' or 'text'")

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair; RewardError naming the row when the scorer fails on the gold answer too."""
        return [self._one(prompt, trajectory) for prompt, trajectory in zip(prompts, trajectories, strict=True)]

    def _one(self, prompt: Prompt, trajectory: Trajectory) -> Score:
        answer, reason = self._extract(trajectory.text)
        if answer is None:
            return Score(0.0, reason, parsed=False)
        try:
            value = float(self.scorer(prompt, answer))
        # Scorers of foreign packages raise on odd answers. Only one that still likes its own gold has judged the answer; else it is broken.
        except Exception as error:  # noqa: BLE001
            self._blame(prompt, error)
            return Score(0.0, f"scorer raised {type(error).__name__}", parsed=False, extracted=answer)
        if not math.isfinite(value):
            raise RewardError(f"reward {self.name} gave {value} on {prompt.place}: rewards are finite")
        return Score(value, "" if value > 0 else "wrong", parsed=True, extracted=answer)

    def _blame(self, prompt: Prompt, error: Exception) -> None:
        broken = f"reward {self.name}: the scorer raised {type(error).__name__} on {prompt.place}: {error}"
        if prompt.gold is None:
            raise RewardError(broken) from error
        try:
            self.scorer(prompt, prompt.gold)
        except Exception:  # noqa: BLE001
            raise RewardError(broken) from error

    def _extract(self, text: str) -> tuple[str | None, str]:
        if self.answer == "tag":
            before, closed, _ = spoken(text).rpartition(_CLOSES)
            _, opened, inside = before.rpartition(_OPENS)
            answer = inside.strip() if closed and opened else ""
            return (answer, "") if answer else (None, "no answer" if (closed and opened) or not text.strip() else "no <answer> tag")
        scope = after_marker(text, self.marker)
        if scope is None:
            return None, "no marker"
        if not scope.strip():
            return None, "no answer"
        if self.answer == "text":
            return scope.strip(), ""
        number = pick_number(scope, "last")
        return (None, "no number") if number is None else (number.text, "")
