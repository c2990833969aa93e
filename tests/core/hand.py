"""A small hand driver for tests of the machine: answers commands after random times, with failures, filters and lost instances.

It checks nothing of the rules beyond what it needs to run; the rules have their own tests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.schedule import Resume, Schedule
from paceline.types.weights import InstanceInfo


def schedule(preset: str = "serial", **values: Any) -> Schedule:
    """A schedule with small numbers; groups_per_round etc. follow from U unless given."""
    u = values.pop("u", 2)
    r = values.pop("r", u)
    rounds = preset in ("serial", "pipelined")
    upp = -(-r // u) if rounds else values.pop("upp", 1)
    defaults: dict[str, Any] = dict(
        group_size=2,
        groups_per_round=r if rounds else u * upp,
        groups_per_update=u,
        groups_per_dispatch=values.pop("d", u),
        updates_per_publish=upp,
        start_when="all" if preset == "serial" else "dispatch",
        total_updates=4,
    )
    return Schedule(preset=preset, **{**defaults, **values})  # type: ignore[arg-type]


@dataclass
class World:
    """What the outside does. Probabilities are per event; times are seconds."""

    instances: int = 1
    slots: int = 4
    versions_held: int = 1
    exports_kv: bool = False
    prompts: int = 10**9
    no_signal: float = 0.0
    drop: float = 0.0
    fail: float = 0.0
    lose: float = 0.0
    slow: int = 0
    """Instances that are 20 times slower."""
    move_fails: float = 0.0
    update_seconds: float = 5.0
    reports: bool = False
    timer: float = 50.0
    hang: frozenset[int] = frozenset()
    """Groups whose trajectories never finish."""


@dataclass
class Drive:
    """Runs a machine against a world; keeps every event and command."""

    schedule: Schedule
    world: World = field(default_factory=World)
    seed: int = 0
    resume: Resume | None = None
    stop_at: tuple[int, str] | None = None
    limit: int = 200_000

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.machine = Machine(self.schedule, self.resume or Resume())
        self.commands: list[Any] = []
        self.events: list[Any] = []
        self.queue: list[tuple[float, int, Any]] = []
        self.serial = count()
        self.now = 0.0
        self.up: set[str] = set()
        self.running: dict[tuple[int, int, int], list[Any]] = {}
        self.next_prompt = (self.resume or Resume()).next_index
        self.stale = 0
        self.stop: c.Stop | None = None

    def at(self, delay: float, event: Any) -> None:
        heappush(self.queue, (self.now + delay, next(self.serial), event))

    def info(self, name: str) -> InstanceInfo:
        w = self.world
        return InstanceInfo(name, w.slots, 1000, w.versions_held, w.exports_kv)

    def run(self) -> Drive:
        self.feed(e.Started())
        for i in range(self.world.instances):
            name = f"i{i}"
            self.up.add(name)
            self.at(0.1 * i, e.InstanceUp(self.info(name)))
        if self.world.timer:
            self.at(self.world.timer, e.Timer())
        steps = 0
        while self.queue and self.stop is None:
            steps += 1
            assert steps < self.limit, "the run does not end"
            if self.stop_at and steps == self.stop_at[0]:
                self.feed(e.StopRequested(self.stop_at[1], "test"))  # type: ignore[arg-type]
                continue
            self.now, _, event = heappop(self.queue)
            self._deliver(event)
        assert self.stop is not None, f"stalled: {self.machine.waits(self.now)}"
        return self

    def _deliver(self, event: Any) -> None:
        match event:
            case e.InstanceUp():
                self.up.add(event.info.instance)
            case e.TrajectoryFinished() | e.TrajectoryFailed():
                entry = self.running.get((event.group, event.sample, event.attempt))
                if entry is None or entry[0] is not event:
                    return
                del self.running[event.group, event.sample, event.attempt]
            case e.WeightsLive():
                if event.instance not in self.up:
                    return
            case e.Timer():
                if not any(not isinstance(q[2], e.Timer) for q in self.queue):
                    return
                self.at(self.world.timer, e.Timer())
                if self.world.reports:
                    for name in sorted(self.up):
                        kv = self.random.randrange(1000)
                        self.feed(e.InstanceReport(name, kv, 1 + 50 * self.random.random(), self.random.randrange(1, 5), 0))
                if self.up and self.random.random() < self.world.lose:
                    name = self.random.choice(sorted(self.up))
                    self._lose(name)
        self.feed(event)

    def _lose(self, name: str) -> None:
        self.up.remove(name)
        for key in [k for k, entry in self.running.items() if entry[1] == name]:
            del self.running[key]
        self.queue = [
            q for q in self.queue if not (isinstance(q[2], e.WeightsLive | e.Aborted) and getattr(q[2], "instance", None) == name)
        ]
        self.queue.sort()
        self.feed(e.InstanceLost(name, "killed"))
        self.at(30 + self.random.random(), e.InstanceUp(self.info(name)))

    def feed(self, event: Any) -> list[Any]:
        self.events.append((event, self.now))
        commands = self.machine.step(event, self.now)
        for command in commands:
            assert self.stop is None
            self.commands.append(command)
            self.perform(command)
        return commands

    def perform(self, command: Any) -> None:
        """Do what the command asks, and answer it later."""
        action = getattr(self, f"_do_{type(command).__name__.lower()}", None)
        if action is not None:
            action(command)

    def _soon(self, event: Any, within: float = 1.0) -> None:
        self.at(within * self.random.random(), event)

    def _do_requestprompts(self, command: c.RequestPrompts) -> None:
        stop = min(self.next_prompt + command.count, self.world.prompts)
        got = tuple(range(self.next_prompt, stop))
        self.next_prompt = max(stop, self.next_prompt)
        if got:
            self._soon(e.PromptsArrived(command.id, got))
        if len(got) < command.count:
            self.at(1.0, e.DataEnded(command.id))

    def _do_admit(self, command: c.Admit) -> None:
        assert sum(entry[1] == command.instance for entry in self.running.values()) < self.world.slots, "no free slot"
        if command.group in self.world.hang:
            return
        base = (command.group, command.sample, command.attempt, command.instance)
        event: Any = e.TrajectoryFinished(command.id, *base, 10, command.version, command.version)
        if self.random.random() < self.world.fail:
            event = e.TrajectoryFailed(command.id, *base, "boom")
        self.running[base[:3]] = [event, command.instance]
        slow = 20 if int(command.instance[1:]) < self.world.slow else 1
        self.at(slow * (1 + self.random.random() ** -0.5), event)

    def _do_abort(self, command: c.Abort) -> None:
        self.running.pop((command.group, command.sample, command.attempt), None)
        self._soon(e.Aborted(command.id))

    def _do_materialize(self, command: c.Materialize) -> None:
        signal, drop = self.random.random() >= self.world.no_signal, self.random.random() < self.world.drop
        self._soon(e.GroupMaterialized(command.id, command.group, signal, len(command.samples), "", drop))

    def _do_dispatch(self, command: c.Dispatch) -> None:
        self._soon(e.DispatchConsumed(command.id), self.world.update_seconds)
        if command.step:
            self.at(self.world.update_seconds, e.UpdateFinished(command.id, command.update))
        self.stale = max([self.stale, *command.staleness])

    def _do_publish(self, command: c.Publish) -> None:
        self._soon(e.Published(command.id, command.version, "x"))

    def _do_loadweights(self, command: c.LoadWeights) -> None:
        if command.instance in self.up:
            self._soon(e.WeightsLive(command.id, command.instance, command.version, "x", 0.0, 1.0))

    def _do_migrate(self, command: c.Migrate) -> None:
        if self.random.random() < self.world.move_fails:
            self._soon(e.CommandFailed(command.id, "no"))
            return
        moved = []
        for key, entry in self.running.items():
            movable = key[:2] in command.trajectories and entry[1] == command.source and command.target in self.up
            if movable and self.random.random() < 0.9:
                entry[1] = command.target
                moved.append(key[:2])
        self._soon(e.Migrated(command.id, tuple(moved)))

    def _do_evaluate(self, command: c.Evaluate) -> None:
        self._soon(e.Evaluated(command.id), 3.0)

    def _do_checkpoint(self, command: c.Checkpoint) -> None:
        self._soon(e.CheckpointDone(command.id, command.update))

    def _do_stop(self, command: c.Stop) -> None:
        self.stop = command

    def of(self, kind: type[Any]) -> list[Any]:
        """All commands of a kind so far."""
        return [command for command in self.commands if isinstance(command, kind)]
