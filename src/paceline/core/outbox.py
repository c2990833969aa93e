"""Commands on their way out, and which of them still wait for an answer, since when and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from paceline.core.commands import (
    ANSWERED,
    FLEET,
    GROUPS,
    Abort,
    Admit,
    Checkpoint,
    Command,
    Dispatch,
    Evaluate,
    LoadWeights,
    Materialize,
    Migrate,
    Publish,
    RequestPrompts,
    Retire,
    Warn,
)

DEFAULT_SECONDS = 600.0
"""Deadline of a kind of wait that the schedule does not name."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Wait:
    """Something the machine waits for: who owes it, what it is, since when, and when it is named in a Warn (next); seconds on its clock."""

    kind: str
    owner: str
    what: str
    since: float
    deadline: float
    command: int | None = None
    """Id of the open command; None when no single command is waited for."""


_WORDS: dict[type[Any], tuple[str, str]] = {
    Admit: ("instance {0.instance}", "group {0.group} sample {0.sample} attempt {0.attempt}"),
    Abort: ("instance {0.instance}", "the abort of group {0.group} sample {0.sample} attempt {0.attempt}"),
    LoadWeights: ("instance {0.instance}", "weights of version {0.version}"),
    Materialize: ("rewards", "group {0.group}"),
    Dispatch: ("trainer", "update {0.update} with groups {0.update_groups}"),
    Publish: ("trainer", "the publish of version {0.version}"),
    Checkpoint: ("trainer", "the checkpoint at update {0.update}"),
    Evaluate: ("evaluation", "version {0.version} at update {0.update}"),
    RequestPrompts: ("data source", "{0.count} prompts"),
    Migrate: ("instance {0.target}", "trajectories {0.trajectories} from instance {0.source}"),
}


def owner_and_name(command: Any) -> tuple[str, str]:
    """Who answers a command and what for, in words."""
    owner, what = _WORDS[type(command)]
    return owner.format(command), what.format(command)


class Outbox:
    """Numbers commands, collects those of the present step, and keeps the open ones by kind in the order of their deadlines."""

    __slots__ = ("_last", "_open", "_seconds", "_sent", "now", "own_seconds")

    def __init__(self, deadlines: Iterable[tuple[str, float]]) -> None:
        given = dict(deadlines)
        self.now = 0.0
        self.own_seconds = {name: given.get(name, DEFAULT_SECONDS) for name in (FLEET, GROUPS)}
        """Deadlines of the waits that no single command stands for."""
        self._seconds = {kind: given.get(name, DEFAULT_SECONDS) for kind, name in ANSWERED.items()}
        # One dict per kind: its deadline is a constant and time never runs backwards, so insertion order is order of deadline.
        self._open: dict[type[Any], dict[int, tuple[Any, float, float]]] = {kind: {} for kind in ANSWERED}
        self._sent: list[Command] = []
        self._last = 0

    def next_id(self) -> int:
        """A fresh command id."""
        self._last += 1
        return self._last

    def tell(self, command: Command) -> None:
        """Send a command that has no answer."""
        self._sent.append(command)

    def ask(self, command: Command) -> None:
        """Send a command and wait for its answer."""
        self._sent.append(command)
        kind = type(command)
        now = self.now
        self._open[kind][command.id] = (command, now, now + self._seconds[kind])

    def retire(self, version: int) -> None:
        """Send a Retire."""
        self.tell(Retire(self.next_id(), version))

    def warn(self, message: str) -> None:
        """Send a Warn."""
        self.tell(Warn(self.next_id(), message))

    def collect(self) -> list[Command]:
        """The commands of this step."""
        sent, self._sent = self._sent, []
        return sent

    def close(self, kind: type[C], command: int) -> C | None:
        """The open command of this kind and id, open no longer; None when it is unknown (late, or never asked)."""
        entry = self._open[kind].pop(command, None)
        return None if entry is None else cast(C, entry[0])

    def find(self, kind: type[C], command: int) -> C | None:
        """The open command of this kind and id, left open."""
        entry = self._open[kind].get(command)
        return None if entry is None else cast(C, entry[0])

    def find_any(self, command: int) -> Any:
        """The open command of this id, whatever its kind, left open; None when it is unknown."""
        for entries in self._open.values():
            if command in entries:
                return entries[command][0]
        return None

    def since(self, kind: type[Any], command: int) -> float:
        """When an open command was sent."""
        return self._open[kind][command][1]

    def waiting(self, kind: type[Any]) -> int:
        """How many commands of a kind are open."""
        return len(self._open[kind])

    def waits(self) -> Iterator[Wait]:
        """All open commands."""
        for kind, entries in self._open.items():
            for command, since, due in entries.values():
                owner, what = owner_and_name(command)
                yield Wait(ANSWERED[kind], owner, what, since, due, command.id)

    def name_overdue(self) -> None:
        """Send one Warn for every open command whose deadline passed, and set its next deadline."""
        now = self.now
        for kind, entries in self._open.items():
            late: list[int] = []
            for key, (_, _, due) in entries.items():
                if due > now:
                    break
                late.append(key)
            for key in late:
                command, since, _ = entries.pop(key)
                entries[key] = (command, since, now + self._seconds[kind])
                owner, what = owner_and_name(command)
                self.warn(f"{ANSWERED[kind]}: {owner} has owed {what} for {now - since:.1f} s")
