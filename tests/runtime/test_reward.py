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
