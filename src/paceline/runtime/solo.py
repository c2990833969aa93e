"""An evaluation without a run: rollout and reward workers, the weights as they lie on disk, nothing recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from paceline.ports.pool import Pool, WorkerSpec
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat, together
from paceline.runtime.evaluation import EvalPlan, Evaluation
from paceline.runtime.reward import RewardFleet
from paceline.runtime.rollout import REPORT_S, RolloutFleet
from paceline.runtime.session import Settings
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
    *,
    report_s: float = REPORT_S,
) -> list[Answers]:
    """Answers to every problem, in order. What a lost engine owed is asked of the others. The last engine or a judge that is lost ends the
    evaluation: EngineError, WorkerLost or RewardError names it.

    An engine is asked for its load every `report_s` seconds; one that does not answer in `settings.answer_timeout_s` is lost.
    """
    board = Board()
    engines = [Seat(pool, spec, settings.answer_timeout_s) for spec in rollout]
    judges = [Seat(pool, spec, settings.answer_timeout_s) for spec in reward]
    fleet = RolloutFleet(engines, board, settings.sampling, settings.seed, lambda event: None)
    deadline_s, per_answer_s = settings.reward_deadline_s, settings.reward_deadline_s_per_answer
    rewards = RewardFleet(judges, settings.reward_names, deadline_s, board, lambda event: None, per_answer_s)
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
        return await _first(evaluation.run(fleet.names, START_VERSION), _raised(lost), fleet.reports(report_s))
    finally:
        await asyncio.gather(*(seat.stop(0) for seat in (*engines, *judges)))


async def _raised(lost: asyncio.Future[str]) -> NoReturn:
    raise WorkerLost(await lost)


async def _first(work: Coroutine[Any, Any, list[Answers]], *beside: Coroutine[Any, Any, Any]) -> list[Answers]:
    """The result of `work`, or the error of what runs beside it and came first. None of them is left."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(one) for one in (work, *beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        answers: list[Answers] = (tasks[0] if tasks[0] in done else done.pop()).result()
        return answers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
