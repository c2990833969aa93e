"""The facts that rules judge by: what the records of one lineage say so far, and nothing of what a machine thinks.

The book holds open commands, groups that are not terminal, instances and versions that are not retired, so its size follows what
is alive, never how long the run has lasted. Rules read it *before* it takes the record that they judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules.facts import ENDED, FINISHED, NAMED, PARKED, RUNNING, Facts, Group, Instance, Sample


class Book(Facts):
    """Folds records into facts; see the module. `take` must see every record of the lineage, in order."""

    def take(self, record: Any, now: float) -> None:
        """Fold one record in, made at `now` seconds."""
        self.now = now
        if (take := _TAKES.get(type(record))) is not None:
            take(self, record)

    # Commands

    def _opened(self, command: Any) -> None:
        self.open[command.id] = command
        self.since[type(command)][command.id] = self.now

    def _on_instance(self, command: Any) -> None:
        self._opened(command)
        if (instance := self.instances.get(command.instance)) is not None:
            instance.open.add(command.id)

    def _admit(self, command: c.Admit) -> None:
        self._on_instance(command)
        self.admits[command.group, command.sample, command.attempt] = command.id
        if (group := self.groups.get(command.group)) is None:
            return
        if group.scored is not None:
            # An over-stale group is generated anew as a whole.
            for sample in group.samples.values():
                self._end(sample)
        elif (before := group.samples.get(command.sample)) is not None:
            self._end(before)
        group.samples[command.sample] = Sample(command, group)
        if not group.alive:
            group.version = command.version
        group.alive += 1
        group.scored = group.outcome = None
        self.users[command.version] = self.users.get(command.version, 0) + 1

    def _end(self, sample: Sample, state: str = ENDED) -> None:
        """A trajectory needs its weights no longer."""
        if sample.state in (RUNNING, PARKED):
            self.users[sample.version] -= 1
            if not self.users[sample.version]:
                del self.users[sample.version]
        sample.group.alive -= sample.state != ENDED and state == ENDED
        sample.state = state

    def _materialize(self, command: c.Materialize) -> None:
        self._opened(command)
        if (group := self.groups.get(command.group)) is not None:
            group.scored = command.samples

    def _dispatch(self, command: c.Dispatch) -> None:
        self._opened(command)
        for index in command.groups:
            if (group := self.groups.get(index)) is not None:
                group.dispatched = command.update
        self.stepped += command.step
        self.accumulated = () if command.step else command.update_groups

    def _publish(self, command: c.Publish) -> None:
        self._opened(command)
        self.contains[command.version] = command.updates
        if command.version > self.newest:
            self.newest = command.version
            for version in [v for v in self.contains if v < self.newest - self.schedule.bound]:
                del self.contains[version]

    def _load(self, command: c.LoadWeights) -> None:
        self._on_instance(command)
        if (instance := self.instances.get(command.instance)) is not None:
            instance.loading[command.id] = (command.version, command.replaces)

    def _migrate(self, command: c.Migrate) -> None:
        self._opened(command)
        admits = {key: sample.command for key in command.trajectories if (sample := self.sample(*key)) is not None}
        self.moving[command.id] = self.instances.get(command.target), admits

    def _retire(self, command: c.Retire) -> None:
        self.fingerprints.pop(command.version, None)

    def _abort(self, command: c.Abort) -> None:
        self._on_instance(command)
        if (admit := self.admits.get((command.group, command.sample, command.attempt))) is not None:
            self.aborting.add(admit)

    def _terminal(self, command: c.Terminal) -> None:
        group = self.groups.pop(command.group, None)
        if group is not None:
            if len(self.unsaved) < NAMED:
                self.unsaved.append(command.group)
            for sample in group.samples.values():
                self._end(sample)

    def _checkpoint(self, command: c.Checkpoint) -> None:
        self._opened(command)
        self.unsaved.clear()

    def _evaluate(self, command: c.Evaluate) -> None:
        self._opened(command)
        self.evaluates = False

    def _set_frontier(self, command: c.SetFrontier) -> None:
        self.frontier = command.groups

    def _stop(self, command: c.Stop) -> None:
        self.stop = command

    # Events

    def _close(self, number: int) -> Any:
        command = self.open.pop(number, None)
        if command is None:
            return None
        del self.since[type(command)][number]
        if type(command) is c.Admit:
            self.aborting.discard(number)
            self.admits.pop((command.group, command.sample, command.attempt), None)
        self.moving.pop(number, None)
        self._off(getattr(command, "instance", ""), number)
        return command

    def _off(self, name: str, number: int) -> None:
        """An instance owes the answer to a command no longer."""
        if (instance := self.instances.get(name)) is not None:
            instance.open.discard(number)
            instance.loading.pop(number, None)

    def _answered(self, event: Any) -> None:
        self._close(event.command)

    def _arrived(self, event: e.PromptsArrived) -> None:
        if (request := self.answers(event, c.RequestPrompts)) is None:
            return
        self._close(event.command)
        for index in event.indices:
            self.next_index = max(self.next_index, index + 1)
            self.groups[index] = Group()
        self.data_ended |= len(event.indices) < request.count

    def _data_ended(self, event: e.DataEnded) -> None:
        self._close(event.command)
        self.data_ended = True

    def _finished(self, event: e.TrajectoryFinished) -> None:
        if (sample := self.running(event)) is not None:
            self._end(sample, FINISHED)
            sample.low, sample.high = event.version_min, event.version_max
        self._end_admit(event)

    def _failed(self, event: e.TrajectoryFailed) -> None:
        if (sample := self.running(event)) is not None:
            self._end(sample)
            self.groups[event.group].failures += 1
        self._end_admit(event)

    def _end_admit(self, event: e.TrajectoryFinished | e.TrajectoryFailed) -> None:
        if self.admits.get((event.group, event.sample, event.attempt)) != event.command:
            return
        self._close(event.command)
        # A moved trajectory ends on another instance than the one that its Admit names.
        self._off(event.instance, event.command)

    def _parked(self, event: e.TrajectoryParked) -> None:
        if (park := self.answers(event, c.Park)) is None:
            return
        self._close(event.command)
        if (sample := self.meant(park)) is not None and sample.state == RUNNING:
            sample.state = PARKED
            self._close(sample.command)

    def _materialized(self, event: e.GroupMaterialized) -> None:
        if (command := self.answers(event, c.Materialize)) is None:
            return
        self._close(event.command)
        if (group := self.groups.get(command.group)) is not None and group.scored == command.samples:
            group.outcome = event

    def _consumed(self, event: e.DispatchConsumed) -> None:
        if (dispatch := self.answers(event, c.Dispatch)) is not None and not dispatch.step:
            self._close(event.command)

    def _updated(self, event: e.UpdateFinished) -> None:
        if (dispatch := self.answers(event, c.Dispatch)) is None or not dispatch.step:
            return
        self._close(event.command)
        self.finished = dispatch.update
        for index in dispatch.update_groups:
            if (group := self.groups.get(index)) is not None:
                group.trained = True

    def _published(self, event: e.Published) -> None:
        if (publish := self.answers(event, c.Publish)) is not None:
            self._close(event.command)
            self.fingerprints[publish.version] = event.fingerprint
            every = self.schedule.evaluate_every
            if every and publish.updates >= self.evaluate_at:
                self.evaluates, self.evaluate_at = True, every * (publish.updates // every + 1)

    def _live(self, event: e.WeightsLive) -> None:
        if (load := self.answers(event, c.LoadWeights)) is None:
            return
        instance = self.instances.get(load.instance)
        if instance is not None:
            _, old = instance.loading.get(load.id, (0, None))
            instance.versions = [v for v in instance.versions if v not in (old, load.version)] + [load.version]
        self._close(event.command)

    def _migrated(self, event: e.Migrated) -> None:
        if (migrate := self.answers(event, c.Migrate)) is None:
            return
        target, admits = self.moving[migrate.id]
        self._close(event.command)
        for key in event.moved:
            sample = self.sample(*key)
            if sample is None or sample.state != RUNNING or sample.command != admits.get(key):
                continue
            self._off(migrate.source, sample.command)
            sample.instance = migrate.target
            if target is not None and self.instances.get(migrate.target) is target:
                target.open.add(sample.command)
            else:
                # It moved to an instance that was lost meanwhile, and is lost with it.
                self._close(sample.command)
                self._end(sample)

    def _aborted(self, event: e.Aborted) -> None:
        if (abort := self.answers(event, c.Abort)) is not None:
            self._end_abort(abort)

    def _end_abort(self, abort: c.Abort) -> None:
        self._close(abort.id)
        if (sample := self.meant(abort)) is not None and sample.state in (RUNNING, PARKED):
            self._end(sample)
        if (admit := self.admits.get((abort.group, abort.sample, abort.attempt))) is not None:
            self._close(admit)

    def _command_failed(self, event: e.CommandFailed) -> None:
        """A failure amounts to the answer that says so, where there is one."""
        command = self.open.get(event.command)
        if type(command) is c.Admit:
            self._failed(e.TrajectoryFailed(command.id, command.group, command.sample, command.attempt, command.instance, event.error))
        elif type(command) is c.Abort:
            self._end_abort(command)
        elif self._close(event.command) is None:
            return
        elif type(command) is c.LoadWeights:
            self._gone(command.instance)
        elif type(command) is c.Materialize and (group := self.groups.get(command.group)) is not None:
            group.failures += 1

    def _up(self, event: e.InstanceUp) -> None:
        self._gone(event.info.instance)
        self.instances[event.info.instance] = Instance(event.info)

    def _lost(self, event: e.InstanceLost) -> None:
        self._gone(event.instance)

    def _gone(self, name: str) -> None:
        """Everything on the instance ends with it; parked state was on it, too."""
        instance = self.instances.pop(name, None)
        if instance is None:
            return
        for number in sorted(instance.open):
            command = self._close(number)
            sample = self.sample(command.group, command.sample) if type(command) is c.Admit else None
            if sample is not None and sample.command == number and sample.state == RUNNING:
                self._end(sample)

    def _stop_requested(self, event: e.StopRequested) -> None:
        self.stopping = event.how


_TAKES: dict[type, Callable[[Book, Any], None]] = {
    c.RequestPrompts: Book._opened,
    c.Admit: Book._admit,
    c.Park: Book._on_instance,
    c.Materialize: Book._materialize,
    c.Dispatch: Book._dispatch,
    c.Publish: Book._publish,
    c.LoadWeights: Book._load,
    c.Retire: Book._retire,
    c.Migrate: Book._migrate,
    c.Abort: Book._abort,
    c.Terminal: Book._terminal,
    c.Evaluate: Book._evaluate,
    c.Checkpoint: Book._checkpoint,
    c.SetFrontier: Book._set_frontier,
    c.Stop: Book._stop,
    e.PromptsArrived: Book._arrived,
    e.DataEnded: Book._data_ended,
    e.TrajectoryFinished: Book._finished,
    e.TrajectoryFailed: Book._failed,
    e.TrajectoryParked: Book._parked,
    e.GroupMaterialized: Book._materialized,
    e.DispatchConsumed: Book._consumed,
    e.UpdateFinished: Book._updated,
    e.Published: Book._published,
    e.WeightsLive: Book._live,
    e.Migrated: Book._migrated,
    e.Aborted: Book._aborted,
    e.Evaluated: Book._answered,
    e.CheckpointDone: Book._answered,
    e.CommandFailed: Book._command_failed,
    e.InstanceUp: Book._up,
    e.InstanceLost: Book._lost,
    e.StopRequested: Book._stop_requested,
}
