import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from runtime_bodies import engine
from runtime_builders import prompt

from paceline.core.commands import Admit
from paceline.core.events import Event, InstanceLost, InstanceUp, TrajectoryFinished
from paceline.ports.fakes.pool import InlinePool, InlineWorker
from paceline.ports.pool import WorkerBody, WorkerSpec
from paceline.ports.rollout import Failure
from paceline.runtime.board import Board
from paceline.runtime.calls import MAX_RESTARTS, Seat
from paceline.runtime.reward import RewardFleet
from paceline.runtime.rollout import RolloutFleet
from paceline.types.errors import EngineError, WorkerLost
from paceline.types.records import Request, Sampling, Trajectory


async def test_an_admission_to_an_instance_that_was_lost_meanwhile_leaves_nothing_behind() -> None:
    events, pool = list[Event](), InlinePool()
    board = Board({0: prompt()})
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], board, Sampling(4), 0, events.append)
    (info,) = await fleet.start(lambda name, reason: None)
    fleet.announce(info)
    seat.kill("it is time")
    while len(events) < 2:
        await asyncio.sleep(0)
    assert isinstance(events[1], InstanceLost)
    assert fleet.admit(Admit(1, 0, 0, 0, "rollout-0", 0)) is None
    assert not fleet.runs("rollout-0", (0, 0)), "nothing is waited for"


def refusing(instance: str) -> WorkerBody:
    """An engine that takes no requests."""
    body = engine(instance)
    answer = body.call

    def call(method: str, *arguments: Any) -> Any:
        if method == "submit":
            raise EngineError("not today")
        return answer(method, *arguments)

    body.call = call  # type: ignore[method-assign]
    return body


async def test_an_engine_that_refuses_requests_is_lost_with_all_of_them_so_that_none_is_waited_for() -> None:
    events, pool = list[Event](), InlinePool()
    seat = Seat(pool, WorkerSpec("rollout-0", f"{__name__}:refusing", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], Board({0: prompt()}), Sampling(4), 0, events.append)
    for info in await fleet.start(lambda name, reason: None):
        fleet.announce(info)
    sent = [fleet.admit(Admit(sample, 0, sample, 0, "rollout-0", 0)) for sample in range(2)]
    assert sent[0] is not None
    await sent[0]
    while len(events) < 2:
        await asyncio.sleep(0)
    assert events[1] == InstanceLost("rollout-0", "worker rollout-0 was ended: not today")
    assert not any(fleet.runs("rollout-0", (0, sample)) for sample in range(2))


class Fragile(InlinePool):
    """After the first start, `faults` happen in turn: the next worker does not start, or is killed as soon as it has."""

    def __init__(self, *faults: str) -> None:
        super().__init__()
        self.faults = list(faults)
        self.starts = 0

    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> InlineWorker:
        self.starts += 1
        fault = self.faults.pop(0) if self.starts > 1 and self.faults else ""
        if fault == "does not start":
            raise WorkerLost(f"worker {spec.name} ended while it started: signal SIGKILL")
        worker = await super().start(spec, on_report, on_lost)
        if fault == "dies when it has":
            worker.kill()
        return worker


async def replaced(pool: Fragile) -> list[Event]:
    """Events of a fleet of one whose instance is killed, until the restart is over; raises what ended that."""
    events: list[Event] = []
    over: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], Board(), Sampling(4), 0, events.append)
    for info in await fleet.start(lambda name, reason: over.put_nowait(asyncio.create_task(fleet.replace(name, reason)))):
        fleet.announce(info)
    seat.kill("it is time")
    await (await over.get())
    await asyncio.sleep(0.01)
    assert over.empty(), "a loss during a restart starts no second one"
    await seat.stop(0)
    return events


@pytest.mark.parametrize("fault", ["does not start", "dies when it has"])
async def test_a_worker_that_is_lost_while_it_starts_again_is_started_once_more(fault: str) -> None:
    pool = Fragile(fault, fault)
    assert [type(event) for event in await replaced(pool)] == [InstanceUp, InstanceLost, InstanceUp]
    assert pool.starts == 4


async def test_a_worker_that_never_starts_again_ends_the_run_after_a_bounded_number_of_tries_with_the_last_reason() -> None:
    pool = Fragile(*["does not start"] * 99)
    with pytest.raises(WorkerLost, match=r"rollout-0 was lost 6 times in a row; the last time: .*signal SIGKILL"):
        await replaced(pool)
    assert pool.starts == 1 + MAX_RESTARTS


async def test_an_instance_that_is_gone_before_the_machine_hears_of_it_ends_the_start_by_name() -> None:
    events, pool = list[Event](), InlinePool()
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], Board(), Sampling(4), 0, events.append)
    (info,) = await fleet.start(lambda name, reason: None)
    seat.kill("it is time")
    await asyncio.sleep(0.01)
    with pytest.raises(WorkerLost, match="rollout-0 was lost as soon as it was up: worker rollout-0 was ended: it is time"):
        fleet.announce(info)
    assert events == []


async def test_a_reward_worker_that_is_lost_while_it_starts_again_is_started_once_more() -> None:
    pool, over = Fragile("does not start", "does not start"), asyncio.Queue[asyncio.Task[None]]()
    seat = Seat(pool, WorkerSpec("reward-0", "runtime_bodies:judge", {}), 5.0)
    fleet = RewardFleet([seat], ["lengthy"], 5.0, Board(), lambda event: None)
    await fleet.start(lambda lost, reason: over.put_nowait(asyncio.create_task(fleet.replace(lost, reason))))
    seat.kill("it is time")
    await (await over.get())
    await fleet.check([prompt()], 5.0)
    assert pool.starts == 4
    await seat.stop(0)


async def test_an_evaluation_and_training_of_the_same_numbers_end_and_are_taken_back_apart() -> None:
    events, evaluated, pool = list[Event](), list[Trajectory | Failure](), InlinePool()
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], Board({0: prompt()}), Sampling(8), 0, events.append)
    fleet.on_eval = evaluated.append
    for info in await fleet.start(lambda name, reason: None):
        fleet.announce(info)
    sent = [fleet.admit(Admit(sample, 0, sample, -1, "rollout-0", 0)) for sample in range(2)]  # even the attempt is an evaluation's
    assert sent[0] is not None
    assert sent[1] is None, "both travel as one call"
    await sent[0]
    requests = [Request(0, sample, -1, prompt().ids, Sampling(8), 0, 0, "eval") for sample in range(2)]
    await asyncio.gather(fleet.submit("rollout-0", requests), fleet.cancel("rollout-0", 0, 1))
    async with asyncio.timeout(5):
        while len(events) < 3 or not evaluated:
            await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert sorted(event.sample for event in events if isinstance(event, TrajectoryFinished)) == [0, 1]
    assert [(answer.purpose, answer.sample) for answer in evaluated] == [("eval", 0)]
    await seat.stop(0)
