"""The loop of a run: events in, the machine decides, commands out. It decides nothing itself.

    event -> ledger -> rules -> Machine.step -> ledger -> (durable) -> performers -> events

Performers are coroutines, one per kind of command; each posts the events that answer its command. An error of paceline in a performer
answers the command with `CommandFailed`, so that the machine applies the failure policy. The loss of the trainer, which no policy covers,
ends the run as itself, and so does any other error: it is a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.commands import Command, Stop
from paceline.core.events import CommandFailed, Event, Started, Timer
from paceline.core.machine import Machine
from paceline.core.rules import Rules
from paceline.runtime.calls import off_loop
from paceline.runtime.ledger import Direction
from paceline.types.errors import LedgerError, PacelineError, RuleViolated, TrainerLost

Performer = Callable[[Any], Coroutine[Any, Any, None] | None]
"""Performs one command: at once when it returns None, else as a task."""
TIMER_S = 5.0


class Records(Protocol):
    """Where events and commands go; `ledger.Ledger` is the durable one."""

    def append(self, direction: Direction, now: float, value: Event | Command) -> None:
        """Add a row."""

    def commit(self) -> None:
        """Return when every row is durable."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """Work that waits for the events before it."""

    work: Callable[[], object]


class Driver:
    """Drives one lineage. `post` and `fail` belong on the event loop that awaits `run`."""

    def __init__(
        self, machine: Machine, rules: Rules, ledger: Records, *, clock: Callable[[], float] = time.monotonic, timer_s: float = TIMER_S,
        watch: Callable[[Event | Command, float], None] = lambda record, now: None,
    ) -> None:  # fmt: skip
        """`watch` sees every record with its time, after the rules."""
        self._machine = machine
        self._rules = rules
        self._ledger = ledger
        self._clock = clock
        self._timer_s = timer_s
        self._watch = watch
        self._began = clock()
        self._queue: asyncio.Queue[Event | _Heard | BaseException] = asyncio.Queue()
        self._heard: list[_Heard] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False
        """Whether the loop has ended: nothing that begins now would be heard, or ended with the run."""
        self.post(Started())

    def now(self) -> float:
        """Seconds since the lineage started."""
        return self._clock() - self._began

    def post(self, event: Event) -> None:
        """Tell the machine that something happened."""
        self._queue.put_nowait(event)

    def when_heard(self, work: Callable[[], object]) -> None:
        """Call `work` once the machine has decided upon every event posted so far, and its commands are being performed."""
        self._queue.put_nowait(_Heard(work))

    def fail(self, error: BaseException) -> None:
        """End the run with an error that no policy covers."""
        self._queue.put_nowait(error)

    async def run(
        self, performers: Mapping[type, Performer], before_commit: Callable[[Sequence[Command]], None] = lambda commands: None
    ) -> Stop:
        """Run until the machine says stop. `before_commit` makes the payloads durable that commands rely on.

        Raises RuleViolated, or whatever `fail` was given. No task of this driver is left when it returns.
        """
        self.background(self._tick())
        try:
            while True:
                events = await self._arrived()
                commands = self._decide(events)
                if commands or any(isinstance(event, Timer) for event in events):  # who looks at a run that only waits sees where it is
                    await self._make_durable(commands, before_commit)
                for command in commands:
                    if isinstance(command, Stop):
                        self._close_rules(command)
                        return command
                    self._perform(performers, command)
                heard, self._heard = self._heard, []
                for one in heard:
                    one.work()
        except BaseException:
            with contextlib.suppress(LedgerError):  # what ended the run is what is to be told; a full disk tells it twice
                self._ledger.commit()
            raise
        finally:
            await self.close()

    async def _make_durable(self, commands: Sequence[Command], before_commit: Callable[[Sequence[Command]], None]) -> None:
        """Wait for the disk off the event loop: workers are heard, and judges given their next group, meanwhile."""

        def _write() -> None:
            before_commit(commands)
            self._ledger.commit()

        await off_loop(_write)

    async def close(self) -> None:
        """Cancel and await everything that still runs."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the loop; it ends with the run, and an error in it ends the run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _arrived(self) -> list[Event]:
        """What came, and all that came with it: one durable commit serves them all."""
        events: list[Event] = []
        item = await self._queue.get()
        while True:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, _Heard):
                self._heard.append(item)
            else:
                events.append(item)
            if self._queue.empty():
                return events
            item = self._queue.get_nowait()

    def _decide(self, events: Sequence[Event]) -> list[Command]:
        commands: list[Command] = []
        for event in events:
            now = self.now()
            self._record("event", event, now)
            for command in self._machine.step(event, now):
                self._record("command", command, now)
                commands.append(command)
                if isinstance(command, Stop):
                    return commands
        return commands

    def _record(self, direction: Direction, value: Event | Command, now: float) -> None:
        self._ledger.append(direction, now, value)
        violation = self._rules.feed(value, now)
        if violation is not None:
            raise RuleViolated(str(violation))
        self._watch(value, now)

    def _close_rules(self, stop: Stop) -> None:
        late = self._rules.close() if stop.ok else []
        if late:
            raise RuleViolated("; ".join(map(str, late)))

    def _perform(self, performers: Mapping[type, Performer], command: Command) -> None:
        work = performers[type(command)](command)
        if work is not None:
            task = self.background(self._answered(command, work))
            task.add_done_callback(lambda _: work.close())  # it never began if the run ended first

    async def _answered(self, command: Command, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TrainerLost:
            raise
        except PacelineError as error:
            self.post(CommandFailed(command.id, f"{type(command).__name__}: {error}"))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._timer_s)
            self.post(Timer())
