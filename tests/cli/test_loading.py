"""Rows in the controller."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cli_rows import rows_of

from paceline.cli import loading
from paceline.config.load import load
from paceline.ports.fakes.pool import InlinePool, InlineWorker
from paceline.ports.pool import WorkerSpec
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask
from paceline.types.errors import WorkerLost


class Stuck:
    """A body whose answers never come."""

    def call(self, method: str, *arguments: Any) -> Any:
        return asyncio.Event().wait()

    def tick(self) -> None:
        return None

    def close(self) -> None:
        pass


class StuckPool(InlinePool):
    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> InlineWorker:
        return await super().start(replace(spec, factory=f"{__name__}:Stuck", arguments={}), on_report, on_lost)


async def test_a_data_worker_that_is_stuck_is_lost_by_name_after_its_deadline() -> None:
    config = load(None, ["task.name=chain_sum", "pool.answer_timeout_s=0.05"])
    with pytest.raises(WorkerLost, match=r"worker data did not answer load within 0\.05 s and was killed"):
        async with asyncio.timeout(10):
            await loading.load_data(StuckPool(), config, training=True, evaluation=False)


def test_rows_that_were_left_out_are_counted_and_the_first_of_them_named() -> None:
    prompts, why = rows_of("4", "5")["sums"].every_row(), ("rows.jsonl line 2: no text", "rows.jsonl line 4: not JSON", "a third")
    sums = RowTask(prompts, seed=0, shuffle=False, counts={"read": 5, "bad": 3}, skipped=why)
    left_out = [f"left out: {reason}" for reason in why[:2]]
    assert list(loading.counted(sums)) == ["task: 2 prompts of 5 rows; left out: 3 bad", *left_out]
    both = Mixture({"sums": sums, "words": rows_of("a", "b")["sums"]}, None)
    assert list(loading.counted(both)) == [
        "task sums: 50.0% of the prompts; 2 prompts of 5 rows; left out: 3 bad",
        *(f"left out of sums: {reason}" for reason in why[:2]),
        "task words: 50.0% of the prompts; 2 prompts of 2 rows",
    ]
