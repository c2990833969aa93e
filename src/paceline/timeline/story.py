"""What there is to draw: a pure fold from records to items, each given out when it ends, so that a long ledger streams.

What is open is bounded by what is in flight. Times are seconds since the first record: what workers
took to start before it is no part of the story.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account import Account, Row
from paceline.core.account.causes import trainer
from paceline.core.account.members import READY
from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.schedule import Resume, Schedule
from paceline.timeline.lanes import Lanes


@dataclass(slots=True)
class GroupSpan:
    """A group from its first admission to its consumption, or to the end that it came to."""

    group: int
    home: str
    """Instance of the first admission."""
    lane: int
    """No two groups that are there at the same time have the same."""
    versions: list[tuple[float, int]]
    """(since when, version): the first by admission; more where weights changed under it (streaming)."""
    served: float | None = None
    """Serving-complete."""
    trainable: float | None = None
    end: float = 0.0
    outcome: str = "open"
    """trained, filtered, failed, retried (over-stale, generated anew), or open (the records end before it)."""
    update: int = 0
    """Update that consumed it, 0 = none."""
    staleness: int = 0
    tokens: int = 0
    why: str = ""

    @property
    def start(self) -> float:
        """First admission."""
        return self.versions[0][0]


@dataclass(slots=True)
class TrajectorySpan:
    """A trajectory on one instance: whole, or the part before or after a move."""

    group: int
    sample: int
    attempt: int
    instance: str
    lane: int
    """Slot of the instance, as far as the picture goes."""
    version: int
    start: float
    end: float = 0.0
    outcome: str = "open"
    """finished, failed, moved, lost, aborted, open."""
    tokens: int = 0
    came: int = 0
    """Number of the move by which it came here, 0 = admitted here."""
    left: int = 0
    """Number of the move by which it left."""


@dataclass(frozen=True, slots=True)
class TrainerSpan:
    """What the trainer did, or what it waited for (`core.account.causes.TRAINER`)."""

    state: str
    start: float
    end: float
    command: c.Dispatch | c.Publish | c.Checkpoint | None
    stepping: bool = False
    """Of a dispatch: the optimizer step, after forward and backward."""


@dataclass(frozen=True, slots=True)
class ServeSpan:
    """An instance serves a version."""

    instance: str
    lane: int
    """Different for versions that it serves side by side."""
    version: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """An instance gets a version."""

    instance: str
    version: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class EvaluationSpan:
    """An evaluation of a version."""

    version: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Move:
    """Trajectories moved from one instance to another; `moved` of them were still running."""

    source: str
    target: str
    version: int
    start: float
    end: float
    moved: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment: up, lost, failed, published, frontier, warning, stop."""

    time: float
    kind: str
    text: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Level:
    """How many groups there are from here on, and what limits their number."""

    time: float
    in_flight: int
    """Requested and unconsumed."""
    trainable: int
    """Of those."""
    decoding: int
    """Trajectories that decode, in groups' worth, rounded up."""
    frontier: int | None
    """Most of these; None = unlimited."""
    window: int | None
    """Most groups in flight, by bound and cap; None in schedules of rounds."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """Largest staleness of a dispatch's groups, in versions."""

    time: float
    versions: int


Item = GroupSpan | TrajectorySpan | TrainerSpan | ServeSpan | LoadSpan | EvaluationSpan | Move | Mark | Level | Staleness


@dataclass(slots=True)
class Served:
    """What an instance serves now."""

    versions: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Since when, and in which lane."""
    places: Lanes = field(default_factory=Lanes)
    """Lanes of versions."""
    lanes: Lanes = field(default_factory=Lanes)
    """Lanes of trajectories."""


class Story:
    """Folds one lineage: `feed` every record in order, then `close`."""

    def __init__(self, schedule: Schedule, resume: Resume) -> None:
        self.account = Account(schedule, resume)
        self.rows: list[Row] = []
        """Stretches that have ended: updates and publish periods."""
        self._now = 0.0
        self._origin: float | None = None
        """When the first record was made, on the lineage's clock."""
        self._items: list[Item] = []
        self._groups: dict[int, GroupSpan] = {}
        self._at_home: dict[str, set[int]] = defaultdict(set)
        """Groups that decode, by home."""
        self._lanes = Lanes()
        self._running: dict[int, TrajectorySpan] = {}
        """By open Admit."""
        self._instances: dict[str, Served] = defaultdict(Served)
        self._open: dict[int, tuple[float, Any]] = {}
        """Loads, evaluations and moves under way: since when, and the command."""
        self._moves = 0
        self._trainer: tuple[str, float, Any, bool] | None = None
        self._stepping = 0
        """Dispatch whose groups went through forward and backward."""
        self._level = self._counts()
        """The last Level, without its time."""

    def feed(self, record: Event | Command, now: float) -> list[Item]:
        """Take a record in, made at `now` on the lineage's clock; the items that end with it."""
        self._origin = now if self._origin is None else self._origin
        now -= self._origin
        if now > self._now:
            self._look()
        self._now = now
        if (tell := _TELLS.get(type(record))) is not None:
            tell(self, record)
        if (row := self.account.feed(record, now)) is not None:
            self.rows.append(row)
        items, self._items = self._items, []
        return items

    def close(self) -> list[Item]:
        """What is still open ends where the records end."""
        self._look()
        for command, (since, what) in list(self._open.items()):
            self._end_open(command, since, what, None)
        for admit in list(self._running):
            self._leave(admit, "open")
        for group in list(self._groups):
            self._end_group(group, "open")
        for name in list(self._instances):
            self._gone(name)
        if self._trainer is not None:
            self._end_trainer(self._trainer)
        items, self._items = self._items, []
        return items

    # What holds until the next moment: looked at when time passes

    def _look(self) -> None:
        scene, level = self.account.scene, self._counts()
        if level != self._level:
            self._level = level
            self._items.append(Level(self._now, *level))
        state = trainer(scene)
        work = next((command for kind in _WORK for command in scene.open[kind].values()), None)
        present = (state, work, work is not None and work.id == self._stepping)
        if self._trainer is None or present != (self._trainer[0], self._trainer[2], self._trainer[3]):
            if self._trainer is not None:
                self._end_trainer(self._trainer)
            self._trainer = (present[0], self._now, present[1], present[2])

    def _counts(self) -> tuple[int, int, int, int | None, int | None]:
        """A Level as things stand, without its time."""
        scene = self.account.scene
        decoding = -(-len(scene.admits) // scene.schedule.group_size)
        return scene.unconsumed, scene.states[READY], decoding, scene.frontier, scene.limit

    def _end_trainer(self, span: tuple[str, float, Any, bool]) -> None:
        state, since, command, stepping = span
        if self._now > since:
            self._items.append(TrainerSpan(state, since, self._now, command, stepping))

    # Groups and trajectories

    def _admit(self, command: c.Admit) -> None:
        span = self._groups.get(command.group)
        if span is not None and span.trainable is not None:
            self._end_group(command.group, "retried")
            span = None
        if span is None:
            self._groups[command.group] = GroupSpan(command.group, command.instance, self._lanes.take(), [(self._now, command.version)])
            self._at_home[command.instance].add(command.group)
        self._enter(command.id, command, command.instance)

    def _enter(self, admit: int, of: c.Admit | TrajectorySpan, instance: str, came: int = 0) -> None:
        lane = self._instances[instance].lanes.take()
        self._running[admit] = TrajectorySpan(of.group, of.sample, of.attempt, instance, lane, of.version, self._now, came=came)

    def _leave(self, admit: int, outcome: str, tokens: int = 0, left: int = 0) -> TrajectorySpan | None:
        span = self._running.pop(admit, None)
        if span is not None:
            self._instances[span.instance].lanes.free(span.lane)
            span.end, span.outcome, span.tokens, span.left = self._now, outcome, tokens, left
            self._items.append(span)
        return span

    def _finished(self, event: e.TrajectoryFinished) -> None:
        span = self._leave(event.command, "finished", event.tokens)
        if span is not None and (group := self._groups.get(span.group)) is not None:
            group.tokens += event.tokens

    def _failed(self, event: e.TrajectoryFailed) -> None:
        self._leave(event.command, "failed")

    def _aborted(self, event: e.Aborted) -> None:
        abort = self.account.scene.open[c.Abort].get(event.command)
        admit = None if abort is None else self.account.scene.keys.get((abort.group, abort.sample))
        if admit is not None:
            self._leave(admit, "aborted")

    def _materialize(self, command: c.Materialize) -> None:
        if (span := self._groups.get(command.group)) is not None:
            span.served = self._now
            self._at_home[span.home].discard(span.group)

    def _materialized(self, event: e.GroupMaterialized) -> None:
        if (span := self._groups.get(event.group)) is not None and event.command in self.account.scene.open[c.Materialize]:
            span.trainable = self._now

    def _end_group(self, group: int, outcome: str) -> GroupSpan | None:
        span = self._groups.pop(group, None)
        if span is not None:
            self._lanes.free(span.lane)
            self._at_home[span.home].discard(group)
            span.end, span.outcome = self._now, outcome
            self._items.append(span)
        return span

    def _dispatch(self, command: c.Dispatch) -> None:
        for index, staleness in zip(command.groups, command.staleness, strict=True):
            if (span := self._end_group(index, "trained")) is not None:
                span.update, span.staleness = command.update, staleness
        if command.groups:
            self._items.append(Staleness(self._now, max(command.staleness)))

    def _consumed(self, event: e.DispatchConsumed) -> None:
        self._stepping = event.command

    def _terminal(self, command: c.Terminal) -> None:
        if (span := self._end_group(command.group, command.state)) is not None:
            span.why = command.why

    # Instances and weights

    def _up(self, event: e.InstanceUp) -> None:
        self._gone(event.info.instance)
        self._instances[event.info.instance] = Served()
        self._items.append(Mark(self._now, "up", event.info.instance))

    def _lost(self, event: e.InstanceLost) -> None:
        self._gone(event.instance)
        self._items.append(Mark(self._now, "lost", f"{event.instance}: {event.reason}"))

    def _gone(self, name: str) -> None:
        for version in list(self._instances[name].versions):
            self._drop(name, version)
        for admit in [admit for admit, span in self._running.items() if span.instance == name]:
            self._leave(admit, "lost")
        for number, (since, command) in list(self._open.items()):
            if isinstance(command, c.LoadWeights) and command.instance == name:
                del self._open[number]
                self._end_open(number, since, command, None)
        del self._instances[name]

    def _drop(self, name: str, version: int) -> None:
        served = self._instances[name]
        if version in served.versions:
            since, lane = served.versions.pop(version)
            served.places.free(lane)
            self._items.append(ServeSpan(name, lane, version, since, self._now))

    def _opened(self, command: Any) -> None:
        self._open[command.id] = (self._now, command)

    def _answered(self, event: Any) -> None:
        since, command = self._open.pop(event.command, (0.0, None))
        if command is not None:
            self._end_open(event.command, since, command, event)

    def _end_open(self, number: int, since: float, command: Any, event: Any) -> None:
        if isinstance(command, c.LoadWeights):
            self._items.append(LoadSpan(command.instance, command.version, since, self._now))
            if isinstance(event, e.WeightsLive):
                self._live(command)
        elif isinstance(command, c.Evaluate):
            self._items.append(EvaluationSpan(command.version, since, self._now))
        else:
            moved = event.moved if isinstance(event, e.Migrated) else ()
            self._items.append(Move(command.source, command.target, command.version, since, self._now, len(moved)))
            self._moved(command, moved)

    def _live(self, command: c.LoadWeights) -> None:
        if command.replaces is not None:
            self._drop(command.instance, command.replaces)
        served = self._instances[command.instance]
        served.versions[command.version] = (self._now, served.places.take())
        if command.unfinished != "none":
            for group in self._at_home[command.instance]:
                self._groups[group].versions.append((self._now, command.version))

    def _moved(self, command: c.Migrate, moved: Iterable[c.TrajectoryKey]) -> None:
        for key in moved:
            admit = self.account.scene.keys.get(key)
            if admit is not None and admit in self._running:
                self._moves += 1
                span = self._leave(admit, "moved", left=self._moves)
                assert span is not None
                self._enter(admit, span, command.target, came=self._moves)

    def _published(self, event: e.Published) -> None:
        if event.command in self.account.scene.open[c.Publish]:
            self._items.append(Mark(self._now, "published", f"version {event.version}", event.version))

    def _command_failed(self, event: e.CommandFailed) -> None:
        scene = self.account.scene
        if (load := scene.open[c.LoadWeights].get(event.command)) is not None:
            self._gone(load.instance)  # the machine gives the instance up
        elif event.command in scene.open[c.Abort]:
            self._aborted(e.Aborted(event.command))
        self._answered(event)
        self._leave(event.command, "failed")
        self._items.append(Mark(self._now, "failed", event.error))

    def _warned(self, command: c.Warn) -> None:
        self._items.append(Mark(self._now, "warning", command.message))

    def _set_frontier(self, command: c.SetFrontier) -> None:
        self._items.append(Mark(self._now, "frontier", command.words))

    def _stopped(self, command: c.Stop) -> None:
        self._items.append(Mark(self._now, "stop", command.reason))


def tell(schedule: Schedule, resume: Resume, records: Iterable[tuple[float, Event | Command]]) -> Iterator[Item]:
    """All items of a lineage, each when it ends."""
    story = Story(schedule, resume)
    for now, record in records:
        yield from story.feed(record, now)
    yield from story.close()


_WORK = (c.Dispatch, c.Publish, c.Checkpoint)
_TELLS: dict[type, Callable[[Story, Any], None]] = {
    c.Admit: Story._admit,
    c.Materialize: Story._materialize,
    c.Dispatch: Story._dispatch,
    c.LoadWeights: Story._opened,
    c.Evaluate: Story._opened,
    c.Migrate: Story._opened,
    c.Terminal: Story._terminal,
    c.Warn: Story._warned,
    c.SetFrontier: Story._set_frontier,
    c.Stop: Story._stopped,
    e.TrajectoryFinished: Story._finished,
    e.TrajectoryFailed: Story._failed,
    e.GroupMaterialized: Story._materialized,
    e.DispatchConsumed: Story._consumed,
    e.Published: Story._published,
    e.WeightsLive: Story._answered,
    e.Evaluated: Story._answered,
    e.Migrated: Story._answered,
    e.Aborted: Story._aborted,
    e.CommandFailed: Story._command_failed,
    e.InstanceUp: Story._up,
    e.InstanceLost: Story._lost,
}
