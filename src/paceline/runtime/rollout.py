"""The rollout instances of a run: performs Admit and Abort, reports what they finish, and replaces the lost ones.

What the machine hears of an instance is in order: first that weights are live or that trajectories came over, then the ends that
rely on it (`holding`); first where the trajectories went that were moved away, then that the instance is lost (`leaving`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.commands import Abort, Admit, TrajectoryKey
from paceline.core.events import Aborted, Event, InstanceLost, InstanceReport, InstanceUp, TrajectoryFailed, TrajectoryFinished
from paceline.ports.rollout import EngineLoad, Failure
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat, together
from paceline.types.errors import PacelineError, WorkerLost
from paceline.types.records import VERSION, Request, Sampling, Trajectory
from paceline.types.weights import InstanceInfo

REPORT_S = 5.0
"""Seconds between two looks at the instances."""


IDLE = EngineLoad(0, 0, 0, 0)


@dataclass(slots=True)
class Instance:
    """One engine worker and what it owes."""

    seat: Seat
    running: dict[TrajectoryKey, Admit] = field(default_factory=dict)
    outbox: list[Request] = field(default_factory=list)
    """Requests of the present decision, sent together."""
    load: EngineLoad = IDLE
    """As it was at the report before."""
    up: bool = False
    """Whether the machine knows of it. Before, its loss is for those to hear who wait for it."""
    holds: int = 0
    """Answers under way that the machine must hear before any further end of a trajectory here."""
    held: list[Trajectory | Failure] = field(default_factory=list)
    moves: int = 0
    """Moves away from here under way; while there are, a loss of the instance waits to be told."""
    loss: str | None = None
    """Why it was lost, when that waits to be told."""


class RolloutFleet:
    """Engine workers by name. Training trajectories go to the board and the machine, evaluation's to `on_eval`."""

    def __init__(self, seats: Sequence[Seat], board: Board, sampling: Sampling, seed: int, post: Callable[[Event], None]) -> None:
        self._instances = {seat.name: Instance(seat) for seat in seats}
        self._board = board
        self._sampling = sampling
        self._seed = seed
        self._post = post
        self._restart: Callable[[str, str], None] = lambda name, reason: None
        self.on_eval: Callable[[Trajectory | Failure], None] = lambda ended: None
        self.on_loss: Callable[[str, str], None] = lambda name, reason: None

    @property
    def names(self) -> list[str]:
        """Instances by name, in order."""
        return list(self._instances)

    def seat(self, name: str) -> Seat:
        """The place of one instance."""
        return self._instances[name].seat

    async def start(self, restart: Callable[[str, str], None]) -> list[InstanceInfo]:
        """Start every instance together. `restart(name, reason)` is called when one is lost after `announce`."""
        self._restart = restart
        return await together(*(self._fill(name) for name in self._instances))

    def announce(self, info: InstanceInfo) -> None:
        """Tell the machine that an instance is up. Raises WorkerLost when it is gone already."""
        instance = self._instances[info.instance]
        instance.seat.present()
        instance.up = True
        self._post(InstanceUp(info))

    async def replace(self, name: str, reason: str) -> None:
        """Start a lost instance again and tell the machine. Raises WorkerLost when it keeps dying."""

        async def _again() -> None:
            self.announce(await self._fill(name))

        await self.seat(name).refill(reason, _again)

    def admit(self, command: Admit) -> Coroutine[Any, Any, None] | None:
        """Start a trajectory. Admissions of one decision travel to their instance as one call, made before any later command's."""
        instance = self._instances[command.instance]
        if not instance.seat.filled:  # its loss is an event of its own that the machine has yet to hear
            return None
        instance.running[command.group, command.sample] = command
        instance.outbox.append(self._request(command))
        return self._send(instance) if len(instance.outbox) == 1 else None

    async def _send(self, instance: Instance) -> None:
        """One that does not take requests (it has no right to refuse them all) is ended: each of them is admitted again elsewhere."""
        requests, instance.outbox = instance.outbox, []
        try:
            await self._while_there(instance.seat.call("submit", requests))
        except PacelineError as error:
            instance.seat.kill(error)

    async def abort(self, command: Abort) -> None:
        """End a trajectory without a result."""
        await self.take_back(command.instance, (command.group, command.sample), command.attempt)
        self._post(Aborted(command.id))

    async def take_back(self, name: str, key: TrajectoryKey, attempt: int | None = None) -> None:
        """End one attempt of a training trajectory on an instance, or all, if it is there."""
        instance = self._instances[name]
        await self._while_there(instance.seat.call("abort", *key, "train", attempt))
        command = instance.running.get(key)
        if command is not None and attempt in (None, command.attempt):
            del instance.running[key]

    def runs(self, name: str, key: TrajectoryKey) -> bool:
        """Whether the machine waits for the end of this trajectory from an instance."""
        return key in self._instances[name].running

    def fail(self, name: str, key: TrajectoryKey, error: str) -> None:
        """A trajectory that ran on an instance is nowhere any more."""
        command = self._instances[name].running.get(key)
        if command is not None:
            self._ended(name, Failure(*key, command.attempt, error))

    def moved(self, keys: Iterable[TrajectoryKey], source: str, target: str) -> None:
        """These trajectories run on `target` now. One that was given up meanwhile is nobody's: the machine ends it there."""
        there = self._instances[target].running
        for key in keys:
            command = self._instances[source].running.pop(key, None)
            if command is not None:
                there[key] = command

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Ends of training trajectories on an instance that arrive within the block are told after it."""
        instance = self._instances[name]
        instance.holds += 1
        try:
            yield
        finally:
            instance.holds -= 1
            if not instance.holds:
                held, instance.held = instance.held, []
                for ended in held:
                    self._ended(name, ended)

    @contextlib.contextmanager
    def leaving(self, name: str) -> Iterator[None]:
        """A loss of an instance within the block is told after it."""
        instance = self._instances[name]
        instance.moves += 1
        try:
            yield
        finally:
            instance.moves -= 1
            if not instance.moves and instance.loss is not None:
                self._lost(name, instance.loss)

    async def submit(self, name: str, requests: Sequence[Request]) -> None:
        """Send requests that the machine does not know of (evaluation). Raises WorkerLost when the instance is gone."""
        await self.seat(name).call("submit", list(requests))

    async def cancel(self, name: str, group: int, sample: int) -> None:
        """Take such a request back, wherever it is. A training trajectory of the same numbers stays."""
        await self._while_there(self.seat(name).call("abort", group, sample, "eval"))

    async def reports(self, every_s: float = REPORT_S) -> None:
        """Ask every instance for its load now and then, for ever. One that no longer answers is found and lost by that."""
        await asyncio.gather(*(self._watch(instance, every_s) for instance in self._instances.values()))

    async def _watch(self, instance: Instance, every_s: float) -> None:
        """Each by itself: one that is long in answering (it loads, or steps slowly) keeps nobody else's report."""
        while True:
            await asyncio.sleep(every_s)
            if instance.seat.filled:
                await self._look_at(instance)

    async def _look_at(self, instance: Instance) -> None:
        with contextlib.suppress(WorkerLost):  # its loss is an event of its own
            load: EngineLoad = await instance.seat.call("load_state")
            tokens, steps = load.tokens - instance.load.tokens, load.steps - instance.load.steps
            seconds = load.seconds - instance.load.seconds
            instance.load = load
            running, speed = (tokens / steps, tokens / seconds) if steps > 0 and seconds > 0 else (0.0, 0.0)
            self._post(InstanceReport(instance.seat.name, load.kv_used, speed, running, load.waiting))

    async def _fill(self, name: str) -> InstanceInfo:
        instance = self._instances[name]
        await instance.seat.fill(lambda report: self._ended(name, report), lambda reason: self._lost(name, reason))
        instance.load = IDLE
        info: InstanceInfo = await instance.seat.call("info")
        return info

    def _request(self, command: Admit) -> Request:
        prompt = self._board.prompts[command.group]
        return Request(command.group, command.sample, command.attempt, prompt.ids, self._sampling, self._seed, command.version)

    async def _while_there(self, call: Any) -> None:
        with contextlib.suppress(WorkerLost):  # its loss is an event of its own, and covers everything that ran there
            await call

    def _ended(self, name: str, ended: Trajectory | Failure) -> None:
        if ended.purpose == "eval":
            self.on_eval(ended)
            return
        instance = self._instances[name]
        if instance.holds:
            instance.held.append(ended)
            return
        command = instance.running.get((ended.group, ended.sample))
        if command is None or command.attempt != ended.attempt:  # it was aborted while its end was on the way
            return
        instance.running.pop((ended.group, ended.sample), None)
        if isinstance(ended, Failure):
            self._post(TrajectoryFailed(command.id, command.group, command.sample, command.attempt, name, ended.error))
            return
        instance.seat.useful()
        self._board.add(ended)
        self._post(_finished(command, ended, name))

    def _lost(self, name: str, reason: str) -> None:
        instance = self._instances[name]
        if not instance.up:
            return
        if instance.moves:
            instance.loss = reason
            return
        instance.up, instance.loss = False, None
        instance.running.clear()
        instance.outbox.clear()
        instance.held.clear()
        self._post(InstanceLost(name, reason))
        self.on_loss(name, reason)
        self._restart(name, reason)


def _finished(command: Admit, trajectory: Trajectory, instance: str) -> TrajectoryFinished:
    versions = trajectory.columns[VERSION]
    low, high = (int(versions.min()), int(versions.max())) if len(versions) else (command.version, command.version)
    return TrajectoryFinished(
        command.id,
        command.group,
        command.sample,
        command.attempt,
        instance,
        len(trajectory.ids),
        low,
        high,
        trajectory.finish == "length",
    )
