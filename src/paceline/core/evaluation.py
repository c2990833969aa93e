"""From judged answers to accuracies, intervals and pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from paceline.core.intervals import clustered, wilson
from paceline.core.passk import pass_at_k
from paceline.types.results import Answers, EvalResult, Share, Verdict


def summarize(answers: Sequence[Answers], *, model: str = "") -> EvalResult:
    """Scores over problems. Greedy accuracy has Wilson's interval over problems; shares of several answers per problem have the clustered
    one (`core.intervals.clustered`). Accuracy given a parsable answer leaves out what could not be read, and is None where no reward
    says so. pass@k for k = 1, 2, 4, ... up to the fewest samples of any problem.
    """
    greedy = [tuple(filter(None, [a.greedy])) for a in answers]
    sampled = [a.samples for a in answers]
    both = [(*one, *more) for one, more in zip(greedy, sampled, strict=True)]
    return EvalResult(
        problems=len(answers),
        greedy=_accuracy(greedy),
        sampled=_accuracy(sampled),
        greedy_if_parsed=_accuracy(_readable(greedy)),
        sampled_if_parsed=_accuracy(_readable(sampled)),
        parsed=_share([[v.parsed for v in verdicts if v.parsed is not None] for verdicts in both]),
        pass_at=_pass_at(sampled),
        model=model,
    )


def _pass_at(sampled: Sequence[Sequence[Verdict]]) -> dict[int, float]:
    counts = [(len(verdicts), sum(v.correct for v in verdicts)) for verdicts in sampled]
    fewest = min((n for n, _ in counts), default=0)
    return {k: fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts) for k in _powers(fewest)}


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [2**power for power in range(most.bit_length())]


def _readable(problems: Sequence[Sequence[Verdict]]) -> list[list[Verdict]]:
    return [[v for v in verdicts if v.parsed] for verdicts in problems]


def _accuracy(problems: Sequence[Sequence[Verdict]]) -> Share | None:
    return _share([[v.correct for v in verdicts] for verdicts in problems])


def _share(problems: Sequence[Sequence[bool]]) -> Share | None:
    """Share of True over all answers; with more than one per problem the interval respects that they belong together."""
    asked = [answers for answers in problems if answers]
    count, right = sum(map(len, asked)), sum(map(sum, asked))
    if not count:
        return None
    low, high = wilson(right, count) if count == len(asked) else clustered([(sum(a), len(a)) for a in asked])
    return Share(right / count, low, high, count)
