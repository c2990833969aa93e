"""The one place where everything is decided: `Machine.step(event, now) -> list[Command]`.

Each event type has one handler; the parts it calls own one kind of decision each:

    intake      which prompts are asked for          admission   what starts, and where
    serving     what becomes of trajectories         training    when groups train; publishes
    loading     which weights an instance serves     placement   which version it should serve; migrations
    boundaries  rounds, checkpoints, the end         watch       what is waited for, and what is overdue

docs/design/machine.md says what every event and command means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core import events as ev
from paceline.core.admission import Admission
from paceline.core.boundaries import Boundaries
from paceline.core.commands import (
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
)
from paceline.core.intake import Intake
from paceline.core.loading import Loading
from paceline.core.outbox import Wait
from paceline.core.placement import Placement
from paceline.core.presets import check
from paceline.core.records import Instance
from paceline.core.schedule import AUTO, Resume, Schedule
from paceline.core.serving import Serving
from paceline.core.state import Machinery
from paceline.core.training import Training
from paceline.core.watch import Watch


class Machine:
    """Pure: the same events at the same times give the same commands. Raises ConfigError for a schedule without meaning."""

    def __init__(self, schedule: Schedule, resume: Resume | None = None) -> None:
        check(schedule)
        resume = resume or Resume()
        m = self._m = Machinery(schedule, resume)
        self._resume = resume
        self._intake = Intake(m, resume)
        self._admission = Admission(m)
        self._serving = Serving(m, self._intake)
        self._loading = Loading(m)
        self._placement = Placement(m, self._intake, self._loading, self._serving)
        self._training = Training(m, self._intake, self._serving)
        self._boundaries = Boundaries(m, resume, self._intake, self._admission, self._training, self._loading, self._placement)
        self._watch = Watch(m, self._intake, self._training, self._loading, self._boundaries)
        self._started = False
        self._rebalanced = 0.0
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.Started: self._on_started,
            ev.PromptsArrived: self._on_prompts,
            ev.DataEnded: self._on_data_ended,
            ev.TrajectoryFinished: self._on_finished,
            ev.TrajectoryFailed: self._on_failed,
            ev.TrajectoryParked: self._on_information,
            ev.TrajectoryPreempted: self._on_information,
            ev.GroupMaterialized: self._on_materialized,
            ev.DispatchConsumed: self._on_consumed,
            ev.UpdateFinished: self._on_updated,
            ev.Published: self._on_published,
            ev.WeightsLive: self._on_live,
            ev.Migrated: self._on_migrated,
            ev.Aborted: self._on_aborted,
            ev.Evaluated: self._on_evaluated,
            ev.CheckpointDone: self._on_checkpoint,
            ev.CommandFailed: self._on_command_failed,
            ev.InstanceUp: self._on_up,
            ev.InstanceLost: self._on_lost,
            ev.InstanceIdle: self._on_idle,
            ev.InstanceReport: self._on_report,
            ev.Timer: self._on_timer,
            ev.StopRequested: self._on_stop,
        }

    @property
    def stopped(self) -> bool:
        """Whether Stop was commanded: nothing follows."""
        return self._boundaries.stopped

    def step(self, event: ev.Event, now: float) -> list[Command]:
        """Everything to do because of `event`, in order. `now`: seconds on a clock that never runs backwards."""
        out = self._m.out
        assert now >= out.now, f"time ran backwards: {now} after {out.now}"
        out.now = now
        if self._boundaries.stopped:
            return []
        assert self._started or isinstance(event, ev.Started | ev.StopRequested), f"{event!r} came before Started"
        self._handlers[type(event)](event)
        return out.collect()

    def waits(self, now: float) -> list[Wait]:
        """What is waited for at `now`: open commands, instances if there are none, and the groups that the trainer needs."""
        assert now >= self._m.out.now, f"time ran backwards: {now} after {self._m.out.now}"
        return [] if self._boundaries.stopped else list(self._watch.waits())

    def _progress(self) -> None:
        """Everything that may follow from what has changed; each part looks at counters only."""
        m = self._m
        self._boundaries.advance()
        if self._boundaries.stopped:
            return
        if m.leaving is None:
            self._intake.request()
        self._admission.closed = m.leaving is not None or (m.traits.rounds and not self._loading.quiet)
        for lane in sorted(m.fleet.sizes):
            self._fill(lane)
        self._loading.evaluate()
        for version in m.versions.retired():
            m.out.retire(version)
        self._watch.look()

    def _fill(self, lane: int) -> None:
        self._admission.fill_lane(lane)
        if lane in self._m.fleet.leaving and not self._admission.closed:
            self._placement.pull(lane)

    def _on_started(self, event: ev.Started) -> None:
        assert not self._started, "Started came twice"
        self._started = True
        self._rebalanced = self._m.out.now
        self._training.publish(self._resume.version)
        self._progress()

    def _on_prompts(self, event: ev.PromptsArrived) -> None:
        self._intake.arrived(event)
        self._progress()

    def _on_data_ended(self, event: ev.DataEnded) -> None:
        self._intake.data_ended(event)
        self._progress()

    def _on_finished(self, event: ev.TrajectoryFinished) -> None:
        claimed = self._serving.claim(event)
        if claimed is None:
            return
        sample, instance = claimed
        if self._m.schedule.frontier == AUTO:
            self._boundaries.meter.trajectory(sample.group.order, event.tokens)
        complete = self._serving.finished(sample, event)
        self._after_slot(instance, sample.version, progress=complete)

    def _on_failed(self, event: ev.TrajectoryFailed) -> None:
        claimed = self._serving.claim(event)
        if claimed is not None:
            sample, instance = claimed
            complete = self._serving.failed(sample, event.error)
            self._after_slot(instance, sample.version, progress=complete or self._m.leaving is not None)

    def _after_slot(self, instance: Instance, version: int, progress: bool) -> None:
        """A slot became free: more work of what the instance serves, or other weights when that was the last."""
        if progress:
            self._progress()
        else:
            for lane in sorted({self._m.fleet.lane_of(version), *instance.lanes}):
                self._fill(lane)
        if not instance.held.get(version, 0):
            self._placement.settle(instance)

    def _on_information(self, event: ev.TrajectoryParked | ev.TrajectoryPreempted) -> None:
        """Nothing to decide."""

    def _on_materialized(self, event: ev.GroupMaterialized) -> None:
        self._serving.materialized(event)
        self._training.drop_overstale()
        self._progress()

    def _on_consumed(self, event: ev.DispatchConsumed) -> None:
        self._meter_dispatch(event.command, step=False)
        self._training.consumed(event.command)
        self._progress()

    def _meter_dispatch(self, command: int, step: bool) -> None:
        """A dispatch keeps the trainer until its groups are consumed, and until its step is done where it ends in one."""
        dispatch = self._m.out.find(Dispatch, command)
        if dispatch is not None and dispatch.step == step:
            self._boundaries.meter.dispatch(len(dispatch.groups), self._m.out.now - self._m.out.since(Dispatch, command))

    def _on_updated(self, event: ev.UpdateFinished) -> None:
        self._meter_dispatch(event.command, step=True)
        if self._training.updated(event):
            self._progress()

    def _on_published(self, event: ev.Published) -> None:
        if self._training.published(event):
            self._loading.published(self._boundaries.over)
            self._boundaries.published()
            self._placement.arrived()
            self._progress()

    def _on_live(self, event: ev.WeightsLive) -> None:
        instance = self._loading.live(event)
        if instance is not None:
            self._progress()
            self._placement.settle(instance)

    def _on_migrated(self, event: ev.Migrated) -> None:
        touched = self._placement.migrated(event)
        self._progress()
        for instance in touched:
            if instance.idle or any(not used for used in instance.held.values()):
                self._placement.settle(instance)

    def _on_aborted(self, event: ev.Aborted) -> None:
        instance = self._serving.aborted(event.command)
        if instance is not None:
            self._progress()
            self._placement.settle(instance)

    def _on_evaluated(self, event: ev.Evaluated) -> None:
        if self._m.out.close(Evaluate, event.command) is not None:
            self._placement.load()
            self._progress()

    def _on_checkpoint(self, event: ev.CheckpointDone) -> None:
        if self._m.out.close(Checkpoint, event.command) is not None:
            self._progress()

    def _on_up(self, event: ev.InstanceUp) -> None:
        known = self._m.fleet.instances.get(event.info.instance)
        if known is not None:
            self._lose(known)
        self._placement.settle(self._m.fleet.up(event.info))
        self._progress()

    def _on_lost(self, event: ev.InstanceLost) -> None:
        instance = self._m.fleet.instances.get(event.instance)
        if instance is not None:
            self._lose(instance)
            self._progress()

    def _lose(self, instance: Instance) -> None:
        self._loading.forget(instance)
        self._serving.displaced(instance)
        self._m.fleet.lost(instance)
        self._placement.load()  # it may have been the last that served a version, and with it goes the evaluation that others waited for

    def _on_idle(self, event: ev.InstanceIdle) -> None:
        instance = self._m.fleet.instances.get(event.instance)
        if instance is not None and instance.idle:
            self._placement.settle(instance)

    def _on_report(self, event: ev.InstanceReport) -> None:
        if event.running and event.tokens_per_second > 0:
            self._boundaries.meter.step(event.running, event.running / event.tokens_per_second)
        if self._placement.relieve(event):
            self._progress()

    def _on_timer(self, event: ev.Timer) -> None:
        now, period = self._m.out.now, self._m.schedule.rebalance_seconds
        self._watch.name_overdue()
        if self._m.traits.balanced and period and now - self._rebalanced >= period:
            self._rebalanced = now
            self._placement.rebalance()
            self._progress()

    def _on_stop(self, event: ev.StopRequested) -> None:
        if event.how == "now" or not self._started:
            self._boundaries.stop(event.reason, ok=True)
            return
        if self._m.leaving is None:
            self._m.leaving = event.reason
        self._progress()

    def _on_command_failed(self, event: ev.CommandFailed) -> None:
        command, error = self._m.out.find_any(event.command), event.error
        if isinstance(command, Dispatch | Publish | Checkpoint | RequestPrompts):
            self._boundaries.stop(f"{type(command).__name__} failed: {error}", ok=False)
        elif isinstance(command, Materialize):
            self._serving.unrewarded(command.id, error)
            self._progress()
        elif isinstance(command, Evaluate):
            self._m.out.warn(f"evaluation failed: {error}")
            self._on_evaluated(ev.Evaluated(command.id))
        elif command is not None:
            if isinstance(command, LoadWeights):
                self._m.out.warn(f"instance {command.instance} could not serve version {command.version}: {error}")
            elif isinstance(command, Migrate):
                self._placement.failed(command, error)
            answer = _answer_of_failed(command, error)
            self._handlers[type(answer)](answer)


def _answer_of_failed(command: LoadWeights | Migrate | Abort | Admit, error: str) -> ev.Event:
    """The event that the failure of a command amounts to."""
    if isinstance(command, LoadWeights):
        return ev.InstanceLost(command.instance, error)
    if isinstance(command, Migrate):
        return ev.Migrated(command.id, ())
    if isinstance(command, Abort):
        return ev.Aborted(command.id)
    return ev.TrajectoryFailed(command.id, command.group, command.sample, command.attempt, command.instance, error)
