import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from runtime_bodies import JudgeOf
from runtime_builders import prompt

from paceline.ports.fakes.engine import FakeEngine
from paceline.ports.rollout import Failure
from paceline.runtime.evaluation import EvalPlan, Evaluation
from paceline.types.errors import EngineError, WorkerLost
from paceline.types.records import Prompt, Request, Sampling, ScoredGroup, Trajectory
from paceline.types.weights import WeightsRef

PLAN = EvalPlan(tuple(prompt(i) for i in range(3)), True, 2, Sampling(max_tokens=6, temperature=0.7), 1, ("lengthy",))


class World:
    """Fake engines behind the two callables of an evaluation."""

    def __init__(self, plan: EvalPlan, *, fails_on: int | None = None) -> None:
        self.engines = {name: FakeEngine(instance=name, fail=lambda r: "no" if r.group == fails_on else None) for name in ("a", "b")}
        self.requests: dict[str, list[Request]] = {"a": [], "b": []}
        self.taken_back = 0
        self.judge = JudgeOf(None, None, False)
        self.evaluation = Evaluation(plan, self.submit, self.cancel, self.score)

    async def submit(self, name: str, requests: Sequence[Request]) -> None:
        self.requests[name] += requests
        self.engines[name].submit(requests)

    async def cancel(self, name: str, group: int, sample: int) -> None:
        self.taken_back += self.engines[name].abort(group, sample, "eval")

    async def score(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> ScoredGroup:
        group: ScoredGroup = self.judge.score(prompt, trajectories)
        return group

    async def drive(self) -> None:
        for _ in range(100):
            for engine in self.engines.values():
                for ended in engine.step():
                    self.evaluation.ended(ended)
            await asyncio.sleep(0)


async def run(world: World) -> list[object]:
    answers, _ = await asyncio.gather(world.evaluation.run(["a", "b"], 0), world.drive())
    return list(answers)


async def test_every_problem_gets_one_greedy_and_k_sampled_answers_with_numbers_of_their_own() -> None:
    world = World(PLAN)
    answers = await run(world)
    requests = [*world.requests["a"], *world.requests["b"]]
    assert len(answers) == 3
    assert {(r.purpose, r.version, r.attempt) for r in requests} == {("eval", 0, -1)}
    assert sorted((r.group, r.sample, r.sampling.temperature) for r in requests) == [
        (group, sample, 0.0 if sample == 0 else 0.7) for group in range(3) for sample in range(3)
    ]
    assert {r.group for r in world.requests["a"]} == {0, 2}, "a problem stays on one instance"


async def test_answers_do_not_depend_on_the_number_of_instances() -> None:
    one, two = World(PLAN), World(PLAN)
    alone, _ = await asyncio.gather(one.evaluation.run(["a"], 0), one.drive())
    assert list(alone) == await run(two)


async def test_an_answer_is_correct_when_every_outcome_function_gives_one() -> None:
    world = World(PLAN)
    answers, _ = await asyncio.gather(world.evaluation.run(["a"], 0), world.drive())
    engine = FakeEngine()
    engine.submit(world.requests["a"])
    lengths: dict[tuple[int, int], int] = {}
    while engine.load_state().running or engine.load_state().waiting:
        lengths |= {(t.group, t.sample): len(t.ids) for t in engine.step() if isinstance(t, Trajectory)}
    for i, answer in enumerate(answers):
        assert answer.greedy is not None
        assert answer.greedy.correct == bool(lengths[i, 0] % 2)
        assert [verdict.correct for verdict in answer.samples] == [bool(lengths[i, s] % 2) for s in (1, 2)]


async def test_a_refused_problem_fails_the_evaluation_by_name_and_takes_the_rest_back() -> None:
    world = World(replace(PLAN, sampling=Sampling(max_tokens=200)), fails_on=1)
    with pytest.raises(EngineError, match="evaluation problem 1"):
        await run(world)
    assert world.taken_back > 0
    loads = [engine.load_state() for engine in world.engines.values()]
    assert [(load.running, load.waiting) for load in loads] == [(0, 0), (0, 0)]


async def test_an_answer_that_went_on_under_other_weights_fails_the_evaluation() -> None:
    world = World(replace(PLAN, sampling=Sampling(max_tokens=200)))
    engine = world.engines["a"]
    engine.load(WeightsRef(0), "store/0")
    running = asyncio.ensure_future(world.evaluation.run(["a"], 0))
    while not engine.load_state().waiting:
        await asyncio.sleep(0)
    assert engine.step() == []
    engine.load(WeightsRef(1), "store/1", "keep", replaces=0)
    with pytest.raises(EngineError, match=r"evaluation problem \d, answer \d: it has tokens of another version than 0"):
        await asyncio.gather(running, world.drive())


async def test_what_a_lost_instance_owed_is_answered_by_the_others_in_the_same_words() -> None:
    expected = await run(World(PLAN))
    world = World(PLAN)
    running = asyncio.ensure_future(world.evaluation.run(["a", "b"], 0))
    while not world.requests["a"]:
        await asyncio.sleep(0)
    del world.engines["a"]
    world.evaluation.lost("a", "killed")
    world.evaluation.lost("a", "killed")  # it may be felt and told
    await asyncio.gather(running, world.drive())
    assert list(running.result()) == expected
    asked = [(request.group, request.sample) for request in world.requests["b"]]
    assert sorted(asked) == [(group, sample) for group in range(3) for sample in range(3)], "each of them once"


async def test_an_instance_that_is_gone_when_it_is_asked_leaves_its_share_to_the_others() -> None:
    expected = await run(World(PLAN))
    world = World(PLAN)
    submit = world.submit

    async def dead(name: str, requests: Sequence[Request]) -> None:
        if name == "a":
            raise WorkerLost("worker a is not running, asked for submit")
        await submit(name, requests)

    world.evaluation._submit = dead
    assert await run(world) == expected


async def test_a_fault_in_asking_ends_the_evaluation() -> None:
    world = World(PLAN)

    async def broken(name: str, requests: Sequence[Request]) -> None:
        raise ZeroDivisionError

    world.evaluation._submit = broken
    with pytest.raises(ZeroDivisionError):
        await world.evaluation.run(["a"], 0)


async def test_the_loss_of_the_last_instance_fails_the_evaluation_at_once() -> None:
    world = World(PLAN)
    running = asyncio.ensure_future(world.evaluation.run(["a"], 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.evaluation.lost("a", "killed")
    with pytest.raises(EngineError, match="instance a was lost"):
        await running
    world.evaluation.ended(Failure(0, 0, -1, "late"))


async def test_no_instance_that_serves_the_version_is_an_error() -> None:
    with pytest.raises(EngineError, match="no instance serves version 3"):
        await World(PLAN).evaluation.run([], 3)
