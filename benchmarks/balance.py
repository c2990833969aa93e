"""Which slots and lengths bring rollout and training to a wanted balance on this machine: from two serial runs, by arithmetic.

A decode step of n sequences takes a + n b seconds. How many steps and how many tokens a round takes with so many slots follows from the
lengths alone, so the rollout times of two runs with different slots give a and b, and these the rollout time with any slots and lengths.
Training takes as long as its tokens are many: those that were sampled, and every prompt once for its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

from paceline.core.frontier import ends


@dataclass(frozen=True)
class Work:
    """Decode steps of a round, and the tokens that they sample."""

    steps: int
    tokens: int


@dataclass(frozen=True)
class Serial:
    """One serial round as it was measured, with the lengths of its samples in order of submission."""

    slots: int
    lengths: Sequence[int]
    rollout: float
    train: float


def work(lengths: Sequence[int], slots: int) -> Work:
    """What an engine does that fills a free slot with the next sample at once."""
    steps = max((step for step, _, _ in ends([(tokens,) for tokens in lengths], slots, len(lengths))), default=0)
    return Work(steps, sum(lengths))


def fit(few: Serial, many: Serial) -> tuple[float, float]:
    """(a, b) of a decode step, from rounds with different slots. b may come out negative where the times are noise."""
    one, other = work(few.lengths, few.slots), work(many.lengths, many.slots)
    determinant = one.steps * other.tokens - other.steps * one.tokens
    a = (few.rollout * other.tokens - many.rollout * one.tokens) / determinant
    return a, (one.steps * many.rollout - other.steps * few.rollout) / determinant


@dataclass(frozen=True)
class Choice:
    """What a balance is made of."""

    slots: int
    median: int
    """Of the lengths."""


def chosen(
    balance: float, one: Serial, other: Serial, lengths: Callable[[int], Sequence[int]], prompts: int, near: Sequence[int]
) -> Choice:
    """Slots and median length whose rollout time is nearest to `balance` times the training time, in ratio.

    `lengths(median)`: of one round; `prompts`: prompt tokens of one round; `near`: medians to choose from, the first wins among equals.
    """
    a, b = fit(one, other)
    runs = (one, other)
    per_token = sum(run.train for run in runs) / sum(prompts + sum(run.lengths) for run in runs)

    def _off(choice: Choice) -> float:
        todo = work(lengths(choice.median), choice.slots)
        ratio = (a * todo.steps + b * todo.tokens) / (per_token * (prompts + todo.tokens))
        return round(abs(log(max(1e-9, ratio) / balance)), 2)

    return min((Choice(slots, median) for median in near for slots in range(1, 65)), key=_off)
