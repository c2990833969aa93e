"""What goes on at a moment, as counters: what runs where, what waits for what. Folded from records; O(1) per record.

Only what a run recorded is used, nothing of what a machine thinks, so a ledger can be read whatever version of the machine wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account.members import FRESH, JUDGED, OPEN, READY, TAKEN, Group, Seat
from paceline.core.bound import Pace
from paceline.core.presets import traits
from paceline.core.schedule import AUTO, Resume, Schedule


class Scene:
    """Counters of the present moment. `take` must see every record of a lineage, in order."""

    def __init__(self, schedule: Schedule, resume: Resume) -> None:
        self.schedule = schedule
        self.traits = traits(schedule)
        self.groups = {index: Group(schedule.group_size) for index in resume.pending}
        self.waiting = len(self.groups) * schedule.group_size
        """Samples that wait to be admitted."""
        self.states = {FRESH: len(self.groups), OPEN: 0, JUDGED: 0, READY: 0, TAKEN: 0}
        """Groups by state."""
        self.admits: dict[int, tuple[c.Admit, str]] = {}
        """Open Admits, each with the instance that runs it now."""
        self.keys: dict[c.TrajectoryKey, int] = {}
        """(group, sample) -> its newest Admit."""
        self.seats: dict[str, Seat] = {}
        self.slots = 0
        """Of all instances that are up."""
        self.barred = 0
        """Free slots for which weights are missing or change."""
        self.open: dict[type, dict[int, Any]] = {kind: {} for kind in _ANSWERED}
        """Commands that wait for an answer, beside Admit, by type and id."""
        self.updates = resume.update
        """Updates issued."""
        self.issued = 0
        """Those since the newest publish."""
        self.given = 0
        """Groups given to the update that has not stepped."""
        self.newest = -1
        self.versions = 0
        """Versions published and not retired."""
        self.overstale = 0
        """Trainable groups that got older than the bound, so far."""
        self.anew: set[int] = set()
        """Groups that wait to be generated anew."""
        self.data_ended = self.stopping = False
        self.frontier = None if schedule.frontier == AUTO else schedule.frontier
        """Groups' worth of trajectories that may be in flight; None = unlimited."""
        self._pace = Pace(schedule.bound, schedule.groups_per_update, schedule.updates_per_publish)

    @property
    def limit(self) -> int | None:
        """Groups that may be requested and unconsumed, by bound and cap; None in rounds, which are as large as they are."""
        if self.traits.rounds:
            return None
        cap = max(0, self.traits.cap - self.given)
        return min(cap, self._pace.room(0, self.issued, self.given)) if self.traits.paced else cap

    @property
    def unconsumed(self) -> int:
        """Groups requested, neither terminal nor with the trainer."""
        return len(self.groups) - self.states[TAKEN]

    @property
    def needed(self) -> int:
        """Groups that the updates still to be issued can consume, beyond those given."""
        return (self.schedule.total_updates - self.updates) * self.schedule.groups_per_update - self.given

    @property
    def wanted(self) -> int:
        """Trainable groups that the trainer needs before it goes on."""
        s = self.schedule
        wanted = min(s.groups_per_dispatch, s.groups_per_update - self.given)
        if s.start_when == "all" and not self.issued and not self.given:
            return max(wanted, min(s.groups_per_publish if not self.traits.rounds else s.groups_per_round, self.needed))
        return wanted

    def take(self, record: Any) -> None:
        """Fold one record in."""
        if (take := _TAKES.get(type(record))) is not None:
            take(self, record)

    # Groups

    def _move(self, group: Group, state: str) -> None:
        self.states[group.state] -= 1
        self.states[state] += 1
        group.state = state

    def _wait(self, group: Group, samples: int) -> None:
        group.left += samples
        self.waiting += samples

    def _arrived(self, event: e.PromptsArrived) -> None:
        if self.open[c.RequestPrompts].pop(event.command, None) is not None:
            for index in event.indices:
                self._add(index)

    def _add(self, index: int) -> Group:
        group = self.groups[index] = Group(self.schedule.group_size)
        self.states[FRESH] += 1
        self.waiting += group.left
        return group

    def _data_ended(self, event: e.DataEnded) -> None:
        self.open[c.RequestPrompts].pop(event.command, None)
        self.data_ended = True

    def _materialize(self, command: c.Materialize) -> None:
        self._opened(command)
        if (group := self.groups.get(command.group)) is not None:
            self._move(group, JUDGED)

    def _materialized(self, event: e.GroupMaterialized) -> None:
        known = self.open[c.Materialize].pop(event.command, None)
        kept = not event.drop and (event.signal or self.schedule.no_signal == "keep")
        if known is not None and kept and (group := self.groups.get(event.group)) is not None:
            self._move(group, READY)
            self._return_overstale()

    def _return_overstale(self) -> None:
        """What is over-stale is generated anew or ends: either way it is trainable no longer. No command says so of the former."""
        s = self.schedule
        if self.traits.paced or not self.states[READY]:
            return
        for index, group in self.groups.items():
            if group.state == READY and self.newest - group.low > s.staleness:
                self.overstale += 1
                self.anew.add(index)
                self._restart(group)

    def _restart(self, group: Group) -> None:
        self._move(group, FRESH)
        self._wait(group, self.schedule.group_size - group.left)
        group.low = -1

    def _terminal(self, command: c.Terminal) -> None:
        group = self.groups.pop(command.group, None)
        self.anew.discard(command.group)
        if group is not None:
            self.states[group.state] -= 1
            self.waiting -= group.left

    # Trajectories

    def _admit(self, command: c.Admit) -> None:
        group = self.groups.get(command.group) or self._add(command.group)
        if group.state == FRESH:
            self._move(group, OPEN)
            self.anew.discard(command.group)
        self._wait(group, -1)
        self.admits[command.id] = (command, command.instance)
        self.keys[command.group, command.sample] = command.id
        self._occupy(command.instance, command.id)

    def _occupy(self, instance: str, admit: int) -> None:
        if (seat := self.seats.get(instance)) is not None:
            seat.running.add(admit)
            self._recount(seat)

    def _vacate(self, instance: str, admit: int) -> None:
        if (seat := self.seats.get(instance)) is not None:
            seat.running.discard(admit)
            self._recount(seat)

    def _ended(self, admit: int) -> c.Admit | None:
        """The trajectory of an open Admit holds no slot any more. None for a late answer."""
        known = self.admits.pop(admit, None)
        if known is None:
            return None
        command, instance = known
        self._vacate(instance, admit)
        self.keys.pop((command.group, command.sample), None)
        return command

    def _finished(self, event: e.TrajectoryFinished) -> None:
        command = self._ended(event.command)
        group = self.groups.get(event.group)
        if command is not None and group is not None:
            group.low = event.version_min if group.low < 0 else min(group.low, event.version_min)

    def _failed(self, event: e.TrajectoryFailed) -> None:
        self._attempt_failed(event.command)

    def _attempt_failed(self, admit: int) -> None:
        command, s = self._ended(admit), self.schedule
        group = None if command is None else self.groups.get(command.group)
        if command is None or group is None:
            return
        failures = group.failures[command.sample] = group.failures.get(command.sample, 0) + 1
        if failures < s.attempts or s.on_failure == "stop":
            self._wait(group, 1)

    def _aborted(self, event: e.Aborted) -> None:
        abort = self.open[c.Abort].pop(event.command, None)
        if abort is not None and (admit := self.keys.get((abort.group, abort.sample))) is not None:
            self._ended(admit)

    def _migrated(self, event: e.Migrated) -> None:
        migrate = self.open[c.Migrate].pop(event.command, None)
        for key in event.moved if migrate is not None else ():
            admit = self.keys.get(key)
            if admit is not None:
                command, source = self.admits[admit]
                self._vacate(source, admit)
                self.admits[admit] = (command, migrate.target)
                self._occupy(migrate.target, admit)

    # Instances and weights

    def _recount(self, seat: Seat) -> None:
        barred = max(0, seat.slots - len(seat.running)) if seat.waits else 0
        self.barred += barred - seat.barred
        seat.barred = barred

    def _up(self, event: e.InstanceUp) -> None:
        self._gone(event.info.instance)
        seat = self.seats[event.info.instance] = Seat(event.info.slots)
        self.slots += seat.slots
        self._recount(seat)

    def _lost(self, event: e.InstanceLost) -> None:
        self._gone(event.instance)

    def _gone(self, name: str) -> None:
        seat = self.seats.pop(name, None)
        if seat is None:
            return
        self.slots -= seat.slots
        self.barred -= seat.barred
        for load in seat.loads:
            self.open[c.LoadWeights].pop(load, None)
        for admit in sorted(seat.running):
            command = self._ended(admit)
            if command is not None and (group := self.groups.get(command.group)) is not None:
                self._wait(group, 1)

    def _load(self, command: c.LoadWeights) -> None:
        self._opened(command)
        if (seat := self.seats.get(command.instance)) is not None:
            seat.loads[command.id] = command.replaces
            self._recount(seat)

    def _live(self, event: e.WeightsLive) -> None:
        command = self.open[c.LoadWeights].pop(event.command, None)
        if command is not None and (seat := self.seats.get(event.instance)) is not None:
            seat.loads.pop(event.command, None)
            seat.versions.discard(command.replaces)
            seat.versions.add(event.version)
            self._recount(seat)

    def _publish(self, command: c.Publish) -> None:
        self._opened(command)
        self.newest, self.issued = command.version, 0
        self.versions += 1
        self._return_overstale()

    def _retire(self, command: c.Retire) -> None:
        self.versions -= 1

    # Training and the rest

    def _opened(self, command: Any) -> None:
        self.open[type(command)][command.id] = command

    def _dispatch(self, command: c.Dispatch) -> None:
        self._opened(command)
        for index in command.groups:
            if (group := self.groups.get(index)) is not None:
                self._move(group, TAKEN)
        self.given = 0 if command.step else len(command.update_groups)
        self.updates += command.step
        self.issued += command.step

    def _consumed(self, event: e.DispatchConsumed) -> None:
        dispatch = self.open[c.Dispatch].get(event.command)
        if dispatch is not None and not dispatch.step:
            del self.open[c.Dispatch][event.command]

    def _answered(self, event: Any) -> None:
        self.open[_ANSWERS[type(event)]].pop(event.command, None)

    def _command_failed(self, event: e.CommandFailed) -> None:
        for kind, commands in self.open.items():
            if (command := commands.get(event.command)) is None:
                continue
            if kind is c.Abort:
                return self._aborted(e.Aborted(event.command))
            del commands[event.command]
            return self._gone(command.instance) if kind is c.LoadWeights else None
        self._attempt_failed(event.command)

    def _stop_requested(self, event: e.StopRequested) -> None:
        self.stopping = True

    def _set_frontier(self, command: c.SetFrontier) -> None:
        self.frontier = command.groups


_ANSWERED = tuple(kind for kind in c.ANSWERED if kind is not c.Admit)
_ANSWERS: dict[type, type] = {
    e.UpdateFinished: c.Dispatch,
    e.Published: c.Publish,
    e.Evaluated: c.Evaluate,
    e.CheckpointDone: c.Checkpoint,
}
_TAKES: dict[type, Callable[[Scene, Any], None]] = {
    c.RequestPrompts: Scene._opened,
    c.Admit: Scene._admit,
    c.Materialize: Scene._materialize,
    c.Dispatch: Scene._dispatch,
    c.Publish: Scene._publish,
    c.LoadWeights: Scene._load,
    c.Retire: Scene._retire,
    c.Migrate: Scene._opened,
    c.Abort: Scene._opened,
    c.Terminal: Scene._terminal,
    c.Evaluate: Scene._opened,
    c.Checkpoint: Scene._opened,
    c.SetFrontier: Scene._set_frontier,
    e.PromptsArrived: Scene._arrived,
    e.DataEnded: Scene._data_ended,
    e.TrajectoryFinished: Scene._finished,
    e.TrajectoryFailed: Scene._failed,
    e.GroupMaterialized: Scene._materialized,
    e.DispatchConsumed: Scene._consumed,
    e.UpdateFinished: Scene._answered,
    e.Published: Scene._answered,
    e.WeightsLive: Scene._live,
    e.Migrated: Scene._migrated,
    e.Aborted: Scene._aborted,
    e.Evaluated: Scene._answered,
    e.CheckpointDone: Scene._answered,
    e.CommandFailed: Scene._command_failed,
    e.InstanceUp: Scene._up,
    e.InstanceLost: Scene._lost,
    e.StopRequested: Scene._stop_requested,
}
