"""Rule 8: every wait has an owner, a deadline, and a name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, get_args

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules.book import Book
from paceline.core.rules.fold import Check, Rule
from paceline.core.schedule import Schedule

KINDS: dict[str, type] = {
    "prompts": c.RequestPrompts,
    "admit": c.Admit,
    "materialize": c.Materialize,
    "dispatch": c.Dispatch,
    "publish": c.Publish,
    "load": c.LoadWeights,
    "evaluate": c.Evaluate,
    "checkpoint": c.Checkpoint,
    "migrate": c.Migrate,
    "abort": c.Abort,
}
"""Waits for an answer that `Schedule.deadlines` can bound, and the command that opens each."""

FLEET = "instances"
"""The wait for any instance at all. (Of the trainer's wait, `groups`, the records do not tell when it began: resumed groups are taken up
without one.)"""

WORD = re.compile(r"[\w.-]*\w")


def subject(command: Any) -> str:
    """What a message about this wait must name: the instance of a load or a move, the group, the version, the update; "" for prompts."""
    if type(command) is c.LoadWeights:
        return str(command.instance)
    if type(command) is c.Migrate:
        return str(command.target)
    if type(command) is c.Dispatch:
        return str(command.update)
    for field in ("group", "version", "update"):
        if hasattr(command, field):
            return str(getattr(command, field))
    return ""


class Live(Rule):
    """8. A run that is not over has an open command or no instance at all; a wait past its deadline is named; a run that stopped well
    left no answer outstanding that it needed; nothing follows Stop."""

    number: ClassVar[int] = 8

    def __init__(self, schedule: Schedule, book: Book) -> None:
        super().__init__(schedule, book)
        self.seconds = {KINDS[kind]: seconds for kind, seconds in schedule.deadlines if kind in KINDS}
        self.fleet_seconds = dict(schedule.deadlines).get(FLEET, math.inf)
        self.bare: float | None = None
        """Since when no instance is up."""
        self.due: dict[int, float] = {}
        """Waits that were named already: command (0 for an instance) -> when it must be named again."""
        self.overdue: set[str] = set()
        """Subjects that the commands of the present event must name."""
        self.named: set[str] = set()
        self.started = False

    def checks(self) -> dict[type, Check]:
        """Every record: events close what the one before left, commands may open a wait."""
        checks: dict[type, Check] = dict.fromkeys(get_args(e.Event), self._event)
        checks |= dict.fromkeys(get_args(c.Command), self._command)
        return checks | {e.Timer: self._timer, c.Warn: self._warn, c.Stop: self._stop}

    def _event(self, event: e.Event, now: float) -> str | None:
        book = self.book
        self._note_bare()
        unnamed = self.overdue - self.named
        if self.overdue:
            self.overdue, self.named = set(), set()
        if unnamed:
            return f"waits past their deadline were not named: {sorted(unnamed)[:8]}"
        if self.started and not book.open and book.instances and book.stop is None:
            return f"the run waits for nobody: groups {list(book.groups)[:8]} are not terminal and no command is open"
        self.started = True
        return None

    def _note_bare(self) -> None:
        """When the event before left no instance, that is when the pool began to owe one."""
        if self.book.instances or not self.started:
            self.bare = None
        elif self.bare is None:
            self.bare = self.book.now

    def _timer(self, event: e.Timer, now: float) -> str | None:
        message = self._event(event, now)
        due = {}
        for number, name, seconds in self._late(now):
            due[number] = self.due.get(number, now)
            if due[number] <= now:
                due[number] = now + seconds
                self.overdue.add(name)
        self.due = due
        self.overdue.discard("")
        return message

    def _late(self, now: float) -> Iterator[tuple[int, str, float]]:
        """Waits past their deadline: the command, what a message must name, and how long the deadline is."""
        if self.bare is not None and self.bare + self.fleet_seconds <= now:
            yield 0, FLEET, self.fleet_seconds
        for kind, seconds in self.seconds.items():
            for number, since in self.book.since[kind].items():
                if since + seconds > now:
                    break
                # An aborted trajectory is waited for through its Abort.
                if number not in self.book.aborting:
                    yield number, subject(self.book.open[number]), seconds

    def _command(self, command: Any, now: float) -> str | None:
        if self.book.stop is not None:
            return f"{command} followed Stop"
        return None

    def _warn(self, command: c.Warn, now: float) -> str | None:
        if self.overdue:
            self.named.update(WORD.findall(command.message))
        return self._command(command, now)

    def _stop(self, command: c.Stop, now: float) -> str | None:
        if self.book.stop is not None:
            return "the run stopped twice"
        if not command.ok or self.book.stopping == "now":
            return None
        # A user who asks to stop does not wait for an evaluation.
        needed = (c.Dispatch, c.Publish, c.Checkpoint, *(() if self.book.stopping else (c.Evaluate,)))
        left = [o for o in self.book.open.values() if type(o) in needed]
        return f"the run stopped well while {left[0]} has no answer" if left else None

    def close(self) -> Iterator[str]:
        """Trajectories of terminal groups were answered or aborted."""
        book = self.book
        if book.stop is None or not book.stop.ok or book.stopping == "now":
            return
        for number, command in book.open.items():
            if type(command) is c.Admit and command.group not in book.groups and number not in book.aborting:
                yield f"trajectory ({command.group}, {command.sample}) on {command.instance} was never answered, its group is terminal"
