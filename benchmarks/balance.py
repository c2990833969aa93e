"""How many slots bring rollout and training to a wanted balance on this machine: from two serial runs, by arithmetic.

A decode step of n sequences takes a + n b seconds. How many steps and how many tokens a round takes with so many slots follows from the
lengths alone, so the rollout times of two runs with different slots give a and b, and these the rollout time with any slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """(a, b) of a decode step, from rounds with few and with many slots. b may come out negative where the times are noise."""
    one, other = work(few.lengths, few.slots), work(many.lengths, many.slots)
    determinant = one.steps * other.tokens - other.steps * one.tokens
    a = (few.rollout * other.tokens - many.rollout * one.tokens) / determinant
    return a, (one.steps * many.rollout - other.steps * few.rollout) / determinant


def slots_for(balance: float, few: Serial, many: Serial, most: int = 64) -> int:
    """The slots whose rollout time is nearest to `balance` times the training time, in ratio."""
    a, b = fit(few, many)
    train = (few.train + many.train) / 2

    def _off(slots: int) -> float:
        todo = work(many.lengths, slots)
        return abs(log(max(1e-9, a * todo.steps + b * todo.tokens) / train / balance))

    return min(range(1, most + 1), key=_off)


def chosen(balances: Mapping[str, float], few: Serial, many: Serial) -> dict[str, int]:
    """Slots of every balance."""
    return {name: slots_for(balance, few, many) for name, balance in balances.items()}
