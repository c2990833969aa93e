"""From judged answers to accuracies, intervals and pass@k."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.core.intervals import clustered, wilson
from paceline.core.passk import pass_at_k
from paceline.types.results import Answers, EvalResult, Share, Verdict


def summarize(answers: Sequence[Answers], *, excluded: int = 0, model: str = "") -> EvalResult:
    """Scores over problems. Greedy accuracy has Wilson's interval over problems; shares of several answers per problem have the clustered
    one (`core.intervals.clustered`). Accuracy given a parsable answer leaves out what could not be read, and is None where no reward
    says so. pass@k for k = 1, 2, 4, ... up to the fewest samples of any problem.
    """
    greedy = [[a.greedy] if a.greedy else [] for a in answers]
    sampled = [a.samples for a in answers]
    both = [[*g, *s] for g, s in zip(greedy, sampled, strict=True)]
    fewest = min((len(s) for s in sampled), default=0)
    ks = [k for k in (2**power for power in range(fewest.bit_length())) if k <= fewest]
    pass_at = {k: sum(pass_at_k(len(s), sum(v.correct for v in s), k) for s in sampled) / len(sampled) for k in ks}
    return EvalResult(
        problems=len(answers),
        greedy=_share([v.correct for v in vs] for vs in greedy),
        sampled=_share([v.correct for v in vs] for vs in sampled),
        greedy_if_parsed=_share(_readable(vs) for vs in greedy),
        sampled_if_parsed=_share(_readable(vs) for vs in sampled),
        parsed=_share([v.parsed for v in vs if v.parsed is not None] for vs in both),
        pass_at=pass_at,
        excluded=excluded,
        model=model,
    )


def _readable(verdicts: Iterable[Verdict]) -> list[bool]:
    return [v.correct for v in verdicts if v.parsed]


def _share(problems: Iterable[Sequence[bool]]) -> Share | None:
    """Share of True over all answers; with more than one per problem the interval respects that they belong together."""
    asked = [answers for answers in problems if answers]
    count, right = sum(map(len, asked)), sum(map(sum, asked))
    if not count:
        return None
    low, high = wilson(right, count) if count == len(asked) else clustered([(sum(a), len(a)) for a in asked])
    return Share(right / count, low, high, count)
