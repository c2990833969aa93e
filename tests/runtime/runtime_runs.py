"""Whole lineages over fakes in this process, for tests."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.core.commands import Dispatch, Stop
from paceline.core.schedule import Resume, Schedule
from paceline.ports.fakes.data import MemoryTask, MemoryTracker
from paceline.ports.fakes.pool import InlinePool, InlineWorker
from paceline.ports.pool import WorkerSpec
from paceline.runtime.evaluation import EvalPlan
from paceline.runtime.ledger import Ledger, LedgerReader
from paceline.runtime.lives import Lives
from paceline.runtime.rundir import RunDir, read_resume
from paceline.runtime.session import Lineage, Session, Settings, Workers
from paceline.transports.files import FileStore
from paceline.types.errors import WorkerLost
from paceline.types.progress import Progress
from paceline.types.records import Sampling

TASK = MemoryTask([(f"question {i}", "4") for i in range(5)], seed=3)


class SlowPool(InlinePool):
    """Workers that take their time to start."""

    def __init__(self, start_s: float) -> None:
        super().__init__()
        self.start_s = start_s

    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> InlineWorker:
        await asyncio.sleep(self.start_s)
        return await super().start(spec, on_report, on_lost)


@dataclass
class Run:
    """One lineage over fakes in this process, and what came of it."""

    root: Path
    schedule: Schedule
    task: MemoryTask = TASK
    rollout: dict[str, Any] = field(default_factory=dict)
    rollout_0: dict[str, Any] = field(default_factory=dict)
    """What the first instance has beyond the others."""
    trainer: dict[str, Any] = field(default_factory=dict)
    judge: dict[str, Any] = field(default_factory=dict)
    instances: int = 2
    reward_deadline_s: float = 5.0
    answer_timeout_s: float = 5.0
    train_timeout_s: float = 5.0
    evaluates: bool = False
    problems: MemoryTask = TASK
    resume: bool = False
    watch: Callable[[Progress], None] = lambda progress: None
    start_s: float = 0.0
    max_tokens: int = 8
    prompts: int | None = None
    keep_last: int = 2

    def __post_init__(self) -> None:
        self.pool = SlowPool(self.start_s)
        self.tracker = MemoryTracker()
        self.said: list[Progress] = []
        self.rundir = RunDir(self.root)
        self.rundir.open(resume=self.resume)
        self.ledger = Ledger(self.rundir.ledger)
        self._prepare()

    def _prepare(self) -> None:
        checkpoint = self.rundir.latest_checkpoint()
        info = None if checkpoint is None else read_resume(checkpoint)
        resume = Resume() if info is None else info.resume()
        lineage = self.ledger.open_lineage(self.schedule, resume, None if info is None else info.lineage, "now")
        self.session = self._session_of(Lineage(self.schedule, resume, lineage, checkpoint, {}, 0 if info is None else info.tokens))

    def _session_of(self, lineage: Lineage) -> Session:
        return Session(
            pool=self.pool,
            workers=Workers(
                WorkerSpec("trainer", "runtime_bodies:trainer", self.trainer),
                tuple(
                    WorkerSpec(n, "runtime_bodies:engine", {"instance": n, **self.rollout, **(self.rollout_0 if n == "rollout-0" else {})})
                    for n in self._names()
                ),
                (WorkerSpec("reward-0", "runtime_bodies:judge", self.judge),),
            ),
            settings=Settings(
                7,
                Sampling(self.max_tokens),
                "float64",
                0.1,
                self.answer_timeout_s,
                ("lengthy",),
                self.reward_deadline_s,
                self.keep_last,
                self.train_timeout_s,
                self.prompts,
            ),
            lineage=lineage,
            task=self.task,
            eval_plan=EvalPlan(tuple(self.problems.prompt(i) for i in range(3)), True, 2, Sampling(8), 7, ("lengthy",))
            if self.evaluates
            else None,
            store=FileStore(self.rundir.weights),
            rundir=self.rundir,
            ledger=self.ledger,
            trackers=[self.tracker],
            on_progress=self._heard,
            timer_s=0.05,
        )

    async def go(self) -> Stop:
        """Run to the end; raises what ended it."""
        try:
            async with asyncio.timeout(60):  # a hang ends; a slow disk may take its time
                return await self._live()
        finally:
            self.rundir.close()
            self.ledger.close()
            for worker in self.pool.workers.values():
                with pytest.raises(WorkerLost):
                    await worker.call("info")

    async def _live(self) -> Stop:
        return await self.session.run()

    def records(self, *kinds: type) -> list[Any]:
        """Events and commands of these kinds, in order, of the latest lineage."""
        reader = LedgerReader(self.rundir.ledger)
        found = [record.value for record in reader.records(reader.lineages()[-1].id) if isinstance(record.value, kinds)]
        reader.close()
        return found

    def rows(self, axis: str = "update") -> list[dict[str, Any]]:
        return [values for name, _, values in self.tracker.rows if name == axis]

    def trained(self) -> list[int]:
        """Groups in the order of consumption."""
        return [group for command in self.records(Dispatch) for group in command.groups]

    def _names(self) -> list[str]:
        return [f"rollout-{i}" for i in range(self.instances)]

    def _heard(self, progress: Progress) -> None:
        self.said.append(progress)
        self.watch(progress)


@dataclass
class Lived(Run):
    """All lives of a run in one process, as `jobs.train` has them. `session` is the present or last one's."""

    trainer_restarts: int = 3

    def _prepare(self) -> None:
        self.trackers: list[MemoryTracker] = []
        """One per life."""
        self.lives = Lives(self.rundir, self.schedule, {}, self.trainer_restarts)

    async def _live(self) -> Stop:
        stop, _ = await self.lives.run(self.ledger, self._begin)
        return stop

    def _begin(self, lineage: Lineage) -> Session:
        self.tracker = MemoryTracker()
        self.trackers.append(self.tracker)
        self.session = self._session_of(lineage)
        return self.session

    def notices(self) -> list[str]:
        return [progress.message for progress in self.said if progress.message]
