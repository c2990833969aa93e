"""`kind = "math"`: answers that are equal as mathematics, under the policy written in docs/policies.md.

Numbers are compared here, exactly and in linear time. Everything else goes to verifier processes (`rewards.bench`), where an answer costs
at most its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.rewards.bench import Bench, Job, Outcome
from paceline.rewards.boxes import Answer, after_marker, find_answer
from paceline.rewards.forms import Value
from paceline.rewards.numbers import Percent
from paceline.rewards.reading import plain_number, read_number
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Score

_SHOWN = 200
_REASONS = {"late": "not compared in time", "memory": "out of memory", "incomparable": "not comparable"}


def maths_answer(text: str, marker: str | None = None) -> Answer:
    """The answer that `math` reads from a completion, as it is written, or why there is none; see `boxes.find_answer`.

    With `marker`, only the first line with text after its last occurrence is searched; no marker, no answer.
    """
    if marker is None:
        return find_answer(text)
    line = after_marker(text, marker)
    return Answer(None, "no marker") if line is None else find_answer(text, line)


@dataclass
class MathVerifier:
    """Finds and compares answers.

    marker: see `maths_answer`. percent: see `numbers.equal`. timeout_s: seconds for one answer. bench: the processes that
    compare; default: one of its own. Raises ConfigError for settings without meaning.
    """

    marker: str | None = None
    percent: Percent = "loose"
    timeout_s: float = 10.0
    bench: Bench | None = None

    def __post_init__(self) -> None:
        if self.percent not in ("loose", "strict"):
            raise ConfigError(f"percent = {self.percent!r}: one of loose, strict")
        if self.marker is not None and not (isinstance(self.marker, str) and self.marker.strip()):
            raise ConfigError(f"marker = {self.marker!r}: text that stands before the answer, or nothing at all")
        self._bench = self.bench or Bench()

    def prepare(self) -> None:
        """Start the verifier processes."""
        self._bench.start()

    def problems(self, golds: Sequence[str | None]) -> list[str | None]:
        """What is wrong with each gold, None where nothing is: no answer in it, no reading, or no value."""
        found = [_gold(gold) for gold in golds]
        texts = list(dict.fromkeys(answer.text for answer in found if answer.text is not None and _number(answer.text) is None))
        outcomes = zip(texts, self._bench.compare([Job(text, None) for text in texts], self.timeout_s), strict=True)
        unread = {text: _told(outcome) for text, outcome in outcomes if outcome.status != "right"}
        return [
            f"gold {_short(gold)} cannot be read as mathematics: {unread[answer.text]}" if answer.text in unread else answer.reason or None
            for gold, answer in zip(golds, found, strict=True)
        ]

    def scores(self, pairs: Sequence[tuple[str | None, str]]) -> list[Score]:
        """One Score per (gold, completion), in order: 1.0, or 0.0 with the reason.

        Reasons: `no answer`, `no marker`, `empty box`, `unterminated box`, `unreadable`, `too long`, `too deep`, `not compared in time`,
        `out of memory`, `not comparable`, `wrong`. Raises RewardError for a bad gold, a lost verifier and a mistake in the verifier.
        """
        scores: list[Score | None] = [None] * len(pairs)
        jobs: dict[int, tuple[Job, str]] = {}
        for i, (gold, text) in enumerate(pairs):
            expected, answer = _gold(gold), maths_answer(text, self.marker)
            if expected.text is None:
                raise RewardError(expected.reason)
            if answer.text is None:
                scores[i] = Score(0.0, answer.reason, parsed=False)
                continue
            scores[i] = _by_number(expected.text, answer.text)
            if scores[i] is None:
                jobs[i] = Job(expected.text, answer.text, self.percent), answer.text
        outcomes = self._bench.compare([job for job, _ in jobs.values()], self.timeout_s)
        for (i, (job, extracted)), outcome in zip(jobs.items(), outcomes, strict=True):
            scores[i] = _score(outcome, job, extracted)
        assert all(score is not None for score in scores), "every pair has a score"
        return [score for score in scores if score is not None]

    def close(self) -> None:
        """End the verifier processes."""
        self._bench.close()


def _gold(gold: str | None) -> Answer:
    if gold is None:
        return Answer(None, "no gold answer (task.gold_column names its column)")
    answer = find_answer(gold)
    return answer if answer.text is not None else Answer(None, f"gold {_short(gold)} has {answer.reason}")


def _number(text: str) -> Value | None:
    value = read_number(text)
    return value if value is not None and plain_number(value.text) is not None else None


def _by_number(gold: str, answer: str) -> Score | None:
    """The verdict where both are plain numbers."""
    expected, given = _number(gold), _number(answer)
    if expected is None or given is None:
        return None
    right = plain_number(expected.text) == plain_number(given.text)
    return Score(float(right), "" if right else "wrong", parsed=True, extracted=answer)


def _score(outcome: Outcome, job: Job, extracted: str) -> Score:
    if outcome.status in ("right", "wrong"):
        right = outcome.status == "right"
        return Score(float(right), "" if right else "wrong", parsed=True, extracted=extracted)
    if outcome.status == "unreadable":
        reason = outcome.detail if outcome.detail in ("too long", "too deep") else "unreadable"
        return Score(0.0, reason, parsed=False, extracted=extracted[:_SHOWN])
    if outcome.status in _REASONS:
        return Score(0.0, _REASONS[outcome.status], parsed=False, extracted=extracted)
    if outcome.status == "gold":
        raise RewardError(f"gold {_short(job.gold)} cannot be read as mathematics: {outcome.detail}")
    raise RewardError(f"the verifier failed on answer {_short(extracted)} to gold {_short(job.gold)}: {_told(outcome)}")


def _told(outcome: Outcome) -> str:
    return (
        outcome.detail
        if outcome.status in ("gold", "error", "lost")
        else f"{_REASONS.get(outcome.status, outcome.status)} {outcome.detail}".strip()
    )


def _short(text: str | None) -> str:
    text = text or ""
    return repr(text if len(text) <= 80 else text[:77] + "...")
