"""Which part of each lineage holds: a resume goes on from a checkpoint, and voids what was done after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paceline.runtime.ledger import LedgerReader, Lineage


@dataclass(frozen=True, slots=True)
class Life:
    """A lineage, and how much of it the run, as it stands, goes back to."""

    lineage: Lineage
    last: float
    """Updates up to this one hold; infinity for the latest life."""

    def holds(self, update: int) -> bool:
        """Whether an update of this lineage belongs to the run as it stands."""
        return self.lineage.resume.update < update <= self.last


def surviving(lineages: Sequence[Lineage], decided: set[int]) -> list[Life]:
    """Every lineage that decided anything, the oldest first; empty when none did. `decided`: lineages that have records.

    The latest one, its parent and so on hold up to where the next began. Of the others, which were killed before their first checkpoint,
    nothing holds, but their time was spent.
    """
    known = {lineage.id: lineage for lineage in lineages}
    at = max(decided, default=None)
    last, holds = inf, dict[int, float]()
    while at is not None:
        holds[at] = last
        last, at = known[at].resume.update, known[at].parent
    return [Life(known[number], holds.get(number, known[number].resume.update)) for number in sorted(decided | holds.keys())]


def lives_of(reader: LedgerReader) -> list[Life]:
    """The lives of a ledger."""
    lineages = reader.lineages()
    return surviving(lineages, {one.id for one in lineages if next(reader.records(one.id), None) is not None})
