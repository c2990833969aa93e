"""Audit of a recorded run: the rules over each lineage, and whether its events give its commands again."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

from paceline.core.commands import Checkpoint, Command, Stop
from paceline.core.events import Event
from paceline.core.machine import Machine
from paceline.core.rules import Rules
from paceline.core.schedule import Resume
from paceline.runtime.ledger import LedgerReader, Lineage, Record
from paceline.types.results import AuditReport


def audit(ledger: Path) -> AuditReport:
    """Check every lineage of a ledger, one record at a time: the memory that it takes does not grow with the run.

    Raises CheckpointError when there is none, RecordError or LedgerError for what cannot be read.
    """
    reader = LedgerReader(ledger)
    try:
        lineages = reader.lineages()
        starts = {lineage.resume for lineage in lineages}
        events = commands = 0
        violations = [f"ledger: {tear}" for tear in reader.tears()]
        notes: list[str] = []
        saved: dict[int, set[Resume]] = {}
        for lineage in lineages:
            read = _Read(lineage, starts)
            for record in reader.records(lineage.id):
                read.feed(record)
            events, commands = events + read.events, commands + read.commands
            if not read.whole:
                notes.append(
                    f"lineage {lineage.id} has no end (killed, stopped by an error, or still running): only what it holds was checked"
                )
            violations += [f"lineage {lineage.id}: {fault}" for fault in (*_continues(lineage, saved), *read.close())]
            saved[lineage.id] = read.saved
    finally:
        reader.close()
    return AuditReport(events, commands, len(lineages), tuple(violations), tuple(notes))


def _continues(lineage: Lineage, saved: Mapping[int, set[Resume]]) -> list[str]:
    """Rule 1 across lineages: one starts where a checkpoint of its parent stood, or at the beginning."""
    allowed = {Resume()} if lineage.parent is None else saved.get(lineage.parent, set())
    if lineage.resume in allowed:
        return []
    origin = "it has no parent" if lineage.parent is None else f"no checkpoint of lineage {lineage.parent} stood there"
    return [f"rule 1: it starts at {lineage.resume}, but {origin}"]


class _Read:
    """One lineage, record by record: the rules, the replay, and what is counted. `starts`: where any lineage begins."""

    def __init__(self, lineage: Lineage, starts: Collection[Resume]) -> None:
        self._rules = Rules(lineage.schedule, lineage.resume)
        self._replay = Replay(lineage)
        self._parted = ""
        """Where the replay first was another."""
        self._starts = starts
        self.events = self.commands = 0
        self.whole = False
        """Whether it came to a good end."""
        self.saved: set[Resume] = set()
        """Those of `starts` at which it wrote a checkpoint."""

    def feed(self, record: Record) -> None:
        """Take the next record in."""
        value = record.value
        self.events += record.direction == "event"
        self.commands += record.direction == "command"
        self.whole = isinstance(value, Stop) and value.ok
        if isinstance(value, Checkpoint) and value.resume in self._starts:
            self.saved.add(value.resume)
        self._rules.feed(value, record.now)
        self._parted = self._parted or self._replay.feed(record)

    def close(self) -> list[str]:
        """Everything that does not hold. What a lineage without an end leaves open is no fault."""
        if self.whole:
            self._rules.close()
            self._parted = self._parted or self._replay.left()
        return [*map(str, self._rules.found), *([f"replay: {self._parted}"] if self._parted else [])]


class Replay:
    """A machine that follows the records of a lineage: after each event exactly its commands, at its time.

    `feed` every record in order; the first difference ends it, since nothing after that can be compared.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.machine = Machine(lineage.schedule, lineage.resume)
        self._due = deque[Command]()
        self._now = 0.0

    def feed(self, record: Record) -> str:
        """Where the record parts from what the machine says; "" when it does not."""
        if record.direction == "event":
            return self._event(record)
        expected = self._due.popleft() if self._due else "nothing"
        if record.value != expected:
            return f"row {record.sequence}: recorded {record.value}, replayed {expected}"
        return "" if record.now == self._now else f"row {record.sequence}: recorded at {record.now} s, its event at {self._now} s"

    def _event(self, record: Record) -> str:
        if self._due:
            return f"row {record.sequence}: recorded {record.value}, replayed {self._due[0]}"
        self._now = record.now
        try:
            self._due.extend(self.machine.step(cast(Event, record.value), record.now))
        except (AssertionError, LookupError) as error:  # such events cannot have reached the machine in this order
            return f"row {record.sequence}: the machine does not take this event: {type(error).__name__} {error}"
        return ""

    def left(self) -> str:
        """What the machine has said and nobody recorded; "" when nothing."""
        return f"at the end: recorded nothing, replayed {self._due[0]}" if self._due else ""
