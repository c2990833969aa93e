"""Which policy versions exist, how many updates each contains, and who still needs them."""

from __future__ import annotations


class Versions:
    """Counts the users of every version (instances, unconsumed pinned groups); a version nobody needs may leave the store."""

    __slots__ = ("_idle", "_told", "_updates", "_users", "available", "newest")

    def __init__(self, version: int, bound: int) -> None:
        """bound: largest staleness at consumption, in versions."""
        self._told = bound + 2
        self.newest = version
        """Newest version whose publish was commanded: what staleness is measured against."""
        self.available = version - 1
        """Newest version that lies in the store."""
        self._updates: dict[int, int] = {}
        """Updates contained in each version that a group may be consumed with: mixed tokens may name one that nobody needs any more."""
        self._users: dict[int, int] = {}
        self._idle: set[int] = set()

    def publish(self, version: int, updates: int) -> None:
        """A publish is commanded."""
        self.newest = version
        self._updates[version] = updates
        self._updates.pop(version - self._told, None)
        self._users[version] = 0
        self._idle.add(version)

    def contained(self, version: int) -> int:
        """Updates contained in a version; 0 for one older than the bound, whose consumption is a fault that the rules tell."""
        return self._updates.get(version, 0)

    def arrive(self, version: int) -> None:
        """A publish is done."""
        assert version == self.newest > self.available, (version, self.newest, self.available)
        self.available = version

    def stored(self, version: int) -> bool:
        """Whether a version lies in the store: published, and not retired."""
        return version <= self.available and version in self._users

    def hold(self, version: int) -> None:
        """One more user."""
        self._users[version] += 1

    def release(self, version: int) -> None:
        """One user less."""
        left = self._users[version] - 1
        assert left >= 0, version
        self._users[version] = left
        if not left:
            self._idle.add(version)

    def retired(self) -> list[int]:
        """Versions that nobody needs any more, forgotten by this call."""
        if not self._idle or min(self._idle) >= self.available:
            return []
        old = {v for v in self._idle if v < self.available}
        self._idle -= old
        gone = sorted(v for v in old if not self._users[v])
        for version in gone:
            del self._users[version]
        return gone
