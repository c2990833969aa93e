import asyncio

from runtime_builders import prompt

from paceline.core.commands import Admit
from paceline.core.events import Event, InstanceLost
from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerSpec
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat
from paceline.runtime.rollout import RolloutFleet
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.records import Sampling


async def test_an_admission_to_an_instance_that_was_lost_meanwhile_leaves_nothing_behind() -> None:
    now, events, pool = 0.0, list[Event](), InlinePool()
    watch, board = Stopwatch(lambda: now), Board({0: prompt()})
    seat = Seat(pool, WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0"}), 5.0)
    fleet = RolloutFleet([seat], board, watch, Sampling(4), 0, events.append)
    await fleet.start(lambda name, reason: None)
    seat.kill()
    while not events:
        await asyncio.sleep(0)
    assert isinstance(events[0], InstanceLost)
    await fleet.admit(Admit(1, 0, 0, 0, "rollout-0", 0))
    now = 100.0
    assert watch.cut().rollout == 0.0, "nothing decodes"
