"""A part of a lineage's time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from paceline.timeline.story import Item, Level, Mark, Staleness


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds since the first record that are drawn."""

    start: float = -inf
    end: float = inf

    def cut(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items of which any part lies within. A level lasts until the next, so those before come, too."""
        for item in items:
            if isinstance(item, Level):
                if item.time <= self.end:
                    yield replace(item, time=max(item.time, self.start))
            elif isinstance(item, Mark | Staleness):
                if self.start <= item.time <= self.end:
                    yield item
            elif item.end >= self.start and item.start <= self.end:
                yield item
