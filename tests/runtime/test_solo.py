import asyncio
from typing import Any

import pytest
from runtime_builders import prompt

from paceline.ports.fakes.pool import InlinePool
from paceline.ports.pool import WorkerSpec
from paceline.runtime.evaluation import EvalPlan
from paceline.runtime.session import Settings
from paceline.runtime.solo import evaluate_alone
from paceline.types.errors import EngineError, WorkerLost
from paceline.types.progress import Progress
from paceline.types.records import Sampling
from paceline.types.results import Answers

PLAN = EvalPlan(tuple(prompt(i) for i in range(3)), True, 2, Sampling(8), 7, ("lengthy",))


async def evaluated(watch: Any = lambda pool, phase: None, **engine: Any) -> list[Answers]:
    """What an evaluation over fakes gives; no worker and no task is left. An engine must answer within 0.05 s."""
    pool = InlinePool()
    settings = Settings(7, Sampling(8), "float64", 0.1, 0.05, ("lengthy",), 5.0, 2, 5.0)
    rollout = [WorkerSpec("rollout-0", "runtime_bodies:engine", {"instance": "rollout-0", **engine})]
    reward = [WorkerSpec("reward-0", "runtime_bodies:judge", {})]

    def heard(progress: Progress) -> None:
        watch(pool, progress.phase)

    try:
        async with asyncio.timeout(10):
            return await evaluate_alone(pool, rollout, reward, settings, PLAN, heard, report_s=0.01)
    finally:
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for worker in pool.workers.values():
            with pytest.raises(WorkerLost):
                await worker.call("info")


async def test_an_evaluation_alone_answers_every_problem() -> None:
    answers = await evaluated()
    assert [(answer.greedy is not None, len(answer.samples)) for answer in answers] == [(True, 2)] * 3


async def test_an_engine_that_falls_silent_ends_the_evaluation_by_name() -> None:
    with pytest.raises(EngineError, match="instance rollout-0 was lost during the evaluation"):
        await evaluated(silent=True)


async def test_a_judge_that_is_lost_ends_the_evaluation_by_name() -> None:
    def kill(pool: InlinePool, phase: str) -> None:
        if phase == "evaluate":
            pool.workers["reward-0"].kill()

    with pytest.raises(WorkerLost, match="reward-0: killed"):
        await evaluated(kill, silent=True)
