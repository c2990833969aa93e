"""The ledger: every event and command of a run in `ledger.sqlite`, in the order in which the machine saw them.

Order of durability: the payload that a command relies on, then the ledger row, then the command is performed. Rows gather in one
transaction until `commit`, which returns when they are on disk; the driver calls it before it performs anything.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import quote

from paceline.core.codec import COMMANDS, dumps, loads
from paceline.core.commands import Command
from paceline.core.events import CheckpointDone, Event
from paceline.core.schedule import Resume, Schedule
from paceline.types.errors import CheckpointError, LedgerError, RecordError

Direction = Literal["event", "command"]

TABLES = """
CREATE TABLE IF NOT EXISTS lineage (
    id INTEGER PRIMARY KEY, parent INTEGER, schedule TEXT NOT NULL, resume TEXT NOT NULL, started TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, lineage INTEGER NOT NULL REFERENCES lineage, now REAL NOT NULL,
    direction TEXT NOT NULL, kind TEXT NOT NULL, json TEXT NOT NULL);
"""
CACHE_KIB = 128
"""Pages that the writer keeps in memory. It appends and never reads: the 2 MB that sqlite would take fill up and are of no use."""
STATEMENTS = 16
"""Compiled ones that are kept: there is one per number of rows, of up to some 50 KB."""
INSERT = "INSERT INTO records (lineage, now, direction, kind, json) VALUES "
ROW = "(?, ?, ?, ?, ?)"
ROWS_AT_ONCE = 199
"""Rows of one statement. Around each statement the interpreter is given away, and a busy event loop keeps it for 5 ms; an sqlite of before
2020 takes no more than 999 values."""


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
    """The one writer. One thread at a time: the driver owns it, and lets another thread commit only while it waits for that."""

    def __init__(self, path: Path) -> None:
        """Open for writing, created if absent. Raises LedgerError, as every method that touches the file."""
        self._path = path
        with _named(path):
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.executescript(TABLES)
        self._file = _which(path)
        self._lineage = 0
        self._rows: list[tuple[int, float, Direction, str, str]] = []

    def open_lineage(self, schedule: Schedule, resume: Resume, parent: int | None, started: str) -> int:
        """Start a lineage; later rows belong to it. Durable at return. Raises CheckpointError for a parent that is not in here."""
        with _named(self._path):
            if parent is not None and not self._database.execute("SELECT 1 FROM lineage WHERE id = ?", (parent,)).fetchone():
                raise CheckpointError(f"{self._path}: lineage {parent}, which wrote the checkpoint, is not in it: it was exchanged or cut")
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
        """Make every row appended so far durable: all of them or, when it raises, none; they are kept for the next call.

        Raises LedgerError, too, where the file is no longer the one that was opened: whoever deleted a run's directory, and perhaps
        began another run in its place, must not have this one go on in it.
        """
        if not self._rows:
            return
        if _which(self._path) != self._file:
            raise LedgerError(f"{self._path}: was deleted or exchanged while the run went on")
        with _named(self._path):
            try:
                self._database.execute("BEGIN")
                for first in range(0, len(self._rows), ROWS_AT_ONCE):
                    rows = self._rows[first : first + ROWS_AT_ONCE]
                    self._database.execute(INSERT + ", ".join([ROW] * len(rows)), [value for row in rows for value in row])
                self._database.execute("COMMIT")
            except sqlite3.Error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        self._rows.clear()

    def close(self) -> None:
        """Commit and release the file."""
        try:
            self.commit()
        finally:
            self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release the file. Where an error is on its way nothing is committed: that was tried, and must not hide it."""
        if kind is None:
            self.close()
        else:
            self._database.close()


def unused(path: Path) -> bool:
    """Whether nothing was ever decided under a ledger: it is absent, or a run ended while it was still starting."""
    if not path.exists():
        return True
    try:
        with closing(_read_only(path)) as database:
            return database.execute("SELECT 1 FROM records LIMIT 1").fetchone() is None
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def last_checkpoint(path: Path) -> int | None:
    """The update of the last checkpoint that a ledger says was written; None where it says of none, or there is no ledger."""
    if not path.exists():
        return None
    with _named(path), closing(_read_only(path)) as database:
        written = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone()  # a crash may come before that
        query = "SELECT json FROM records WHERE kind = ? ORDER BY sequence DESC LIMIT 1"
        row = database.execute(query, (CheckpointDone.__name__,)).fetchone() if written else None
    done = None if row is None else loads(row[0])
    return done.update if isinstance(done, CheckpointDone) else None


class LedgerReader:
    """Reads a ledger, also while a run writes it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise CheckpointError(f"{path}: there is no ledger here")
        self._path = path
        with _named(path):
            self._database = _read_only(path)
            self._database.execute("BEGIN")  # one moment of it, whatever is written meanwhile

    def lineages(self) -> list[Lineage]:
        """Every lineage, oldest first. Raises LedgerError, as every method, for a file that cannot be read, and RecordError for a lineage
        that another version of paceline wrote."""
        with _named(self._path):
            rows = self._database.execute("SELECT id, parent, schedule, resume, started FROM lineage ORDER BY id").fetchall()
        try:
            return [Lineage(row[0], row[1], _schedule(row[2]), _resume(row[3]), row[4]) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{self._path}: a schedule that this version of paceline does not know: {error}") from error

    def records(self, lineage: int) -> Iterator[Record]:
        """The rows of one lineage in order. Raises RecordError for one that cannot be read, or is not what its columns say."""
        query = "SELECT sequence, lineage, now, direction, kind, json FROM records WHERE lineage = ? ORDER BY sequence"
        with _named(self._path):
            for sequence, owner, now, direction, kind, text in self._database.execute(query, (lineage,)):
                try:
                    value = loads(text)
                except RecordError as error:
                    raise RecordError(f"{self._path}, row {sequence}: {error}") from error
                found = ("command" if type(value).__name__ in COMMANDS else "event", type(value).__name__)
                if (direction, kind) != found:
                    raise RecordError(f"{self._path}, row {sequence}: it stands as {direction} {kind} and holds {' '.join(found)}")
                yield Record(sequence, owner, now, direction, value)

    def tears(self) -> Iterator[str]:
        """What the one writer cannot have left, in words: rows are numbered from 1 without gaps, lineage after lineage."""
        known = {lineage.id for lineage in self.lineages()}
        before, owner = 0, 0
        with _named(self._path):
            for sequence, lineage in self._database.execute("SELECT sequence, lineage FROM records ORDER BY sequence"):
                if sequence != before + 1:
                    yield f"rows {before + 1} to {sequence - 1} are missing"
                if lineage != owner and lineage not in known:
                    yield f"rows from {sequence} on belong to lineage {lineage}, which is not there"
                if lineage < owner:
                    yield f"row {sequence} of lineage {lineage} follows rows of lineage {owner}"
                before, owner = sequence, lineage
            written = self._database.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'records'").fetchone()[0] or 0
        if written > before:
            yield f"rows {before + 1} to {written} are missing"

    def close(self) -> None:
        """Release the file."""
        self._database.close()


def _which(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one of the same name; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read_only(path: Path) -> sqlite3.Connection:
    """A connection that reads, beside a writer too. For that sqlite keeps two files beside the ledger. Where it may not (another user's
    run, an archive), and no writer has left records in them, the ledger is read as it lies there: nobody can be writing."""
    name, log = f"file:{quote(os.fsencode(path.absolute()))}", path.with_name(f"{path.name}-wal")
    database = sqlite3.connect(f"{name}?mode=ro", uri=True, isolation_level=None)
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        database.close()
        forbidden = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)  # the kind of the error
        if not forbidden or (log.exists() and log.stat().st_size):
            raise
        return sqlite3.connect(f"{name}?immutable=1", uri=True, isolation_level=None)
    return database


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The database's errors as LedgerError with the file's name."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged schema may not be text
        raise LedgerError(f"{path}: {error}") from error


def _schedule(text: str) -> Schedule:
    fields = json.loads(text)
    fields["deadlines"] = tuple((kind, seconds) for kind, seconds in fields["deadlines"])
    return Schedule(**fields)


def _resume(text: str) -> Resume:
    fields = json.loads(text)
    return Resume(**{**fields, "pending": tuple(fields["pending"])})
