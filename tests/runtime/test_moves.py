"""Trajectories on their way between two instances, and everything that can come in between."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_builders import prompt

from paceline.core.commands import Abort, Admit, Migrate
from paceline.core.events import Aborted, Event, InstanceLost, Migrated, TrajectoryFailed, TrajectoryFinished
from paceline.ports.fakes.engine import FakeEngine
from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerBody, WorkerSpec
from paceline.ports.rollout import Failure
from paceline.runtime.board import Board
from paceline.runtime.bodies import RolloutBody
from paceline.runtime.calls import Seat
from paceline.runtime.moves import Moves
from paceline.runtime.rollout import RolloutFleet
from paceline.types.errors import EngineError, PacelineError, StateFileError, WorkerLost
from paceline.types.records import Request, Sampling, Trajectory

LENGTH = 400
KEYS = ((0, 0), (0, 1), (1, 0))


class Gated(RolloutBody):
    """Answers a method named in `gates` when its gate opens (nothing else happens meanwhile); dies in `dies_in`; sees `other` files."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.gates: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []
        self.dies_in = self.refuses = ""

    def call(self, method: str, *arguments: Any) -> Any:
        self.asked.append(method)
        gate = self.gates.pop(method, None)
        return self._call(method, *arguments) if gate is None else self._later(gate, method, *arguments)

    async def _later(self, gate: asyncio.Event, method: str, *arguments: Any) -> Any:
        await gate.wait()
        return self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        if method == self.dies_in:
            raise SystemExit(9)
        if method == self.refuses:
            raise EngineError(f"no {method} today")
        return super().call(method, *arguments)


def body(instance: str) -> WorkerBody:
    return Gated(FakeEngine(instance=instance, length=lambda request: 5 if request.purpose == "eval" else LENGTH))


class Pair:
    """Two instances, a and b; three trajectories run on a."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.evaluated: list[Trajectory | Failure] = []
        self.pool = InlinePool()
        self.board = Board({0: prompt(0), 1: prompt(1)})
        self.seats = {name: Seat(self.pool, WorkerSpec(name, f"{__name__}:body", {"instance": name}), 5.0) for name in "ab"}
        self.fleet = RolloutFleet(list(self.seats.values()), self.board, Sampling(LENGTH), 7, self.events.append)
        self.fleet.on_eval = self.evaluated.append
        self.restarted: list[str] = []
        self.moves = Moves(self.fleet, directory, self.events.append)
        self.command = Migrate(9, KEYS, "a", "b", 0)

    async def up(self) -> "Pair":
        for info in await self.fleet.start(lambda name, reason: self.restarted.append(name)):
            self.fleet.announce(info)
        await self.admit("a", *KEYS)
        await self.until(lambda: self.engine("a").load_state().tokens > 30)
        return self

    async def admit(self, name: str, *keys: tuple[int, int], attempt: int = 0) -> None:
        for i, (group, sample) in enumerate(keys):
            sent = self.fleet.admit(Admit(i + 1, group, sample, attempt, name, 0))
            if i == 0:
                first = sent
        assert first is not None
        await first

    def body(self, name: str) -> Gated:
        found = self.pool.workers[name].body
        assert isinstance(found, Gated)
        return found

    def engine(self, name: str) -> FakeEngine:
        found = self.body(name)._engine
        assert isinstance(found, FakeEngine)
        return found

    def running(self, name: str) -> int:
        load = self.engine(name).load_state()
        return load.running + load.waiting

    def gate(self, name: str, method: str) -> asyncio.Event:
        """What opens the way of the next call of this kind."""
        return self.body(name).gates.setdefault(method, asyncio.Event())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    async def finished(self, count: int) -> list[TrajectoryFinished]:
        await self.until(lambda: len(self.of(TrajectoryFinished)) == count)
        await self.stop()
        assert list(self.directory.iterdir()) == [], "no state is left behind"
        assert not any(self.fleet.runs(name, key) for name in self.seats for key in KEYS), "nothing is waited for"
        return self.of(TrajectoryFinished)

    async def stop(self) -> None:
        for seat in self.seats.values():
            await seat.stop(0)


@pytest.fixture
async def pair(tmp_path: Path) -> Pair:
    return await Pair(tmp_path).up()


def tokens(pair: Pair) -> dict[tuple[int, int], list[int]]:
    return {(t.group, t.sample): t.ids.tolist() for samples in pair.board.trajectories.values() for t in samples.values()}


async def test_a_moved_trajectory_samples_the_tokens_that_it_would_have_sampled_and_prefills_none(pair: Pair, tmp_path: Path) -> None:
    await pair.moves.migrate(pair.command)
    assert pair.of(Migrated) == [Migrated(9, KEYS, 0)]
    assert (pair.running("a"), pair.running("b")) == (0, 3)
    ended = await pair.finished(3)
    assert [event.instance for event in ended] == ["b"] * 3
    stayed = await Pair(tmp_path).up()
    await stayed.finished(3)
    assert tokens(pair) == tokens(stayed)


async def test_what_ended_before_the_hand_over_stays_where_it_was_and_evaluation_requests_stay_too(pair: Pair) -> None:
    await pair.fleet.submit("a", [Request(1, 0, -1, prompt().ids, Sampling(LENGTH), 7, 0, "eval")])
    gate = pair.gate("a", "hand_over")
    move = asyncio.create_task(pair.moves.migrate(Migrate(9, (*KEYS, (1, 1)), "a", "b", 0)))
    await asyncio.sleep(0)
    await pair.until(lambda: pair.running("a") == 4)
    gate.set()
    await move
    assert pair.of(Migrated)[0].moved == KEYS
    await pair.finished(3)
    assert [(answer.group, answer.purpose) for answer in pair.evaluated] == [(1, "eval")]
    pair.events.clear()


async def test_the_move_is_told_before_the_end_of_what_it_moved(tmp_path: Path) -> None:
    pair = await Pair(tmp_path).up()
    await pair.until(lambda: pair.engine("a").load_state().tokens > 3 * (LENGTH - 3))
    await pair.moves.migrate(pair.command)  # they end one step after they came
    await pair.finished(3)
    kinds = [type(event) for event in pair.of(Migrated, TrajectoryFinished)]
    assert kinds == [Migrated, *[TrajectoryFinished] * 3]


@pytest.mark.parametrize("lost", ["before", "while taking in", "refuses"])
async def test_a_target_that_is_lost_or_refuses_gives_everything_back_to_the_source(pair: Pair, lost: str) -> None:
    if lost == "before":
        pair.seats["b"].kill("it is time")
    elif lost == "refuses":
        pair.body("b").refuses = "take_in"
    else:
        pair.body("b").dies_in = "take_in"
    with pytest.raises(PacelineError, match="no take_in today" if lost == "refuses" else "b"):
        await pair.moves.migrate(pair.command)
    assert pair.of(Migrated) == []
    assert pair.running("a") == 3
    ended = await pair.finished(3)
    assert [event.instance for event in ended] == ["a"] * 3
    assert [event.instance for event in pair.of(InstanceLost)] == ["b"], "it is ended, also where it only refuses"
    assert pair.restarted == ["b"]


async def test_a_source_that_is_lost_while_the_target_takes_in_loses_nothing_and_is_told_afterwards(pair: Pair) -> None:
    gate = pair.gate("b", "take_in")
    move = asyncio.create_task(pair.moves.migrate(Migrate(9, KEYS[:2], "a", "b", 0)))
    await pair.until(lambda: pair.body("b").asked[-1] == "take_in")
    pair.seats["a"].kill("it is time")
    await asyncio.sleep(0.01)
    assert pair.of(InstanceLost) == []
    gate.set()
    await move
    assert [type(event) for event in pair.of(Migrated, InstanceLost)] == [Migrated, InstanceLost]
    assert pair.restarted == ["a"]
    assert {(e.group, e.sample) for e in await pair.finished(2)} == set(KEYS[:2])


@pytest.mark.parametrize("how", ["dies", "refuses"])
async def test_a_source_that_is_lost_in_the_hand_over_or_refuses_it_is_told_lost_with_all_it_had(pair: Pair, how: str) -> None:
    setattr(pair.body("a"), "dies_in" if how == "dies" else "refuses", "hand_over")
    with pytest.raises(PacelineError):
        await pair.moves.migrate(pair.command)
    await pair.until(lambda: bool(pair.of(InstanceLost)))
    assert (pair.of(Migrated), pair.restarted) == ([], ["a"])
    await pair.finished(0)


async def test_source_and_target_lost_together_are_two_losses_and_nothing_else(pair: Pair) -> None:
    pair.gate("b", "take_in")
    move = asyncio.create_task(pair.moves.migrate(pair.command))
    await pair.until(lambda: pair.body("b").asked[-1] == "take_in")
    pair.seats["a"].kill("it is time")
    pair.seats["b"].kill("it is time")
    with pytest.raises(WorkerLost):
        await move
    assert sorted(event.instance for event in pair.of(InstanceLost)) == ["a", "b"]
    assert pair.of(Migrated) == []
    await pair.finished(0)


async def test_an_abort_that_crosses_a_move_lets_the_machine_end_the_trajectory_where_it_came(pair: Pair) -> None:
    gate = pair.gate("b", "take_in")
    move = asyncio.create_task(pair.moves.migrate(pair.command))
    await pair.until(lambda: pair.body("b").asked[-1] == "take_in")
    await pair.fleet.abort(Abort(20, 0, 1, 0, "a", "its group failed"))
    gate.set()
    await move
    assert pair.of(Aborted) == [Aborted(20)]
    assert pair.of(Migrated)[0].moved == KEYS, "the one that was given up came too"
    await pair.fleet.abort(Abort(21, 0, 1, 0, "b", "moved after it was given up"))
    assert pair.running("b") == 2
    assert {(e.group, e.sample) for e in await pair.finished(2)} == {(0, 0), (1, 0)}


async def test_what_was_aborted_during_a_move_that_failed_does_not_come_back(pair: Pair) -> None:
    gate = pair.gate("b", "take_in")
    pair.body("b").dies_in = "take_in"
    move = asyncio.create_task(pair.moves.migrate(pair.command))
    await pair.until(lambda: pair.body("b").asked[-1] == "take_in")
    await pair.fleet.abort(Abort(20, 0, 1, 0, "a", "its group failed"))
    gate.set()
    with pytest.raises(WorkerLost):
        await move
    assert pair.running("a") == 2
    assert {(e.group, e.sample) for e in await pair.finished(2)} == {(0, 0), (1, 0)}


async def test_calls_to_an_instance_arrive_in_the_order_of_their_commands(pair: Pair) -> None:
    work = [pair.fleet.admit(Admit(30 + i, 1, 1 + i, 0, "a", 0)) for i in range(2)]
    work += [pair.fleet.abort(Abort(40, 1, 1, 0, "a", "no")), pair.moves.migrate(Migrate(41, ((1, 2),), "a", "b", 0))]
    await asyncio.gather(*(asyncio.create_task(one) for one in work if one is not None))
    assert pair.body("a").asked[-3:] == ["submit", "abort", "hand_over"]
    assert pair.of(Migrated)[0].moved == ((1, 2),)
    assert (pair.running("a"), pair.running("b")) == (3, 1)
    await pair.finished(4)


async def test_a_directory_that_takes_no_files_is_named_and_leaves_everything_where_it_was(pair: Pair) -> None:
    blocked = pair.directory.with_name("no-directory")
    blocked.write_text("")
    with pytest.raises(StateFileError, match=r"a: cannot write the state of trajectories to .*no-directory/move-9 "):
        await Moves(pair.fleet, blocked, pair.events.append).migrate(pair.command)
    assert pair.running("a") == 3
    assert [event.instance for event in await pair.finished(3)] == ["a"] * 3
    assert (pair.of(Migrated, InstanceLost), pair.restarted) == ([], [])


async def test_trajectories_whose_state_cannot_be_read_again_are_failed_attempts_and_end_no_instance(pair: Pair) -> None:
    gate = pair.gate("b", "take_in")
    move = asyncio.create_task(pair.moves.migrate(pair.command))
    await pair.until(lambda: pair.body("b").asked[-1] == "take_in")
    (pair.directory / "move-9").write_text("damaged")
    gate.set()
    with pytest.raises(StateFileError, match="move-9: cannot read the state"):
        await move
    failed = pair.of(TrajectoryFailed)
    assert [(event.group, event.sample) for event in failed] == list(KEYS)
    assert all(event.error.startswith("it left a and could not come back: ") for event in failed)
    await pair.finished(0)
    assert (pair.of(Migrated, InstanceLost), pair.restarted) == ([], [])
