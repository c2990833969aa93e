"""Weight versions as files in one directory that trainer and engines share."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.models.store import sync
from paceline.types.errors import ModelError
from paceline.types.weights import WeightsRef


class LocalWeightStore:
    """`WeightStore` for the controller and `Locates` for receivers, over a directory on a file system they share.

    A version is one safetensors file and a small record that names it. The record is written last and atomically, so a
    version is whole or unknown at every moment; committing a version again (made anew after a resume) replaces it.
    """

    def __init__(self, directory: str | Path) -> None:
        """The directory is created; versions that lie in it already are held."""
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    def prepare(self, version: int) -> str:
        """A path for the trainer to write to; whatever an unfinished publish left there is removed."""
        path = self._incoming(version)
        path.unlink(missing_ok=True)
        return str(path)

    def commit(self, ref: WeightsRef) -> str:
        """Keep what lies at the prepared path as this version; ModelError when nothing does."""
        incoming = self._incoming(ref.version)
        if not incoming.is_file():
            raise ModelError(f"version {ref.version} cannot be committed: nothing was written to {incoming}")
        before = self._record(ref.version)
        name = f"version-{ref.version}-{ref.lineage}-{ref.fingerprint[:12]}.safetensors"
        size = incoming.stat().st_size
        os.replace(incoming, self._directory / name)
        aside = self._directory / f".version-{ref.version}.json.tmp"
        aside.write_text(json.dumps({**asdict(ref), "file": name, "bytes": size}))
        sync(aside)
        os.replace(aside, self._record_path(ref.version))
        sync(self._directory)
        if before is not None and before["file"] != name:
            (self._directory / before["file"]).unlink(missing_ok=True)
        return str(self._directory / name)

    def retire(self, version: int) -> None:
        """Delete a version; one that is not held is no error, so that a repeated command does no harm."""
        record = self._record(version)
        self._record_path(version).unlink(missing_ok=True)
        self._incoming(version).unlink(missing_ok=True)
        if record is not None:
            (self._directory / record["file"]).unlink(missing_ok=True)

    def location(self, version: int) -> str:
        """Path of a committed version; KeyError names those held, ModelError says that its file is missing or cut short."""
        record = self._record(version)
        if record is None:
            raise KeyError(f"version {version} is not in {self._directory}; held: {self.versions()}")
        path = self._directory / record["file"]
        size = path.stat().st_size if path.is_file() else None
        if size != record["bytes"]:
            found = "missing" if size is None else f"{size} bytes long instead of {record['bytes']}"
            raise ModelError(f"version {version} is damaged: {path} is {found}")
        return str(path)

    def reference(self, version: int) -> WeightsRef:
        """The reference under which a version was committed; KeyError names those held."""
        record = self._record(version)
        if record is None:
            raise KeyError(f"version {version} is not in {self._directory}; held: {self.versions()}")
        return WeightsRef(**{name: record[name] for name in ("version", "lineage", "fingerprint", "kind", "base")})

    def versions(self) -> list[int]:
        """Versions held, ascending."""
        return sorted(int(path.stem.removeprefix("version-")) for path in self._directory.glob("version-*.json"))

    def _incoming(self, version: int) -> Path:
        return self._directory / f"incoming-{version}.safetensors"

    def _record_path(self, version: int) -> Path:
        return self._directory / f"version-{version}.json"

    def _record(self, version: int) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads(self._record_path(version).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ModelError(f"version {version} is damaged: {self._record_path(version)} is not a record ({error})") from error
        return record
