"""Which part of each lineage holds: a resume goes on from a checkpoint, and voids what its parent did after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paceline.runtime.ledger import LedgerReader, Lineage


@dataclass(frozen=True, slots=True)
class Life:
    """A lineage that the run, as it stands, goes back to."""

    lineage: Lineage
    last: float
    """Updates up to this one hold; infinity for the latest life."""

    def holds(self, update: int) -> bool:
        """Whether an update of this lineage belongs to the run as it stands."""
        return self.lineage.resume.update < update <= self.last


def surviving(lineages: Sequence[Lineage], decided: set[int]) -> list[Life]:
    """From the first life to the latest one that decided anything; empty when none did. `decided`: lineages that have records."""
    known = {lineage.id: lineage for lineage in lineages}
    at = max(decided, default=None)
    lives: list[Life] = []
    last = inf
    while at is not None:
        lineage = known[at]
        lives.append(Life(lineage, last))
        last, at = lineage.resume.update, lineage.parent
    return lives[::-1]


def lives_of(reader: LedgerReader) -> list[Life]:
    """The lives of a ledger."""
    lineages = reader.lineages()
    return surviving(lineages, {one.id for one in lineages if next(reader.records(one.id), None) is not None})
