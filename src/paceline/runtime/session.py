"""One lineage of a run, assembled: workers are started, the driver runs, whatever happens no worker is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.core import commands as c
from paceline.core.account import Account
from paceline.core.evaluation import summarize
from paceline.core.events import Evaluated, StopRequested
from paceline.core.machine import Machine
from paceline.core.presets import check_fleet
from paceline.core.rules import Rules
from paceline.core.schedule import Resume, Schedule
from paceline.durable import append_line
from paceline.ports.data import Task, Tracker
from paceline.ports.pool import Pool, WorkerSpec
from paceline.ports.weights import WeightStore
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat, TrainerSeat, together
from paceline.runtime.checkpoint import Checkpoints
from paceline.runtime.driver import Driver, Performer
from paceline.runtime.evaluation import EvalPlan, Evaluation
from paceline.runtime.ledger import Ledger
from paceline.runtime.moves import Moves
from paceline.runtime.recorder import OnProgress, Recorder
from paceline.runtime.reward import RewardFleet
from paceline.runtime.rollout import RolloutFleet
from paceline.runtime.rundir import Origin, RunDir
from paceline.runtime.segments import Segments
from paceline.runtime.source import Source
from paceline.runtime.training import Training
from paceline.runtime.weights import Weights, probe_tokens
from paceline.types.errors import DataError, EngineError, RewardError, StorageError, TrainerLost
from paceline.types.records import Sampling

GRACE_S = 5.0
"""Seconds that an idle worker gets to close at the end."""
CHECKED_AT_ONCE = 1000
"""Rows whose golds are checked in one call."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Specifications of all workers."""

    trainer: WorkerSpec
    rollout: tuple[WorkerSpec, ...]
    reward: tuple[WorkerSpec, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the configuration that the runtime itself needs."""

    seed: int
    sampling: Sampling
    dtype: str
    """Compute dtype, for the probe's bound."""
    gap_warn: float
    answer_timeout_s: float
    reward_names: tuple[str, ...]
    reward_deadline_s: float
    keep_last: int
    train_timeout_s: float
    """Deadline of a dispatch and of a step; every other call has answer_timeout_s."""
    prompts: int | None = None
    """Prompts of the data order after which the data ends; None = epochs follow each other without end."""
    reward_deadline_s_per_answer: float = 0.0
    """Added to reward_deadline_s for each answer that is judged together."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where this life of the run starts."""

    schedule: Schedule
    resume: Resume
    id: int
    checkpoint: Path | None
    """Restored by the trainer before anything else."""
    identity: Mapping[str, str]
    tokens: int = 0
    """Tokens trained on before."""


class Session:
    """Holds every part of one lineage. `run` may be called once."""

    def __init__(
        self, *, pool: Pool, workers: Workers, settings: Settings, lineage: Lineage, task: Task, eval_plan: EvalPlan | None,
        store: WeightStore, rundir: RunDir, ledger: Ledger, trackers: Sequence[Tracker], on_progress: OnProgress, timer_s: float = 5.0,
    ) -> None:  # fmt: skip
        self._lineage = lineage
        self._task = task
        self._rundir = rundir
        self._settings = settings
        machine = Machine(lineage.schedule, lineage.resume)
        schedule, resume = lineage.schedule, lineage.resume
        self.recorder = Recorder(trackers, on_progress, Account(schedule, resume), schedule.total_updates, resume.update, lineage.tokens)
        self.driver = Driver(machine, Rules(schedule, resume), ledger, timer_s=timer_s, watch=self.recorder.feed)
        post, board = self.driver.post, Board()
        self.board = board

        def _seat(spec: WorkerSpec) -> Seat:
            return Seat(pool, spec, settings.answer_timeout_s)

        self._trainer = TrainerSeat(pool, workers.trainer, settings.answer_timeout_s)
        self._source = Source(task, lineage.resume, board, post, settings.prompts)
        self._rollout = RolloutFleet([_seat(spec) for spec in workers.rollout], board, settings.sampling, settings.seed, post)
        rewards = [_seat(spec) for spec in workers.reward]
        self._reward = RewardFleet(
            rewards, settings.reward_names, settings.reward_deadline_s, board, post, settings.reward_deadline_s_per_answer
        )
        self._training = Training(
            self._trainer, board, settings.gap_warn, settings.train_timeout_s, post, self.recorder.updated, self.recorder.notice
        )
        self._moves = Moves(self._rollout, rundir.moves, post)
        self._weights = Weights(store, self._trainer, self._rollout, probe_tokens(task), settings.dtype, post, self.recorder.notice)
        self._checkpoints = Checkpoints(
            rundir, self._trainer, lineage.id, lineage.identity, settings.keep_last, lambda: self.recorder.tokens, post
        )
        self._segments = Segments(rundir.trajectories, lineage.id)
        self._evaluation = (
            None if eval_plan is None else Evaluation(eval_plan, self._rollout.submit, self._rollout.cancel, self._reward.score)
        )
        self._seats = [self._trainer, *(self._rollout.seat(name) for name in self._rollout.names), *rewards]
        self._stopping = 0
        self._starting: asyncio.Task[None] | None = None
        self._exporting: asyncio.Task[None] | None = None
        self.begun = False
        """Whether all workers were up."""
        self.exported = False
        """Whether the trained model lies in the run directory."""

    async def run(self) -> c.Stop:
        """Start the workers, drive until the machine stops, export the model if all is well. No worker is left afterwards.

        Raises what ended the run: an error of paceline that names its place, a fault, or asyncio.CancelledError when a signal came
        before anything was decided. CheckpointDamaged and TrainerLost end this lineage; the run may go on in another one.
        """
        grace = 0.0
        try:
            with self._signals():
                self._starting = asyncio.create_task(self._start())
                await self._starting
                self._starting, self.begun = None, True
                stop = await self.driver.run(self._performers(), self._seal)
                if stop.ok and self._stopping < 2:
                    await self._export_unless_stopped()
                    grace = GRACE_S if self.exported else 0.0
                return stop
        finally:
            await self.driver.close()
            await asyncio.gather(*(seat.stop(grace) for seat in self._seats))
            self.recorder.close()

    async def _start(self) -> None:
        self.recorder.phase("start")
        self._rollout.on_loss = self._instance_lost
        if self._evaluation is not None:
            self._rollout.on_eval = self._evaluation.ended
        infos, _, _ = await together(
            self._rollout.start(self._restart_rollout), self._reward.start(self._restart_reward), self._start_trainer()
        )
        check_fleet(self._lineage.schedule, infos)
        prompts = list(self._task.every_row())
        if self._evaluation is not None:
            prompts += self._evaluation.plan.prompts
        try:
            for first in range(0, len(prompts), CHECKED_AT_ONCE):
                await self._reward.check(prompts[first : first + CHECKED_AT_ONCE], self._settings.answer_timeout_s)
        except RewardError as error:  # before anything is generated it is the data or the configuration that is wrong
            raise DataError(str(error)) from error
        self._trainer.present()
        for info in infos:
            self._rollout.announce(info)
        self.driver.background(self._rollout.reports())

    async def _start_trainer(self) -> None:
        await self._trainer.fill(lambda report: None, lambda reason: self.driver.fail(TrainerLost(reason)))
        if self._lineage.checkpoint is not None:
            await self._trainer.call("restore", str(self._lineage.checkpoint))

    def _performers(self) -> Mapping[type, Performer]:
        return {
            c.RequestPrompts: self._source.request,
            c.Admit: self._in_phase("rollout", self._rollout.admit),
            c.Abort: self._rollout.abort,
            c.Migrate: self._moves.migrate,
            c.Materialize: self._reward.materialize,
            c.Dispatch: self._in_phase("train", self._training.dispatch),
            c.Publish: self._in_phase("publish", self._weights.publish),
            c.LoadWeights: self._weights.load,
            c.Retire: self._weights.retire,
            c.Evaluate: self._in_phase("evaluate", self._evaluate),
            c.Checkpoint: self._in_phase("checkpoint", self._checkpoints.checkpoint),
            c.Terminal: lambda command: self.board.release(command.group),
            c.SetFrontier: lambda command: None,
            c.Warn: lambda command: self.recorder.notice(command.message),
        }

    def _in_phase(self, phase: str, perform: Performer) -> Performer:
        def _performed(command: c.Command) -> Coroutine[Any, Any, None] | None:
            self.recorder.phase(phase)
            return perform(command)

        return _performed

    def _seal(self, commands: Sequence[c.Command]) -> None:
        """Payload durable before the ledger row that relies on it: the trajectories that a dispatch consumes."""
        for command in commands:
            if isinstance(command, c.Dispatch) and command.groups:
                self._segments.write(command, [self.board.scored[group] for group in command.groups])

    async def _evaluate(self, command: c.Evaluate) -> None:
        if self._evaluation is None:
            raise EngineError("there is nothing to evaluate: eval.task is unset")
        plan = self._evaluation.plan
        self.recorder.notice(f"evaluating version {command.version}: {len(plan.prompts)} problems x {plan.samples + plan.greedy} answers")
        answers = await self._evaluation.run(self._weights.serving(command.version), command.version)
        result = summarize(answers, model=f"version {command.version}")
        record = {"lineage": self._lineage.id, "update": command.update, "version": command.version, **asdict(result)}
        try:
            append_line(self._rundir.evaluations, json.dumps({**record, "answers": [asdict(answer) for answer in answers]}).encode())
            self.recorder.evaluated(command.update, result.metrics())
        except StorageError as error:  # a run may go on without an evaluation that failed, but none that was made is lost
            return self.driver.fail(error)
        self.driver.post(Evaluated(command.id))

    async def _export_unless_stopped(self) -> None:
        self._exporting = asyncio.create_task(self._export())
        try:
            await self._exporting
        except asyncio.CancelledError:
            if self._stopping < 2:  # it is this session that was cancelled
                raise

    async def _export(self) -> None:
        self.recorder.phase("export")
        aside = self._rundir.model.with_name(".model")
        shutil.rmtree(aside, ignore_errors=True)
        await self._trainer.call("export", str(aside))
        self._rundir.seal_model(aside, Origin(self._lineage.id, self.recorder.update))
        self.exported = True

    def _instance_lost(self, name: str, reason: str) -> None:
        self._weights.lost(name)
        if self._evaluation is not None:
            self._evaluation.lost(name, reason)

    def _restart_rollout(self, name: str, reason: str) -> None:
        """Not before the machine has heard of the loss: what it still commands the lost one must not reach its successor."""
        if self._needed(reason):
            self.driver.when_heard(lambda: self.driver.background(self._rollout.replace(name, reason)))

    def _restart_reward(self, seat: Seat, reason: str) -> None:
        if self._needed(reason):
            self.driver.background(self._reward.replace(seat, reason))

    def _needed(self, reason: str) -> bool:
        """Whether a lost worker is started again, and if so say it. After the end a successor would do nothing and outlive it."""
        if self.driver.closed:
            return False
        self.recorder.restarts += 1
        self.recorder.notice(f"{reason}; it is started again")
        return True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP: once = checkpoint and leave, twice = leave. Only where this is the process's main thread.

        A run under nohup ignores SIGHUP, and goes on doing so.
        """
        loop, caught = asyncio.get_running_loop(), []
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGTERM, *(() if nohup else (signal.SIGHUP,))):
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._asked_to_stop, number.name)
                caught.append(number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _asked_to_stop(self, name: str) -> None:
        self._stopping += 1
        if self._starting is not None:
            self._starting.cancel()
        elif self._exporting is not None:
            if self._stopping > 1:
                self._exporting.cancel()
            else:
                self.recorder.notice(f"{name}: leaving when the model is written; once more to leave now")
        elif self._stopping == 1:
            self.recorder.notice(f"{name}: writing a checkpoint, then leaving; once more to leave now")
            self.driver.post(StopRequested("checkpoint", name))
        else:
            self.driver.post(StopRequested("now", name))

    @property
    def interrupted(self) -> bool:
        """Whether a signal asked the run to leave."""
        return self._stopping > 0
