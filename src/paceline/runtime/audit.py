"""Audit of a recorded run: the rules over each lineage, and whether its events give its commands again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from paceline.core.commands import Checkpoint, Command, Stop
from paceline.core.events import Event
from paceline.core.replay import audit as audit_records
from paceline.core.replay import difference, replay
from paceline.core.schedule import Resume
from paceline.runtime.ledger import LedgerReader, Lineage, Record
from paceline.types.results import AuditReport


def audit(ledger: Path) -> AuditReport:
    """Check every lineage of a ledger. Raises CheckpointError when there is none, RecordError for rows that cannot be read."""
    reader = LedgerReader(ledger)
    try:
        lineages = reader.lineages()
        events = commands = 0
        violations: list[str] = []
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
    events = [(record.now, cast(Event, record.value)) for record in records if record.direction == "event"]
    recorded = [cast(Command, record.value) for record in records if record.direction == "command"]
    try:
        again = replay(lineage.schedule, lineage.resume, events)
    except AssertionError as error:  # the machine's own: such events cannot have reached it in this order
        return [f"replay: the machine does not take these events: {error}"]
    found = difference(recorded, again if whole else again[: len(recorded)])
    return [] if found is None else [f"replay: {found}"]
