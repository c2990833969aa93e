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

KINDS: dict[str, type] = {kind: command for command, kind in c.ANSWERED.items()}
"""Waits for an answer that `Schedule.deadlines` can bound, and the command that opens each."""

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
        self.seconds = {kind: seconds for kind, seconds in schedule.deadlines if kind in KINDS}
        self.own = {kind: seconds for kind, seconds in schedule.deadlines if kind in (c.FLEET, c.GROUPS)}
        """Deadlines of the waits that no single command stands for."""
        self.since: dict[str, float] = {}
        """When those began that go on now."""
        self.due: dict[int | str, float] = {}
        """Waits that were named already: command, or kind -> when it must be named again."""
        self.overdue: set[str] = set()
        """Subjects that the commands of the present event must name."""
        self.wanted: set[str] = set()
        """Groups of which they must name one."""
        self.named: set[str] = set()
        self.started = False

    def checks(self) -> dict[type, Check]:
        """Every record: events close what the one before left, commands may open a wait."""
        checks: dict[type, Check] = dict.fromkeys(get_args(e.Event), self._event)
        checks |= dict.fromkeys(get_args(c.Command), self._command)
        return checks | {e.Timer: self._timer, c.Warn: self._warn, c.Stop: self._stop}

    def _event(self, event: e.Event, now: float) -> str | None:
        book = self.book
        self._note_own()
        if self.overdue and (unnamed := self._unnamed()):
            return f"waits past their deadline were not named: {sorted(unnamed)[:8]}"
        if self.started and not book.open and book.instances and book.stop is None:
            return f"the run waits for nobody: groups {list(book.groups)[:8]} are not terminal and no command is open"
        self.started = True
        return None

    def _unnamed(self) -> set[str]:
        """What the commands of the event before had to name and did not."""
        unnamed = self.overdue - self.named
        if self.wanted and self.wanted.isdisjoint(self.named):
            unnamed.add(f"one of groups {sorted(self.wanted)[:8]}")
        self.overdue, self.wanted, self.named = set(), set(), set()
        return unnamed

    def _note_own(self) -> None:
        """What the event before left, and its commands, began or ended the waits without a command of their own."""
        book = self.book
        for kind, holds in ((c.FLEET, not book.instances), (c.GROUPS, book.wants_groups())):
            if holds and self.started:
                self.since.setdefault(kind, book.now)
            else:
                self.since.pop(kind, None)

    def _timer(self, event: e.Timer, now: float) -> str | None:
        message = self._event(event, now)
        due = {}
        for wait, name, seconds in self._late(now):
            due[wait] = self.due.get(wait, now)
            if due[wait] <= now:
                due[wait] = now + seconds
                self.overdue.add(name)
        self.due = due
        self.overdue.discard("")
        if c.GROUPS in self.overdue:
            self.wanted = {str(index) for index in self.book.wanted()}
        return message

    def _late(self, now: float) -> Iterator[tuple[int | str, str, float]]:
        """Waits past their deadline: the command or kind, what a message must name, and how long the deadline is."""
        for kind, seconds in self.own.items():
            if self.since.get(kind, math.inf) + seconds <= now:
                yield kind, kind, seconds
        for kind, seconds in self.seconds.items():
            for number, since in self.book.since[KINDS[kind]].items():
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
