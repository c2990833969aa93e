"""`MemoryStore`: a weight store that only remembers names, for fake trainers and engines."""

from __future__ import annotations

from paceline.types.weights import WeightsRef


class MemoryStore:
    """Locations are `memory:VERSION`. `retired` lists what was forgotten, in order."""

    def __init__(self) -> None:
        self._committed: dict[int, WeightsRef] = {}
        self.retired: list[int] = []

    def prepare(self, version: int) -> str:
        """The name under which a version will lie."""
        return f"memory:{version}"

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole."""
        self._committed[ref.version] = ref
        return self.prepare(ref.version)

    def retire(self, version: int) -> None:
        """Forget a version."""
        self._committed.pop(version, None)
        self.retired.append(version)

    def location(self, version: int) -> str:
        """The name of a committed version; KeyError naming the versions held otherwise."""
        if version not in self._committed:
            raise KeyError(f"version {version} is not in the store; it holds {sorted(self._committed)}")
        return self.prepare(version)
