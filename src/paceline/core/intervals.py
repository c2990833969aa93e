"""Confidence intervals of measured shares."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


def wilson(successes: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927), for independent trials; (0, 1) without trials.

    Raises ValueError unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"an interval needs 0 <= successes <= trials, not {successes} of {trials}")
    if trials == 0:
        return 0.0, 1.0
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered(counts: Sequence[tuple[int, int]], z: float = Z95) -> tuple[float, float]:
    """Interval of the share of successes over all trials, given (successes, trials) per problem; trials >= 1.

    Answers to one problem are not independent. The variance of the share is therefore taken between problems (the ratio estimator of
    cluster sampling), and Wilson's interval is drawn at the number of independent trials that would have that variance (Kish's
    effective size), kept between the number of problems and the number of trials. Raises ValueError for impossible counts.
    """
    bad = [pair for pair in counts if not 0 <= pair[0] <= pair[1] or pair[1] < 1]
    if bad:
        raise ValueError(f"every problem needs 0 <= successes <= trials and trials >= 1, not {bad[0]}")
    if not counts:
        return 0.0, 1.0
    trials = sum(n for _, n in counts)
    share = sum(c for c, _ in counts) / trials
    effective = _effective(counts, trials, share)
    return wilson(share * effective, effective, z)


def _effective(counts: Sequence[tuple[int, int]], trials: int, share: float) -> float:
    """Independent trials that would have the variance of the share seen between problems (divisor n - 1)."""
    problems = len(counts)
    between = fsum((c - n * share) ** 2 for c, n in counts) * problems / (max(problems - 1, 1) * trials * trials)
    return min(max(share * (1 - share) / between, problems), trials) if between > 0 else problems
