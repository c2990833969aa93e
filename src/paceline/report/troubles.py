"""What went wrong in one lineage, counted from its records: each kind of trouble with the trajectories and groups concerned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.outbox import owner_and_name

NAMED = 6
"""Trajectories, groups or times that one line names at most."""

Level = Literal["fault", "warning", "note"]
"""Someone must do something; the run went on, but look; counted for completeness."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing."""

    level: Level
    what: str
    details: tuple[str, ...] = ()
    advice: str = ""


def named(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    listed = list(names)
    more = f" and {len(listed) - NAMED:,} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def count(number: int, what: str) -> str:
    """`1 group`, `3 groups`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Troubles:
    """Folds records: `feed` every one, then read `findings`."""

    def __init__(self) -> None:
        self._open: dict[int, Command] = {}
        """Commands that are not answered yet, of the kinds that can fail."""
        self._running: dict[tuple[int, int], tuple[c.Admit, str]] = {}
        """Attempts under way, and the instance that runs them now, by (group, sample)."""
        self._failed: dict[str, list[str]] = defaultdict(list)
        """Attempts that failed, by error."""
        self._lost: list[str] = []
        self._rewards: dict[str, list[str]] = defaultdict(list)
        self._others: list[str] = []
        self._skipped: list[str] = []
        self._groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        """Groups that ended untrained, by state and why."""
        self._warned: list[str] = []

    def feed(self, record: Event | Command, now: float) -> None:
        """Take one record in, made at `now` seconds."""
        if isinstance(record, _CAN_FAIL):
            self._open[record.id] = record
            if isinstance(record, c.Admit):
                self._running[record.group, record.sample] = (record, record.instance)
        elif (note := _NOTES.get(type(record))) is not None:
            note(self, record, now)
        if (answered := getattr(record, "command", None)) is not None and not isinstance(record, e.DispatchConsumed):
            done = self._open.pop(answered, None)
            if isinstance(done, c.Admit | c.Abort):
                self._running.pop((done.group, done.sample), None)

    def _attempt(self, event: e.TrajectoryFailed, now: float) -> None:
        self._failed[event.error].append(f"group {event.group} sample {event.sample} attempt {event.attempt} on {event.instance}")

    def _command(self, event: e.CommandFailed, now: float) -> None:
        command = self._open.get(event.command)
        if isinstance(command, c.Materialize):
            self._rewards[event.error].append(f"group {command.group}")
        elif isinstance(command, c.Admit):
            name = f"group {command.group} sample {command.sample} attempt {command.attempt} on {command.instance}"
            self._failed[event.error].append(name)
        elif command is not None:
            owner, what = owner_and_name(command)
            self._others.append(f"at {now:.1f} s, {owner}, {what}: {event.error}")

    def _instance(self, event: e.InstanceLost, now: float) -> None:
        on_it = [key for key, (_, where) in self._running.items() if where == event.instance]
        for key in on_it:
            self._open.pop(self._running.pop(key)[0].id, None)
        names = named(f"{group}.{sample}" for group, sample in on_it)
        had = f"; it had {len(on_it)} of the trajectories (group.sample {names})" if on_it else ""
        self._lost.append(f"at {now:.1f} s, {event.instance}: {event.reason}{had}")

    def _moved(self, event: e.Migrated, now: float) -> None:
        command = self._open.get(event.command)
        if isinstance(command, c.Migrate):
            moved = [key for key in event.moved if key in self._running]
            self._running.update({key: (self._running[key][0], command.target) for key in moved})

    def _update(self, event: e.UpdateFinished, now: float) -> None:
        command = self._open.get(event.command)
        if not event.applied:
            groups = command.update_groups if isinstance(command, c.Dispatch) else ()
            self._skipped.append(f"update {event.update} at {now:.1f} s, groups {named(map(str, groups))}")

    def _terminal(self, command: c.Terminal, now: float) -> None:
        if command.state != "trained":
            self._groups[command.state, command.why].append(str(command.group))

    def _warn(self, command: c.Warn, now: float) -> None:
        self._warned.append(f"at {now:.1f} s: {command.message}")

    def findings(self) -> list[Finding]:
        """In order of weight."""
        failed, rewards = _by_error(self._failed), _by_error(self._rewards)
        lost_groups = {why: groups for (state, why), groups in self._groups.items() if state == "failed"}
        filtered = {why: groups for (state, why), groups in self._groups.items() if state == "filtered"}
        found = [
            _finding("fault", self._skipped, "{} skipped: loss or gradient was not finite", "update", _SKIPPED),
            _finding("fault", rewards, "{} could not be judged", "group", _REWARD, _total(self._rewards)),
            _finding("fault", _by_why(lost_groups), "{} given up, untrained", "group", "", _total(lost_groups)),
            _finding("warning", self._lost, "{} lost; what it decoded was begun again elsewhere", "instance", _LOST),
            _finding("warning", failed, "{} failed", "attempt", _ATTEMPT, _total(self._failed)),
            _finding("warning", self._others, "{} failed", "command"),
            _finding("warning", self._warned[-NAMED:], "{} from the machine, the last of them", "warning", "", len(self._warned)),
            _finding("note", _by_why(filtered), "{} filtered, untrained", "group", "", _total(filtered)),
        ]
        return [finding for finding in found if finding is not None]


_SKIPPED = (
    "the notices below name the trajectories; look at their rewards and log-probs in trajectories/. A smaller learning rate helps often"
)
_REWARD = "the reward's logs are in logs/; run it by hand on the row that is named; a slow one needs a longer reward.timeout_s"
_LOST = "its log is in logs/; `Killed` or signal 9 without another cause is the kernel out of memory: fewer rollout.slots or kv_tokens"
_ATTEMPT = "each sample has schedule.attempts of them; then schedule.on_failure decides"


def _finding(level: Level, lines: list[str], words: str, what: str, advice: str = "", number: int | None = None) -> Finding | None:
    if not lines:
        return None
    return Finding(level, words.format(count(len(lines) if number is None else number, what)), tuple(lines), advice)


def _total(lists: dict[str, list[str]]) -> int:
    return sum(map(len, lists.values()))


def _by_error(lists: dict[str, list[str]]) -> list[str]:
    """The error of most first."""
    return [f"{named(names)}: {error}" for error, names in sorted(lists.items(), key=lambda pair: -len(pair[1]))]


def _by_why(lists: dict[str, list[str]]) -> list[str]:
    return [f"{len(groups):,} x {why or 'no reason given'}: {named(groups)}" for why, groups in lists.items()]


_CAN_FAIL = (c.Admit, c.Materialize, c.Dispatch, c.Publish, c.LoadWeights, c.Migrate, c.Abort, c.Evaluate, c.Checkpoint, c.RequestPrompts)
_NOTES: dict[type, Callable[[Troubles, Any, float], None]] = {
    e.TrajectoryFailed: Troubles._attempt,
    e.CommandFailed: Troubles._command,
    e.InstanceLost: Troubles._instance,
    e.Migrated: Troubles._moved,
    e.UpdateFinished: Troubles._update,
    c.Terminal: Troubles._terminal,
    c.Warn: Troubles._warn,
}
