"""Cost functions, in seconds: parameters are frozen values, functions are pure.

The simulator, the emulated engine, the automatic frontier and the draft length use the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """One decode step of n sequences with a mean context of c tokens takes base + n x (per_sequence + per_context x c)."""

    base: float
    """Seconds of a step without work (reading the weights)."""
    per_sequence: float
    """Seconds per sequence."""
    per_context: float = 0.0
    """Seconds per sequence and token of context (reading its KV cache)."""

    def step(self, sequences: float, context: float) -> float:
        """Seconds of one step; `context` is the mean context in tokens."""
        return self.base + sequences * (self.per_sequence + self.per_context * context)

    def span(self, sequences: int, context: float, steps: int) -> float:
        """Seconds of `steps` steps in a row of the same sequences; contexts grow by one token a step (closed form)."""
        growth = self.per_context * sequences * steps * (steps - 1) / 2
        return steps * self.step(sequences, context) + growth

    def steps_within(self, sequences: int, context: float, seconds: float) -> int:
        """Whole steps that fit into `seconds`: the inverse of `span`."""
        if seconds <= 0:
            return 0
        quadratic = self.per_context * sequences / 2
        linear = self.step(sequences, context) - quadratic
        if quadratic <= 0:
            steps = int(seconds / linear)
        else:
            steps = int((sqrt(linear * linear + 4 * quadratic * seconds) - linear) / (2 * quadratic))
        while self.span(sequences, context, steps + 1) <= seconds:
            steps += 1
        while steps > 0 and self.span(sequences, context, steps) > seconds:
            steps -= 1
        return steps


@dataclass(frozen=True, slots=True)
class LinearCost:
    """base + per_unit x units: prefill (tokens), update (tokens), publish (bytes)."""

    base: float
    per_unit: float

    def seconds(self, units: float) -> float:
        """Seconds for so many units."""
        return self.base + self.per_unit * units


@dataclass(frozen=True, slots=True)
class SpeculationCost:
    """One round of speculation: k draft steps, then one verification of k + 1 rows per sequence."""

    draft: DecodeCost
    target: DecodeCost
    per_row: float = 0.0
    """Seconds for each row that a verification scores beyond the first, per sequence."""

    def verify(self, sequences: float, context: float, draft_length: int) -> float:
        """Seconds of one verification of `draft_length` + 1 rows per sequence."""
        return self.target.step(sequences, context) + sequences * draft_length * self.per_row

    def round(self, sequences: float, context: float, draft_length: int) -> float:
        """Seconds of drafting and verifying; `draft_length` 0 is plain decoding."""
        if draft_length == 0:
            return self.target.step(sequences, context)
        return draft_length * self.draft.step(sequences, context) + self.verify(sequences, context, draft_length)


def acceptance_length(accepted: tuple[float, ...]) -> float:
    """Mean tokens per verification, 1..k+1: `accepted[i]` is the chance that draft position i is kept given all before it."""
    total, reach = 1.0, 1.0
    for chance in accepted:
        reach *= chance
        total += reach
    return total


def best_draft_length(cost: SpeculationCost, accepted: tuple[float, ...], sequences: float, context: float) -> int:
    """k in 0..len(accepted) with the most expected tokens per second; 0 = off. Ties go to the shorter draft."""
    rates = [acceptance_length(accepted[:k]) / cost.round(sequences, context, k) for k in range(len(accepted) + 1)]
    return rates.index(max(rates))
