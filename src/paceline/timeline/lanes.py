"""Rows for things that overlap in time: each takes the first row that is free."""

from __future__ import annotations

from heapq import heappop, heappush


class Lanes:
    """Hands out the smallest free number."""

    __slots__ = ("_free", "count")

    def __init__(self) -> None:
        self._free: list[int] = []
        self.count = 0
        """Numbers ever handed out: as many rows as are needed."""

    def take(self) -> int:
        """A number that nobody has."""
        if self._free:
            return heappop(self._free)
        self.count += 1
        return self.count - 1

    def free(self, lane: int) -> None:
        """Nobody has it any more."""
        heappush(self._free, lane)
