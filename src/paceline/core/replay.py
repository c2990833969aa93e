"""A run again from its records: replaying the events gives the commands, auditing the records gives the violations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.machine import Machine
from paceline.core.rules import Rules, Violation
from paceline.core.schedule import Resume, Schedule

Timed = tuple[float, Event | Command]
"""(now, record), with now in seconds as given to `Machine.step`."""


def replay(schedule: Schedule, resume: Resume, events: Iterable[tuple[float, Event]]) -> list[Command]:
    """The commands that a machine answers `events` with, each event beside its `now`: those of the recorded run, or there is a fault."""
    machine = Machine(schedule, resume)
    return [command for now, event in events for command in machine.step(event, now)]


def difference(recorded: Sequence[Command], replayed: Sequence[Command]) -> str | None:
    """The first place where two command sequences part, in words; None when they are equal.

    A recorded run that was killed may lack the commands of its last event; then `replayed` is longer, which is a difference, too.
    """
    for i, (old, new) in enumerate(zip_longest(recorded, replayed)):
        if old != new:
            return f"command {i}: recorded {old or 'nothing'}, replayed {new or 'nothing'}"
    return None


def audit(schedule: Schedule, resume: Resume, records: Iterable[Timed], *, whole: bool = True) -> list[Violation]:
    """All violations of rules 1-8 in one lineage: events and commands in the order in which they were made.

    A lineage that is not `whole` lacks its end: what it leaves open is no violation.
    """
    rules = Rules(schedule, resume)
    for now, record in records:
        rules.feed(record, now)
    if whole:
        rules.close()
    return rules.found
