import asyncio
from collections.abc import Callable
from typing import Any

from runtime_builders import prompt, trajectory

from paceline.core.commands import Materialize
from paceline.core.events import Event, GroupMaterialized
from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerSpec
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat
from paceline.runtime.reward import RewardFleet


async def test_the_machine_hears_of_training_groups_and_nothing_of_what_an_evaluation_has_judged() -> None:
    events, board = list[Event](), Board({0: prompt()})
    seat = Seat(InlinePool(), WorkerSpec("reward-0", "runtime_bodies:judge", {}), 5.0)
    fleet = RewardFleet([seat], ["lengthy"], 5.0, board, events.append)
    await fleet.start(lambda lost, reason: None)
    await fleet.score(prompt(), [trajectory(0, 0, 3)])
    assert events == []
    for sample in range(2):
        board.add(trajectory(0, sample, 3))
    await fleet.materialize(Materialize(1, 0, (0, 1)))
    assert [type(event) for event in events] == [GroupMaterialized]
    await seat.stop(0)


def slowly(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """A body's `call` that takes some time."""

    async def _called(method: str, *arguments: Any) -> Any:
        await asyncio.sleep(seconds)
        return call(method, *arguments)

    return _called


async def test_a_judge_whose_asker_has_gone_is_asked_again_when_it_has_answered_and_not_before() -> None:
    """An evaluation that fails leaves judges at work; the next group's deadline must not count what is left of that."""
    pool = InlinePool()
    seat = Seat(pool, WorkerSpec("reward-0", "runtime_bodies:judge", {}), 5.0)
    fleet = RewardFleet([seat], ["lengthy"], 0.8, Board(), lambda event: None)
    lost: list[str] = []
    await fleet.start(lambda seat, reason: lost.append(reason))
    body: Any = pool.workers["reward-0"].body
    body.call = slowly(body.call, 0.5)
    left = asyncio.create_task(fleet.score(prompt(), [trajectory(0, 0, 3)]))
    await asyncio.sleep(0.05)
    left.cancel()
    await fleet.score(prompt(), [trajectory(0, 0, 3)])
    assert lost == []
    await seat.stop(0)
