"""What the command line and `paceline.train` do: train, evaluate, export, audit. The controller's process; no torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from paceline.cli import tracking
from paceline.cli.identity import PROBLEMS, explained, identity_of, told
from paceline.cli.lazy import OnProgress
from paceline.cli.loading import Data, counted, load_data, parts_of
from paceline.cli.wire import bound, emulates, reward_specs, rollout_specs, trainer_spec, workers_of
from paceline.config.checks import ensure, reward_name
from paceline.config.load import dump
from paceline.config.plan import reward_deadline
from paceline.config.plan import schedule as make_schedule
from paceline.config.schema import AlgorithmConfig, Config, TrainerConfig
from paceline.config.scoring import only_scoring
from paceline.core.evaluation import summarize
from paceline.runtime.audit import audit as audit_ledger
from paceline.runtime.calls import Seat
from paceline.runtime.evaluation import EvalPlan
from paceline.runtime.ledger import Ledger, LedgerReader, unused
from paceline.runtime.lives import Lives
from paceline.runtime.notices import Notices
from paceline.runtime.process import ProcessPool
from paceline.runtime.rundir import ORIGIN, Origin, RunDir, read_origin, read_resume, write_durably
from paceline.runtime.session import Lineage, Session, Settings, Workers
from paceline.runtime.solo import evaluate_alone
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask
from paceline.trackers.jsonl import updates
from paceline.transports.files import FileStore
from paceline.types.errors import ConfigError
from paceline.types.progress import Progress
from paceline.types.records import Sampling
from paceline.types.results import AuditReport, EvalResult, Outcome


def train(
    config: Config, *, resume: bool = False, on_progress: OnProgress = lambda progress: None, workers: Workers | None = None
) -> Outcome:
    """Run the configuration to its end, a stop or a failure, in processes of its own.

    `resume` continues the run directory's newest whole checkpoint (from the start where there is none yet). `workers` replaces
    `workers_of(config)`, for an engine, a trainer or rewards that the configuration cannot name. Raises ConfigError,
    DataError, ModelError or CheckpointError for what the user can mend, another PacelineError when the run failed, and
    KeyboardInterrupt when a signal came before anything was decided.
    """
    ensure(config)  # it may have been built in Python
    tracking.require(config)
    rundir = RunDir(Path(config.run.dir))
    rundir.open(resume=resume)
    try:
        return asyncio.run(_train(config, rundir, on_progress, workers or workers_of(config)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        rundir.close()


def evaluate(config: Config, model: str, *, on_progress: OnProgress = lambda progress: None) -> EvalResult:
    """Score a model directory, a packaged model or the exported model of a run directory on `eval.task`: one engine, no trainer.

    Raises ConfigError where there is nothing to score: no `eval.task`, a run without a model, an emulated engine.
    """
    config = only_scoring(config)
    run = RunDir(Path(model))
    if run.ledger.is_file() and not run.model.is_dir():
        raise ConfigError(f"{model}: the run has written no model yet")
    path, label = (str(run.model), _exported(run, on_progress)) if run.ledger.is_file() else (model, model)
    chosen = config.model_copy(update={"model": config.model.model_copy(update={"path": path})})
    return asyncio.run(_evaluate(chosen, label, on_progress))


def export(config: Config, step: int | None, directory: Path | None) -> tuple[Path, Path]:
    """Write the weights of a checkpoint of the run in `config.run.dir` as a Hugging Face directory, which must be new.

    step: the update after which it was written; None = the newest. directory: by default `model-step-N` in the run directory. Returns
    checkpoint and directory. Raises ConfigError for what is not there, CheckpointError for what cannot be read, StorageError for what
    cannot be written.
    """
    if emulates(config):
        raise ConfigError("rollout.engine = emulated: such a run has no weights")
    rundir = RunDir(Path(config.run.dir))
    checkpoint = _checkpoint(rundir, step)
    target = directory or rundir.root / f"model-{checkpoint.name}"
    if target.exists():
        raise ConfigError(f"{target}: exists already; choose another directory with --output")
    info = read_resume(checkpoint)
    asyncio.run(_export(config, checkpoint, target))
    write_durably(target / ORIGIN, json.dumps(asdict(Origin(info.lineage, info.update))).encode())
    return checkpoint, target


def audit(run_dir: Path) -> AuditReport:
    """Check the rules over a run's ledger, and that replaying its events gives its commands."""
    return audit_ledger(run_dir / "ledger.sqlite")


class _Warnings:
    """What workers warn of, each text once, from whichever worker it comes first."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._told: set[str] = set()

    def __call__(self, worker: str, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(f"{worker}: {text}")


async def _train(config: Config, rundir: RunDir, on_progress: OnProgress, workers: Workers) -> Outcome:
    early: list[str] = []
    warnings = _Warnings(early.append)
    pool = ProcessPool(log_dir=rundir.logs, start_timeout_s=config.pool.start_timeout_s, on_warning=warnings)
    data = await load_data(pool, config, training=True, evaluation=config.eval.every > 0)
    assert data.task is not None
    workers = bound(workers, data.contents)
    task, schedule, trackers_of = data.task, make_schedule(config), partial(tracking.trackers, config, rundir)
    parts, identity = parts_of(config, task), identity_of(config, task, data.contents)
    lives = Lives(rundir, schedule, identity, config.pool.trainer_restarts, explained(rundir, parts))
    rows = {name: part.digests for name, part in parts.items()}
    if data.problems:
        rows[PROBLEMS] = RowTask(data.problems, seed=0, shuffle=False, counts={}).digests
    for line in (*early, *counted(task)):
        lives.tell(line)
    if not unused(rundir.ledger):
        for line in told(lives.start, rundir, config, rows, identity):
            lives.tell(line)
    write_durably(rundir.config, dump(config).encode())
    write_durably(rundir.rows, json.dumps(rows).encode())
    notices = Notices(rundir.notices, 0)

    def _session(lineage: Lineage) -> Session:
        notices.lineage = lineage.id
        session: Session = Session(
            pool=pool,
            workers=workers,
            settings=_settings(config, task),
            lineage=lineage,
            task=task,
            eval_plan=_eval_plan(config, data) if data.problems else None,
            store=FileStore(rundir.weights),
            rundir=rundir,
            ledger=ledger,
            trackers=trackers_of(lineage.id, lambda text: session.recorder.notice(text)),
            on_progress=notices.beside(on_progress),
        )
        warnings.tell = session.recorder.notice
        session.recorder.recall(updates(rundir.metrics, lineage.resume.update))
        return session

    with Ledger(rundir.ledger) as ledger:
        try:
            stop, life = await lives.run(ledger, _session)
        except Exception as error:  # whatever it is, `paceline doctor` tells it later
            notices.add(str(error) or repr(error), fatal=True)
            raise
    return Outcome(
        ok=stop.ok,
        reason=stop.reason,
        update=life.recorder.update,
        total=schedule.total_updates,
        interrupted=life.interrupted and (life.recorder.update < schedule.total_updates or not life.exported),
        model=str(rundir.model) if life.exported else "",
        emulated=config.rollout.engine == "emulated",
        resumable=rundir.latest_checkpoint() is not None,
    )


def _exported(run: RunDir, on_progress: OnProgress) -> str:
    """The name of a run's exported model; a notice when the run was continued since and has not written another."""
    origin = read_origin(run.model)
    reader = LedgerReader(run.ledger)
    try:
        latest = reader.lineages()[-1].id
    finally:
        reader.close()
    if origin.lineage != latest:
        text = f"{run.model} is the model of lineage {origin.lineage} after update {origin.update}"
        on_progress(Progress(0, 0, {}, "start", f"{text}; lineage {latest} continued the run and has written none"))
    return f"{run.root} after update {origin.update}"


async def _evaluate(config: Config, model: str, on_progress: OnProgress) -> EvalResult:
    warnings = _Warnings(lambda text: on_progress(Progress(0, 0, {}, "start", text)))
    pool = ProcessPool(start_timeout_s=config.pool.start_timeout_s, on_warning=warnings)
    data = await load_data(pool, config, training=False, evaluation=True)
    plan = _eval_plan(config, data)
    rewards = reward_specs(config)
    answers = await evaluate_alone(pool, rollout_specs(config)[:1], rewards, _settings(config, None), plan, on_progress)
    return summarize(answers, model=model)


def _checkpoint(run: RunDir, step: int | None) -> Path:
    wanted = run.latest_checkpoint() if step is None else run.checkpoints / f"step-{step}"
    if wanted is None or not wanted.is_dir():
        present = sorted(path.name for path in run.checkpoints.glob("step-*"))
        which = "it has no complete checkpoint" if step is None else f"it has no step-{step}"
        raise ConfigError(f"{run.root}: {which} (complete: {', '.join(present) or 'none'}; run.checkpoint_every writes them)")
    return wanted


async def _export(config: Config, checkpoint: Path, directory: Path) -> None:
    """By a trainer that restores and writes, as at the end of a run; loss and optimizer do not matter to it."""
    plain = config.model_copy(update={"algorithm": AlgorithmConfig(), "trainer": TrainerConfig()})
    pool = ProcessPool(start_timeout_s=config.pool.start_timeout_s)
    seat = Seat(pool, trainer_spec(plain), config.pool.answer_timeout_s)
    try:
        await seat.fill(lambda report: None, lambda reason: None)
        await seat.call("restore", str(checkpoint))
        await seat.call("export", str(directory))
    finally:
        await seat.stop(1.0)


def _settings(config: Config, task: RowTask | Mixture | None) -> Settings:
    rollout, (reward_s, reward_s_per_answer) = config.rollout, reward_deadline(config)
    return Settings(
        seed=config.run.seed,
        sampling=Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k, rollout.stop, rollout.stop_ids),
        dtype=config.model.dtype,
        gap_warn=config.algorithm.gap_warn,
        answer_timeout_s=config.pool.answer_timeout_s,
        reward_names=tuple(reward_name(reward) for reward in config.reward),
        reward_deadline_s=reward_s,
        keep_last=config.run.keep_last,
        train_timeout_s=config.pool.train_timeout_s,
        reward_deadline_s_per_answer=reward_s_per_answer,
        prompts=None if config.run.epochs is None or task is None else config.run.epochs * len(task),
    )


def _eval_plan(config: Config, data: Data) -> EvalPlan:
    rollout, settings = config.rollout, config.eval
    return EvalPlan(
        prompts=data.problems,
        greedy=settings.greedy,
        samples=settings.samples,
        sampling=Sampling(rollout.max_tokens, settings.temperature, 1.0, 0, rollout.stop, rollout.stop_ids),
        seed=config.run.seed,
        outcome_names=tuple(reward_name(reward) for reward in config.reward if reward.outcome),
    )
