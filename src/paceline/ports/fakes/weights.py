"""`MemoryStore`: a weight store that only remembers names, for fake trainers and engines."""

from __future__ import annotations

from paceline.types.weights import WeightsRef


class MemoryStore:
    """Locations are `memory:VERSION`. `retired` lists what was forgotten, in order."""

    def __init__(self) -> None:
        self.retired: list[int] = []

    def prepare(self, version: int) -> str:
        """The name under which a version will lie."""
        return f"memory:{version}"

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole."""
        return self.prepare(ref.version)

    def retire(self, version: int) -> None:
        """Forget a version."""
        self.retired.append(version)
