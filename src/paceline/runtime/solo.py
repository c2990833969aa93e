"""An evaluation without a run: rollout and reward workers, the weights as they lie on disk, nothing recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from paceline.ports.pool import Pool, WorkerSpec
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat, together
from paceline.runtime.evaluation import EvalPlan, Evaluation
from paceline.runtime.reward import RewardFleet
from paceline.runtime.rollout import RolloutFleet
from paceline.runtime.session import Settings
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.errors import WorkerLost
from paceline.types.progress import Progress
from paceline.types.results import Answers

START_VERSION = 0
"""What an engine serves before its first load."""


async def evaluate_alone(
    pool: Pool,
    rollout: Sequence[WorkerSpec],
    reward: Sequence[WorkerSpec],
    settings: Settings,
    plan: EvalPlan,
    on_progress: Callable[[Progress], None],
) -> list[Answers]:
    """Answers to every problem, in order. A worker that is lost ends the evaluation: WorkerLost or RewardError names it."""
    board, watch = Board(), Stopwatch(time.monotonic)
    engines = [Seat(pool, spec, settings.answer_timeout_s) for spec in rollout]
    judges = [Seat(pool, spec, settings.answer_timeout_s) for spec in reward]
    fleet = RolloutFleet(engines, board, watch, settings.sampling, settings.seed, lambda event: None)
    rewards = RewardFleet(judges, settings.reward_names, settings.reward_deadline_s, board, watch, lambda event: None)
    evaluation = Evaluation(plan, fleet.submit, fleet.cancel, rewards.score)
    fleet.on_eval = evaluation.ended
    fleet.on_loss = evaluation.lost
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def _judge_lost(seat: Seat, reason: str) -> None:
        if not lost.done():
            lost.set_result(reason)

    try:
        on_progress(Progress(0, 0, {}, "start"))
        infos, _ = await together(fleet.start(lambda name, reason: None), rewards.start(_judge_lost))
        for info in infos:
            fleet.announce(info)
        await rewards.check(plan.prompts, settings.answer_timeout_s)
        on_progress(Progress(0, 0, {}, "evaluate"))
        return await _unless(lost, evaluation.run(fleet.names, START_VERSION))
    finally:
        await asyncio.gather(*(seat.stop(0) for seat in (*engines, *judges)))


async def _unless(lost: asyncio.Future[str], work: Coroutine[Any, Any, list[Answers]]) -> list[Answers]:
    """The result of `work`; WorkerLost when `lost` comes first."""
    task = asyncio.ensure_future(work)
    waits: set[asyncio.Future[Any]] = {task, lost}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise WorkerLost(lost.result())
    return task.result()
