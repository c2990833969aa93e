"""Audit of a recorded run: the rules over each lineage, and whether its events give its commands again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from paceline.core.commands import Checkpoint, Command, Stop
from paceline.core.events import Event
from paceline.core.machine import Machine
from paceline.core.replay import audit as audit_records
from paceline.core.schedule import Resume
from paceline.runtime.ledger import LedgerReader, Lineage, Record
from paceline.types.results import AuditReport


def audit(ledger: Path) -> AuditReport:
    """Check every lineage of a ledger. Raises CheckpointError when there is none, RecordError or LedgerError for what cannot be read."""
    reader = LedgerReader(ledger)
    try:
        lineages = reader.lineages()
        events = commands = 0
        violations = [f"ledger: {tear}" for tear in reader.tears()]
        notes: list[str] = []
        saved: dict[int, set[Resume]] = {}
        for lineage in lineages:
            records = list(reader.records(lineage.id))
            events += sum(record.direction == "event" for record in records)
            commands += sum(record.direction == "command" for record in records)
            whole = _ended(records)
            if not whole:
                notes.append(
                    f"lineage {lineage.id} has no end (killed, stopped by an error, or still running): only what it holds was checked"
                )
            faults = (*_continues(lineage, saved), *_rules(lineage, records, whole), *_replayed(lineage, records, whole))
            violations += [f"lineage {lineage.id}: {fault}" for fault in faults]
            saved[lineage.id] = {record.value.resume for record in records if isinstance(record.value, Checkpoint)}
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


def _ended(records: Sequence[Record]) -> bool:
    return bool(records) and isinstance(records[-1].value, Stop) and records[-1].value.ok


def _rules(lineage: Lineage, records: Sequence[Record], whole: bool) -> list[str]:
    found = audit_records(lineage.schedule, lineage.resume, ((record.now, record.value) for record in records), whole=whole)
    return [str(violation) for violation in found]


def _replayed(lineage: Lineage, records: Sequence[Record], whole: bool) -> list[str]:
    replay = Replay(lineage)
    found = next((difference for record in records if (difference := replay.feed(record))), "") or (replay.left() if whole else "")
    return [f"replay: {found}"] if found else []


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
