import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from runtime_builders import schedule

from paceline.core.commands import Command, Publish, RequestPrompts, Stop, Warn
from paceline.core.events import CommandFailed, Event, Published, Started, Timer
from paceline.core.machine import Machine
from paceline.core.rules import Rules
from paceline.core.schedule import Resume
from paceline.runtime.driver import Driver, Performer
from paceline.runtime.ledger import Direction
from paceline.types.errors import TrainerError


class Journal:
    """A ledger in memory that knows what a crash would leave."""

    def __init__(self) -> None:
        self.open: list[Event | Command] = []
        self.durable: list[Event | Command] = []

    def append(self, direction: Direction, now: float, value: Event | Command) -> None:
        self.open.append(value)

    def commit(self) -> None:
        self.durable += self.open
        self.open = []


def driver(journal: Journal) -> Driver:
    return Driver(Machine(schedule(), Resume()), Rules(schedule(), Resume()), journal, timer_s=0.01)


def performers(publish: Performer) -> dict[type, Performer]:
    async def never(command: Any) -> None:
        await asyncio.Event().wait()

    return {Publish: publish, RequestPrompts: never, Warn: lambda command: None}


async def test_payload_then_ledger_row_then_the_command_is_performed() -> None:
    journal, order = Journal(), []

    def payload(commands: Sequence[Command]) -> None:
        order.append(("payload", [type(c) for c in commands if c not in journal.durable]))

    def publish(command: Publish) -> None:
        order.append(("performed", [type(record) for record in journal.durable]))
        driving.fail(KeyError("enough"))

    driving = driver(journal)
    with pytest.raises(KeyError, match="enough"):
        await driving.run(performers(publish), payload)
    first, second = order[:2]
    assert first[0] == "payload"
    assert Publish in first[1]
    assert second[0] == "performed"
    assert {Started, Publish} <= set(second[1])


async def test_work_that_waits_until_something_is_heard_comes_after_its_commands() -> None:
    journal, order = Journal(), []
    driving = driver(journal)
    driving.when_heard(lambda: order.append("heard"))  # Started stands before it

    def publish(command: Publish) -> None:
        order.append("performed")
        driving.when_heard(lambda: driving.fail(KeyError("enough")))

    with pytest.raises(KeyError, match="enough"):
        await driving.run(performers(publish))
    assert order == ["performed", "heard"]


class SlowDisk(Journal):
    """Every commit takes as long as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.begun, self.may_end = 0, threading.Event(), threading.Event()

    def commit(self) -> None:
        self.writes += 1
        assert self.writes == 1, "two threads wrote at a time"
        self.begun.set()
        self.may_end.wait(10)
        super().commit()
        self.writes -= 1


async def test_workers_are_heard_while_rows_become_durable_and_nothing_is_performed_before() -> None:
    journal, performed = SlowDisk(), []
    driving = driver(journal)

    def publish(command: Publish) -> None:
        performed.append(command)
        driving.fail(KeyError("enough"))

    running = asyncio.create_task(driving.run(performers(publish)))
    async with asyncio.timeout(10):
        while not journal.begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert performed == []
        journal.may_end.set()
        with pytest.raises(KeyError, match="enough"):
            await running
    assert len(performed) == 1


async def test_a_run_that_is_cancelled_while_it_writes_ends_when_the_disk_is_done() -> None:
    journal = SlowDisk()
    running = asyncio.create_task(driver(journal).run(performers(lambda command: None)))
    async with asyncio.timeout(10):
        while not journal.begun.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done()
        journal.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (journal.writes, journal.open) == (0, [])
    assert any(isinstance(record, Publish) for record in journal.durable)


async def test_what_is_heard_while_nothing_is_to_be_done_is_durable_at_the_next_tick() -> None:
    """So that nobody takes a run for stuck that waits for minutes."""
    journal = Journal()
    driving = driver(journal)
    running = asyncio.create_task(driving.run(performers(lambda command: None)))
    async with asyncio.timeout(10):
        while not any(isinstance(record, Timer) for record in journal.durable):
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_error_of_paceline_answers_its_command_and_the_machine_decides() -> None:
    journal = Journal()

    async def publish(command: Publish) -> None:
        raise TrainerError("the disk is full")

    stop = await driver(journal).run(performers(publish))
    assert isinstance(stop, Stop)
    assert not stop.ok
    assert "the disk is full" in stop.reason
    assert any(isinstance(record, CommandFailed) and record.command == 1 for record in journal.durable)


async def test_any_other_error_ends_the_run_as_itself_and_leaves_no_task() -> None:
    async def publish(command: Publish) -> None:
        raise ZeroDivisionError("a fault")

    before = len(asyncio.all_tasks())
    with pytest.raises(ZeroDivisionError, match="a fault"):
        await driver(Journal()).run(performers(publish))
    assert len(asyncio.all_tasks()) == before


async def test_late_and_repeated_answers_are_recorded_and_ignored() -> None:
    journal = Journal()

    async def publish(command: Publish) -> None:
        for _ in range(2):
            driving.post(Published(command.id, command.version, "x"))
        driving.post(Published(99, 7, "never asked for"))
        await asyncio.sleep(0.05)
        driving.fail(KeyError("enough"))

    driving = driver(journal)
    with pytest.raises(KeyError, match="enough"):
        await driving.run(performers(publish))
    assert len([record for record in journal.durable if isinstance(record, Published)]) == 3
    assert len([record for record in journal.durable if isinstance(record, Publish)]) == 1
