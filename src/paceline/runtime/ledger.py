"""The ledger: every event and command of a run in `ledger.sqlite`, in the order in which the machine saw them.

Order of durability: the payload that a command relies on, then the ledger row, then the command is performed. Rows gather in one
transaction until `commit`, which returns when they are on disk; the driver calls it before it performs anything.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from paceline.core.codec import dumps, loads
from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.schedule import Resume, Schedule
from paceline.types.errors import CheckpointError

Direction = Literal["event", "command"]

TABLES = """
CREATE TABLE IF NOT EXISTS lineage (
    id INTEGER PRIMARY KEY, parent INTEGER, schedule TEXT NOT NULL, resume TEXT NOT NULL, started TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    sequence INTEGER PRIMARY KEY, lineage INTEGER NOT NULL REFERENCES lineage, now REAL NOT NULL,
    direction TEXT NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Lineage:
    """One life of a run: from its start, or from the checkpoint of `parent` that a resume restored."""

    id: int
    parent: int | None
    schedule: Schedule
    resume: Resume
    started: str
    """Wall-clock time, ISO 8601."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row. `now` is in seconds since the lineage started."""

    sequence: int
    lineage: int
    now: float
    direction: Direction
    value: Event | Command


class Ledger:
    """The one writer. Not thread-safe: the driver's event loop owns it."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(TABLES)
        self._lineage = 0
        self._rows: list[tuple[int, float, Direction, str, str]] = []

    def open_lineage(self, schedule: Schedule, resume: Resume, parent: int | None, started: str) -> int:
        """Start a lineage; later rows belong to it. Durable at return."""
        cursor = self._database.execute(
            "INSERT INTO lineage (parent, schedule, resume, started) VALUES (?, ?, ?, ?)",
            (parent, json.dumps(asdict(schedule)), json.dumps(asdict(resume)), started),
        )
        assert cursor.lastrowid is not None
        self._lineage = cursor.lastrowid
        return self._lineage

    def append(self, direction: Direction, now: float, value: Event | Command) -> None:
        """Add a row to the open transaction."""
        self._rows.append((self._lineage, now, direction, type(value).__name__, dumps(value)))

    def commit(self) -> None:
        """Make every row appended so far durable."""
        if not self._rows:
            return
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO records (lineage, now, direction, kind, json) VALUES (?, ?, ?, ?, ?)", self._rows)
        self._database.execute("COMMIT")
        self._rows.clear()

    def close(self) -> None:
        """Commit and release the file."""
        self.commit()
        self._database.close()


def unused(path: Path) -> bool:
    """Whether nothing was ever decided under a ledger: it is absent, or a run ended while it was still starting."""
    if not path.exists():
        return True
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return database.execute("SELECT 1 FROM records LIMIT 1").fetchone() is None
    except sqlite3.DatabaseError:
        return False
    finally:
        database.close()


class LedgerReader:
    """Reads a ledger, also while a run writes it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise CheckpointError(f"{path}: there is no ledger here")
        self._database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def lineages(self) -> list[Lineage]:
        """Every lineage, oldest first."""
        rows = self._database.execute("SELECT id, parent, schedule, resume, started FROM lineage ORDER BY id")
        return [Lineage(row[0], row[1], _schedule(row[2]), _resume(row[3]), row[4]) for row in rows]

    def records(self, lineage: int) -> Iterator[Record]:
        """The rows of one lineage in order."""
        query = "SELECT sequence, lineage, now, direction, json FROM records WHERE lineage = ? ORDER BY sequence"
        for sequence, owner, now, direction, text in self._database.execute(query, (lineage,)):
            yield Record(sequence, owner, now, direction, loads(text))

    def close(self) -> None:
        """Release the file."""
        self._database.close()


def _schedule(text: str) -> Schedule:
    fields = json.loads(text)
    fields["deadlines"] = tuple((kind, seconds) for kind, seconds in fields["deadlines"])
    return Schedule(**fields)


def _resume(text: str) -> Resume:
    fields = json.loads(text)
    return Resume(**{**fields, "pending": tuple(fields["pending"])})
