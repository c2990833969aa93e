"""What an instance reports of its speed: the steps that sampled tokens, and nothing else."""

import asyncio
from itertools import count
from typing import Any

import pytest
from runtime_builders import prompt

from paceline.core.commands import Admit
from paceline.core.events import Event, InstanceReport
from paceline.ports.fakes.engine import FakeEngine
from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerSpec
from paceline.ports.rollout import EngineLoad
from paceline.runtime.board import Board
from paceline.runtime.bodies import RolloutBody
from paceline.runtime.calls import Seat
from paceline.runtime.rollout import RolloutFleet
from paceline.types.records import Request, Sampling


def request(sample: int, tokens: int) -> Request:
    return Request(0, sample, 0, prompt().ids, Sampling(tokens), 0, 0)


def test_a_worker_counts_the_steps_that_sample_and_their_seconds_and_no_idle_ones() -> None:
    ticks = count()
    body = RolloutBody(FakeEngine(slots=4, length=lambda one: one.sampling.max_tokens), clock=lambda: float(next(ticks)))
    assert body.tick() is None
    body.call("submit", [request(0, 3), request(1, 5)])
    while body.tick() is not None:
        pass
    assert body.tick() is None
    load: EngineLoad = body.call("load_state")
    assert (load.tokens, load.steps, load.seconds) == (8, 5, 5.0), "3 tokens beside 5 take 5 steps, of one tick of the clock each"


async def test_a_report_tells_how_many_decoded_together_since_the_one_before_and_how_fast() -> None:
    events, pool = list[Event](), InlinePool()
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], Board({0: prompt()}), Sampling(6), 0, events.append)
    (info,) = await fleet.start(lambda name, reason: None)
    fleet.announce(info)
    looking = asyncio.create_task(fleet.reports(0.02))
    try:
        for sample in range(3):
            work = fleet.admit(Admit(sample, 0, sample, 0, "rollout-0", 0))
            if work is not None:
                await work
        async with asyncio.timeout(5.0):
            while len(reports := [event for event in events if isinstance(event, InstanceReport)]) < 3 or reports[-1].running:
                await asyncio.sleep(0.005)
    finally:
        looking.cancel()
        await seat.stop(0)
    busy = [report for report in reports if report.running]
    assert busy, "three trajectories were decoded"
    assert all(0 < report.running <= 3 and report.tokens_per_second > 0 for report in busy)
    assert reports[-1].running == reports[-1].tokens_per_second == pytest.approx(0.0), "it was idle since the report before"


def slow_to_answer(instance: str) -> RolloutBody:
    """Factory: only `rollout-0` is silent."""
    return (Silent if instance == "rollout-0" else RolloutBody)(FakeEngine(instance=instance))


class Silent(RolloutBody):
    """Knows who it is, and says nothing of its load."""

    def call(self, method: str, *arguments: Any) -> Any:
        return asyncio.Event().wait() if method == "load_state" else super().call(method, *arguments)


async def test_an_instance_that_is_long_in_answering_keeps_nobody_elses_report() -> None:
    events = list[Event]()
    specs = [WorkerSpec(name, f"{__name__}:slow_to_answer", {"instance": name}) for name in ("rollout-0", "rollout-1")]
    seats = [Seat(InlinePool(), spec, 60.0) for spec in specs]
    fleet = RolloutFleet(seats, Board(), Sampling(6), 0, events.append)
    for info in await fleet.start(lambda name, reason: None):
        fleet.announce(info)
    looking = asyncio.create_task(fleet.reports(0.01))
    try:
        async with asyncio.timeout(5.0):
            while len(reports := [event for event in events if isinstance(event, InstanceReport)]) < 3:
                await asyncio.sleep(0.005)
    finally:
        looking.cancel()
        for seat in seats:
            await seat.stop(0)
    assert {report.instance for report in reports} == {"rollout-1"}
