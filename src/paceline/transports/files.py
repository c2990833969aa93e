"""`FileStore`: versions as safetensors files in one directory that trainer and engines share (one machine, or a shared mount)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from paceline.durable import spare
from paceline.types.weights import WeightsRef


class FileStore:
    """One file per live version, and one of a version given up. The trainer writes a file whole or not at all, so a committed location is
    always readable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self, version: int) -> str:
        """The file that the trainer writes a version to."""
        return str(self._directory / f"version-{version}.safetensors")

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole, where the trainer wrote it."""
        return self.prepare(ref.version)

    def retire(self, version: int) -> None:
        """Give a version up; the next one is written over its file."""
        path = Path(self.prepare(version))
        with suppress(FileNotFoundError):
            path.replace(spare(path))
