"""notices.jsonl: every warning and notice that a run showed, and the error that ended it, for whoever comes later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from paceline.durable import append_line, read_lines
from paceline.types.errors import StorageError
from paceline.types.progress import Progress


@dataclass(frozen=True, slots=True)
class Notice:
    """One line that was shown."""

    lineage: int
    time: str
    """Wall-clock time, ISO 8601."""
    update: int
    """Updates done by then."""
    message: str
    fatal: bool = False
    """It is the error that ended the run."""


class Notices:
    """Appends one line per notice. What it tells is never worth a run: a full disk only ends the telling."""

    def __init__(self, path: Path, lineage: int) -> None:
        self._path = path
        self.lineage = lineage
        """That of the notices to come."""
        self._update = 0

    def beside(self, show: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """Show progress as before, and keep its messages."""

        def _shown(progress: Progress) -> None:
            self._update = progress.update
            if progress.message:
                self.add(progress.message)
            show(progress)

        return _shown

    def add(self, message: str, fatal: bool = False) -> None:
        """Keep one message."""
        notice = Notice(self.lineage, datetime.now(UTC).isoformat(timespec="seconds"), self._update, message, fatal)
        with contextlib.suppress(StorageError):
            append_line(self._path, json.dumps(asdict(notice)).encode())


def read(path: Path) -> list[Notice]:
    """All notices in order; empty where none were kept. A line that is none is skipped."""
    found: list[Notice] = []
    for _, line in read_lines(path) if path.is_file() else ():
        with contextlib.suppress(TypeError):
            found.append(Notice(**line))
    return found
