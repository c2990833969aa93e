"""Answers in completions: find one, compare it with a gold. The policy of `numeric` stands in `rewards.numbers`, that of `math` in
`rewards.maths`."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from paceline.rewards.bench import Bench
from paceline.rewards.boxes import after_marker
from paceline.rewards.maths import MathVerifier, maths_answer
from paceline.rewards.numbers import Number, Percent, equal, find_numbers
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Score

Kind = Literal["math", "numeric", "exact"]
Which = Literal["last", "first"]

_DECORATION = ("**", "__", "```", "*", "_", "`")


@dataclass(frozen=True, slots=True)
class Verifier:
    """How an answer is found and compared.

    kind: `numeric` compares numbers exactly, `exact` compares text (NFC, runs of white space as one space, markdown around it and one
    full stop at its end removed, case kept). marker: text that must stand before the answer, case-sensitive and not inside a word; only
    the first line with text after its last occurrence counts, and without it there is no answer. which: the number that counts when there
    are several (numeric). percent: see `numbers.equal`. Raises ConfigError for settings without effect. `math` has a verifier of its own.
    """

    kind: Literal["numeric", "exact"] = "numeric"
    marker: str | None = None
    which: Which = "last"
    percent: Percent = "loose"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("kind", self.kind, ("numeric", "exact")),
            ("which", self.which, ("last", "first")),
            ("percent", self.percent, ("loose", "strict")),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} = {value!r}: one of {', '.join(allowed)}")
        if self.kind == "exact" and (self.which, self.percent) != ("last", "loose"):
            raise ConfigError("kind = 'exact' compares text: `which` and `percent` have no effect")
        if self.marker is not None and not (isinstance(self.marker, str) and self.marker.strip()):
            raise ConfigError(f"marker = {self.marker!r}: text that stands before the answer, or nothing at all")

    def check_gold(self, gold: str | None) -> None:
        """Raise RewardError when `gold` cannot be compared with anything: numeric needs exactly one number, exact some text."""
        if gold is None:
            raise RewardError("no gold answer (task.gold_column names its column)")
        if self.kind == "exact" and not normalise(gold):
            raise RewardError(f"gold {_short(gold)} has no text")
        if self.kind == "numeric":
            self._gold_number(gold)

    def score(self, gold: str | None, text: str) -> Score:
        """1.0 or 0.0 with the reason: `no marker`, `no answer`, `no number`, `unreadable number`, `wrong`. RewardError for a bad gold."""
        self.check_gold(gold)
        assert gold is not None
        scope = after_marker(text, self.marker)
        if scope is None:
            return Score(0.0, "no marker", parsed=False)
        return self._exact(gold, scope) if self.kind == "exact" else self._numeric(gold, scope)

    def _exact(self, gold: str, scope: str) -> Score:
        answer = normalise(scope)
        if not answer:
            return Score(0.0, "no answer", parsed=False)
        return _verdict(answer == normalise(gold), answer)

    def _numeric(self, gold: str, scope: str) -> Score:
        answer = pick_number(scope, self.which)
        if answer is None:
            return Score(0.0, "no number" if scope.strip() else "no answer", parsed=False)
        if answer.value is None:
            return Score(0.0, "unreadable number", parsed=False, extracted=answer.text)
        return _verdict(equal(self._gold_number(gold), answer, self.percent), answer.text)

    def _gold_number(self, gold: str) -> Number:
        numbers = find_numbers(gold)
        if len(numbers) != 1 or numbers[0].value is None:
            raise RewardError(f"gold {_short(gold)} is not one number (task.gold_pattern can cut it out)")
        return numbers[0]


def extract(text: str, *, kind: Kind, marker: str | None = None, which: Which = "last") -> str | None:
    """The answer that a reward of this kind reads from `text`, or None when there is none.

    numeric: the last (or first) number, without currency sign, markdown and punctuation; exact: the text, normalised. With `marker`, only
    the first line with text after its last occurrence counts; no marker, no answer. math: the content of the last box, see
    `maths.maths_answer`. Raises ConfigError for settings without effect.
    """
    if kind == "math":
        _without_which(which)
        return maths_answer(text, marker).text
    Verifier(kind, marker, which)
    scope = after_marker(text, marker)
    if scope is None:
        return None
    if kind == "exact":
        return normalise(scope) or None
    number = pick_number(scope, which)
    return None if number is None else number.text


def verify(
    gold: str,
    text: str,
    *,
    kind: Kind,
    timeout_s: float = 10.0,
    marker: str | None = None,
    which: Which = "last",
    percent: Percent = "loose",
) -> float:
    """1.0 when the answer in `text` equals `gold`, else 0.0; an answer that cannot be read is 0.0, in any thread or process.

    timeout_s: seconds that a comparison may take, > 0; after them the answer counts 0. `numeric` and `exact` are linear in the length of
    the text and never need it; `math` compares in a process of its own, started at the first call (seconds) and kept. Raises RewardError
    when `gold` itself is no answer of this kind, ConfigError for settings without effect.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s = {timeout_s}: more than 0 seconds")
    if kind == "math":
        _without_which(which)
        (score,) = MathVerifier(marker, percent, timeout_s, bench=_bench()).scores([(gold, text)])
        return _given(score)
    return _given(Verifier(kind, marker, which, percent).score(gold, text))


@lru_cache(maxsize=1)
def _bench() -> Bench:
    """The processes of this program's own calls."""
    return Bench()


def _given(score: Score) -> float:
    assert score.value is not None, "a verifier always applies"
    return score.value


def _without_which(which: Which) -> None:
    if which != "last":
        raise ConfigError("kind = 'math' reads the last box: `which` has no effect")


def pick_number(text: str, which: Which) -> Number | None:
    """The last or first number of a text."""
    numbers = find_numbers(text)
    return numbers[-1 if which == "last" else 0] if numbers else None


def normalise(text: str) -> str:
    """The form in which `exact` compares: NFC, single spaces, no markdown around, no full stop at the end; case kept."""
    plain = _undecorated(" ".join(unicodedata.normalize("NFC", text).split()))
    return _undecorated(plain.removesuffix(".").rstrip())


def _undecorated(text: str) -> str:
    """Without pairs of marks around it, outermost first; linear, whatever their number."""
    start, end = 0, len(text)
    while mark := next(
        (m for m in _DECORATION if end - start > 2 * len(m) and text.startswith(m, start) and text.endswith(m, start, end)), ""
    ):
        start, end = start + len(mark), end - len(mark)
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
    return text[start:end]


def _verdict(right: bool, extracted: str) -> Score:
    return Score(1.0 if right else 0.0, "" if right else "wrong", parsed=True, extracted=extracted)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
