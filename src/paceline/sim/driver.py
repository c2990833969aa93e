"""The virtual-time driver: performs a machine's commands on a fake world by computing when they would end.

It consumes commands and produces events from a heap of future ones. It decides nothing and simulates no step of decoding: an instance is
a set of trajectories that decode together (`sim.instance`). A run ends with Stop, with a kill, or with a stall: nothing will ever happen
and the machine waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.rules import Rules, Violation
from paceline.core.schedule import Resume, Schedule
from paceline.sim import world as w
from paceline.sim.instance import Instance, Run
from paceline.sim.world import FakeInstance, World

Future = Callable[[], e.Event | None]
"""Something that will happen: makes the event when its time comes, or None when it no longer does."""


@dataclass(slots=True)
class Trace:
    """What a simulated run was."""

    records: list[tuple[float, e.Event | c.Command]] = field(default_factory=list)
    """(now, record) in order: each event, then the commands that answered it. Empty when not kept."""
    violations: list[Violation] = field(default_factory=list)
    end: float = 0.0
    """Virtual time of the last event, seconds."""
    stop: c.Stop | None = None
    stalled: str = ""
    """What the machine waits for though nothing will ever happen; "" when it stopped or was killed."""
    most_running: dict[str, int] = field(default_factory=dict)
    """Largest number of trajectories that ran at a time, per instance."""

    @property
    def events(self) -> list[tuple[float, e.Event]]:
        """The events alone, beside their times."""
        return [(now, r) for now, r in self.records if type(r) in _EVENTS]  # type: ignore[misc]

    @property
    def commands(self) -> list[c.Command]:
        """The commands alone."""
        return [r for _, r in self.records if type(r) not in _EVENTS]  # type: ignore[misc]

    @property
    def stopping(self) -> str:
        """How the user asked to stop: "checkpoint", "now", or "" (not asked)."""
        return next((r.how for _, r in reversed(self.records) if type(r) is e.StopRequested), "")

    def resume(self) -> Resume | None:
        """Where a restored run continues: the last checkpoint that was complete; None before the first."""
        open_: dict[int, c.Checkpoint] = {}
        last = None
        for _, record in self.records:
            if type(record) is c.Checkpoint:
                open_[record.id] = record
            elif type(record) is e.CheckpointDone and record.command in open_:
                last = open_[record.command]
        return None if last is None else last.resume


class Simulation:
    """One run of a machine in a world. `run` drives it to its end; everything else is how commands are performed."""

    def __init__(self, schedule: Schedule, world: World, resume: Resume | None = None, keep: bool = True) -> None:
        self.schedule = schedule
        self.world = world
        resume = resume or Resume()
        self.machine = Machine(schedule, resume)
        self.rules = Rules(schedule, resume)
        self.trace = Trace(violations=self.rules.found)
        self.keep = keep
        self.now = 0.0
        self.heap: list[tuple[float, int, bool, Future]] = []
        self.order = 0
        self.real = 0
        """Entries of the heap that are not periodic: without them nothing will ever happen."""
        self.next_index = resume.next_index
        self.instances: dict[str, Instance] = {}
        self.parked: dict[tuple[int, int], Run] = {}
        self.trainer_free = 0.0
        self.performs: dict[type, Callable[[Any], None]] = {
            c.RequestPrompts: self._prompts,
            c.Admit: self._admit,
            c.Park: self._park,
            c.Materialize: self._materialize,
            c.Dispatch: self._dispatch,
            c.Publish: self._publish,
            c.LoadWeights: self._load,
            c.Migrate: self._migrate,
            c.Abort: self._abort,
            c.Evaluate: self._evaluate,
            c.Checkpoint: self._checkpoint,
            c.Stop: self._stop,
        }

    def run(self, most_events: int = 10_000_000) -> Trace:
        """Drive the machine until it stops, is killed, stalls, or has taken `most_events` (which counts as a stall)."""
        trace, machine, world = self.trace, self.machine, self.world
        self._begin()
        quiet = events = 0
        while self.heap and trace.stop is None:
            now, _, real, future = heappop(self.heap)
            if now >= world.kill_at:
                return trace
            self.now = now
            self.real -= real
            # Periodic events alone can still wake a machine, but three rounds of them that change nothing will go on for ever.
            quiet = 0 if self.real or real else quiet + 1
            if (event := future()) is not None:
                events += 1
                self._take(event)
            if quiet > 3 * (1 + len(self.instances)) or events >= most_events:
                break
        trace.end = self.now
        if trace.stop is None:
            trace.stalled = "; ".join(map(str, machine.waits(self.now))) or "nothing is waited for"
        self.rules.close()
        return trace

    def _take(self, event: e.Event) -> None:
        """Hand the machine an event and perform what it commands."""
        self._record(event)
        for command in self.machine.step(event, self.now):
            self._record(command)
            if (perform := self.performs.get(type(command))) is not None:
                perform(command)

    def _begin(self) -> None:
        world = self.world
        self._after(0.0, e.Started)
        for spec in world.instances:
            self._at(spec.comes, lambda spec=spec: self._up(spec))  # type: ignore[misc]
            for lost, back in spec.outages:
                self._at(lost, lambda spec=spec: self._lost(spec.name))  # type: ignore[misc]
                self._at(back, lambda spec=spec: self._up(spec))  # type: ignore[misc]
        if world.stop is not None:
            when, how = world.stop
            self._at(when, lambda: e.StopRequested(how, "asked to"))
        if world.timer:
            self._at(world.timer, self._timer, real=False)

    def _record(self, record: e.Event | c.Command) -> None:
        self.rules.feed(record, self.now)
        if self.keep:
            self.trace.records.append((self.now, record))

    def _at(self, when: float, future: Future, real: bool = True) -> None:
        self.order += 1
        self.real += real
        heappush(self.heap, (when, self.order, real, future))

    def _after(self, seconds: float, future: Future) -> None:
        self._at(self.now + seconds, future)

    def _fails(self, command: int, error: str) -> Future:
        return lambda: e.CommandFailed(command, error)

    # What happens by itself

    def _timer(self) -> e.Event:
        self._at(self.now + self.world.timer, self._timer, real=False)
        return e.Timer()

    def _up(self, spec: FakeInstance) -> e.Event | None:
        if spec.name in self.instances:
            return None
        instance = self.instances[spec.name] = Instance(spec, self.now)
        if self.world.report:
            self._at(self.now + self.world.report, lambda: self._report(instance), real=False)
        return e.InstanceUp(spec.info())

    def _report(self, instance: Instance) -> e.Event | None:
        if not instance.up:
            return None
        self._at(self.now + self.world.report, lambda: self._report(instance), real=False)
        instance.progress(self.now)
        used = sum(round(run.tokens - instance.left(run)) for run in instance.runs.values())
        speed, running = instance.load()
        return e.InstanceReport(instance.spec.name, used, speed, running, 0)

    def _lost(self, name: str) -> e.Event | None:
        instance = self.instances.pop(name, None)
        if instance is None:
            return None
        instance.up = False
        instance.progress(self.now)
        for key, run in instance.runs.items():
            run.left = instance.left(run)
            if self.world.chance(self.world.late, w.LATE, *key):
                self._after(1.0, lambda run=run: self._answer(run))  # type: ignore[misc]
            run.ended = run.lost = True
        self.parked = {key: run for key, run in self.parked.items() if run.instance is not instance}
        return e.InstanceLost(name, "its process ended")

    # Rollout

    def _prompts(self, command: c.RequestPrompts) -> None:
        limit = self.world.prompts
        left = command.count if limit is None else max(0, limit - self.next_index)
        indices = tuple(range(self.next_index, self.next_index + min(command.count, left)))
        self.next_index += len(indices)
        if indices:
            self._after(self.world.prompt_seconds, lambda: e.PromptsArrived(command.id, indices))
        if len(indices) < command.count or (self.world.end_early and self.next_index == limit):
            self._after(self.world.prompt_seconds, lambda: e.DataEnded(command.id))

    def _admit(self, command: c.Admit) -> None:
        if (instance := self.instances.get(command.instance)) is None:
            return
        key = (command.group, command.sample)
        run = Run(command, instance, self.world.tokens(*key))
        if (parked := self.parked.pop(key, None)) is not None and parked.admit.attempt == command.attempt:
            run.left, run.low = parked.left, parked.low
        if self.world.chance(self.world.failure, w.FAILURE, *key, command.attempt):
            run.left *= w.draw(self.world.seed, w.FAIL_WHEN, *key, command.attempt)
        self._start(run, instance)

    def _start(self, run: Run, instance: Instance) -> None:
        instance.join(run, self.now)
        most = self.trace.most_running
        most[instance.spec.name] = max(most.get(instance.spec.name, 0), len(instance.runs))
        self._decode(instance)

    def _decode(self, instance: Instance) -> None:
        """Look forward to the next trajectory that ends on an instance; what was looked forward to before is void."""
        if (coming := instance.next()) is not None:
            (when, run), turn = coming, instance.turn
            self._at(when, lambda: self._end(run) if instance.up and instance.turn == turn else None)

    def _end(self, run: Run) -> e.Event | None:
        self._leave(run)
        if self.world.chance(self.world.late, w.LATE, *run.key):
            self._after(0.5, lambda: self._answer(run))
        return self._answer(run)

    def _leave(self, run: Run) -> None:
        """The run gives its slot back."""
        instance = run.instance
        run.ended = True
        instance.leave(run, self.now)
        self._decode(instance)
        if not instance.runs:
            self._after(0.0, lambda: e.InstanceIdle(instance.spec.name) if instance.up and not instance.runs else None)

    def _answer(self, run: Run) -> e.Event:
        a, name = run.admit, run.instance.spec.name
        if self.world.chance(self.world.failure, w.FAILURE, a.group, a.sample, a.attempt):
            return e.TrajectoryFailed(a.id, a.group, a.sample, a.attempt, name, "out of luck")
        return e.TrajectoryFinished(a.id, a.group, a.sample, a.attempt, name, run.tokens, run.low, run.high)

    def _find(self, command: c.Park | c.Abort) -> Run | None:
        instance = self.instances.get(command.instance)
        return instance.runs.get((command.group, command.sample, command.attempt)) if instance else None

    def _park(self, command: c.Park) -> None:
        if (run := self._find(command)) is None:
            return self._after(0.0, self._fails(command.id, "it does not run here"))
        self._leave(run)
        self.parked[command.group, command.sample] = run
        done = round(run.tokens - run.left)
        at = (command.group, command.sample, command.attempt, command.instance)
        self._after(0.0, lambda: e.TrajectoryParked(command.id, *at, done))

    def _abort(self, command: c.Abort) -> None:
        self.parked.pop((command.group, command.sample), None)
        if (run := self._find(command)) is not None:
            self._leave(run)
        self._after(0.0, lambda: e.Aborted(command.id))

    def _migrate(self, command: c.Migrate) -> None:
        seconds = self.world.migrate_seconds
        if self.world.chance(self.world.migrate_failure, w.MOVE, command.id):
            return self._after(seconds, self._fails(command.id, "the link broke"))
        source, target = self.instances.get(command.source), self.instances.get(command.target)
        runs = [run for run in (source.runs.values() if source else ()) if run.key[:2] in command.trajectories]
        self._after(seconds, lambda: self._moved(command, runs, target))

    def _moved(self, command: c.Migrate, runs: list[Run], target: Instance | None) -> e.Event:
        """What still runs on the source goes on on the target; so may, with `late`, what was under way when the source was lost."""
        if target is None or not target.up:
            return e.CommandFailed(command.id, f"{command.target} is gone")
        moved = [run for run in runs if self._travels(run)]
        if not moved and any(run.lost for run in runs):
            return e.CommandFailed(command.id, f"{command.source} is gone")
        for run in moved:
            if not run.lost:
                self._leave(run)
            run.ended = run.lost = False
            self._start(run, target)
        return e.Migrated(command.id, tuple(run.key[:2] for run in moved))

    def _travels(self, run: Run) -> bool:
        return not run.ended or (run.lost and self.world.chance(self.world.late, w.LATE, *run.key))

    def _load(self, command: c.LoadWeights) -> None:
        seconds = self.world.load_seconds
        instance = self.instances.get(command.instance)
        if self.world.chance(self.world.load_failure, w.LOAD, command.id):
            return self._after(seconds, lambda: self._load_failed(command, instance))
        self._after(seconds, lambda: self._live(command, instance))

    def _load_failed(self, command: c.LoadWeights, instance: Instance | None) -> e.Event | None:
        """The pool gives the instance up and starts it again."""
        if instance is None or not instance.up or self._lost(command.instance) is None:
            return None
        self._after(1.0, lambda: self._up(instance.spec))
        return e.CommandFailed(command.id, "the transfer broke")

    def _live(self, command: c.LoadWeights, instance: Instance | None) -> e.Event | None:
        if instance is None or not instance.up:
            return None
        instance.version = command.version
        if instance.spec.versions_held == 1:
            for run in instance.runs.values():
                run.high = command.version
        return e.WeightsLive(command.id, command.instance, command.version, f"weights of version {command.version}", 0.0, 1e-3)

    # Rewards and training

    def _materialize(self, command: c.Materialize) -> None:
        world, group = self.world, command.group
        slow = world.chance(world.slow_reward, w.REWARD, group)
        seconds = world.reward_seconds * (50.0 if slow else 1.0)
        if world.chance(world.reward_failure, w.REWARD_FAILURE, group):
            return self._after(seconds, self._fails(command.id, f"the reward of group {group} raised"))
        samples = len(command.samples)
        if world.chance(world.lost_rewards, w.SURVIVORS, group) and self.schedule.on_failure == "drop_sample":
            samples -= 1
        few = samples < min(2, self.schedule.group_size)
        drop = few or world.chance(world.dropped, w.DROP, group)
        signal = not world.chance(world.no_signal, w.SIGNAL, group)
        reason = "too few survivors" if few else "too long" if drop else ""
        self._after(seconds, lambda: e.GroupMaterialized(command.id, group, signal, samples, reason, drop))

    def _dispatch(self, command: c.Dispatch) -> None:
        consumed = max(self.now, self.trainer_free) + len(command.groups) * self.world.group_seconds
        self._at(consumed, lambda: e.DispatchConsumed(command.id))
        self.trainer_free = consumed
        if command.step:
            self.trainer_free += self.world.update_seconds
            self._at(self.trainer_free, lambda: e.UpdateFinished(command.id, command.update))

    def _publish(self, command: c.Publish) -> None:
        fingerprint = f"weights of version {command.version}"
        self._after(self.world.publish_seconds, lambda: e.Published(command.id, command.version, fingerprint))

    def _evaluate(self, command: c.Evaluate) -> None:
        self._after(self.world.evaluate_seconds, lambda: e.Evaluated(command.id))

    def _checkpoint(self, command: c.Checkpoint) -> None:
        self._after(self.world.checkpoint_seconds, lambda: e.CheckpointDone(command.id, command.update))

    def _stop(self, command: c.Stop) -> None:
        self.trace.stop = command


def simulate(schedule: Schedule, world: World, resume: Resume | None = None, *, keep: bool = True) -> Trace:
    """Run `schedule` in `world` from `resume`, rules 1-8 included. Deterministic: equal arguments give equal traces."""
    return Simulation(schedule, world, resume, keep).run()


_EVENTS = frozenset(e.Event.__args__)
