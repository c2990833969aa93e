"""`FileStore`: versions as safetensors files in one directory that trainer and engines share (one machine, or a shared mount)."""

from __future__ import annotations

from pathlib import Path

from paceline.types.weights import WeightsRef


class FileStore:
    """One file per live version. The trainer writes a file whole or not at all, so a committed location is always readable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._committed: dict[int, WeightsRef] = {}

    def prepare(self, version: int) -> str:
        """The file that the trainer writes a version to."""
        return str(self._directory / f"version-{version}.safetensors")

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole: from now on `location` finds it."""
        self._committed[ref.version] = ref
        return self.prepare(ref.version)

    def retire(self, version: int) -> None:
        """Delete a version. An engine that mapped the file keeps its pages until it lets go."""
        self._committed.pop(version, None)
        Path(self.prepare(version)).unlink(missing_ok=True)

    def location(self, version: int) -> str:
        """Where a committed version lies; KeyError naming the versions held otherwise."""
        if version not in self._committed:
            raise KeyError(f"version {version} is not in the store; it holds {sorted(self._committed)}")
        return self.prepare(version)
