"""What the composition root sees to itself, over workers in this process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.cli import wire
from paceline.config.load import load
from paceline.ports.fakes.pool import InlinePool, InlineWorker
from paceline.ports.pool import WorkerSpec
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
            await wire._load_data(StuckPool(), config, training=True, evaluation=False)
