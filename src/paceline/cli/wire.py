"""The composition root: the only place that knows which adapter stands behind which port. It decides nothing about a run.

The controller that runs this never loads torch: whatever needs it runs in workers, made by the `*_body` factories below.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli import emulated, tracking
from paceline.cli.lazy import OnProgress
from paceline.config.changes import changes
from paceline.config.checks import ensure, reward_name, task_name, training_tasks
from paceline.config.inspect import task_sections
from paceline.config.load import dump
from paceline.config.memory import kv_tokens_needed
from paceline.config.plan import reward_deadline
from paceline.config.plan import schedule as make_schedule
from paceline.config.schema import AlgorithmConfig, Config, TrainerConfig
from paceline.config.scoring import only_scoring
from paceline.core.evaluation import summarize
from paceline.ports.pool import WorkerBody, WorkerSpec
from paceline.runtime.audit import audit as audit_ledger
from paceline.runtime.calls import Seat
from paceline.runtime.evaluation import EvalPlan
from paceline.runtime.ledger import Ledger, LedgerReader, unused
from paceline.runtime.lives import Lives
from paceline.runtime.notices import Notices
from paceline.runtime.process import ProcessPool
from paceline.runtime.rundir import EXPLAINS, FOLLOWS, ORIGIN, Origin, RunDir, mended, read_origin, read_resume, write_durably
from paceline.runtime.session import Lineage, Session, Settings, Workers
from paceline.runtime.solo import evaluate_alone
from paceline.tasks.changes import changed_rows
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask
from paceline.trackers.jsonl import updates
from paceline.transports.files import FileStore
from paceline.types.errors import ConfigError, DataError
from paceline.types.progress import Progress
from paceline.types.records import Prompt, Sampling
from paceline.types.results import AuditReport, EvalResult, Outcome

if TYPE_CHECKING:
    from paceline.native.calls import Kernels
    from paceline.ports.pool import Pool

_log = logging.getLogger(__name__)
PROBLEMS = "problems of the evaluation"
"""What `rows.json` calls them, beside the names of tasks."""
KERNELS = "compiled kernels"
"""Part of a deterministic run's identity."""


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
    if _emulates(config):
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


async def _train(config: Config, rundir: RunDir, on_progress: OnProgress, workers: Workers) -> Outcome:
    pool = ProcessPool(log_dir=rundir.logs, start_timeout_s=config.pool.start_timeout_s)
    data = await _load_data(pool, config, training=True, evaluation=config.eval.every > 0)
    assert data.task is not None
    workers = _bound(workers, data.contents)
    task, schedule, trackers_of = data.task, make_schedule(config), partial(tracking.trackers, config, rundir)
    parts, identity = _parts(config, task), _identity(config, task, data.contents)
    lives = Lives(rundir, schedule, identity, config.pool.trainer_restarts, _explained(rundir, parts))
    rows = {name: part.digests for name, part in parts.items()}
    if data.problems:
        rows[PROBLEMS] = RowTask(data.problems, seed=0, shuffle=False, counts={}).digests
    for line in _counted(task):
        lives.tell(line)
    if not unused(rundir.ledger):
        _tell_changes(lives, rundir, config, rows, identity)
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


def _tell_changes(lives: Lives, rundir: RunDir, config: Config, rows: Mapping[str, Mapping[int, str]], identity: Mapping[str, str]) -> None:
    """Where a resume goes on, and with which other settings, rewards and problems than before."""
    other = changes(rundir.config, config)
    checkpoint = lives.start.checkpoint
    begins = f"goes on from {checkpoint.name}" if checkpoint is not None else "no checkpoint was written yet: begins again"
    lives.tell(f"{begins}{' with other settings: ' if other else ''}{'; '.join(other)}")
    if lives.start.info is not None and (files := mended(lives.start.info.identity, identity)):
        lives.tell(f"rewards from here on are those of other files than before: {'; '.join(files)}")
    if problems := _other_problems(rundir, rows.get(PROBLEMS, {})):
        lives.tell(problems)


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
    seat = Seat(pool, _trainer_spec(plain), config.pool.answer_timeout_s)
    try:
        await seat.fill(lambda report: None, lambda reason: None)
        await seat.call("restore", str(checkpoint))
        await seat.call("export", str(directory))
    finally:
        await seat.stop(1.0)


async def _evaluate(config: Config, model: str, on_progress: OnProgress) -> EvalResult:
    pool = ProcessPool(start_timeout_s=config.pool.start_timeout_s)
    data = await _load_data(pool, config, training=False, evaluation=True)
    plan = _eval_plan(config, data)
    rewards = _reward_specs(config)
    answers = await evaluate_alone(pool, _rollout_specs(config)[:1], rewards, _settings(config, None), plan, on_progress)
    return summarize(answers, model=model)


# --- what the runtime needs of the configuration


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


def _identity(config: Config, task: RowTask | Mixture, contents: Mapping[str, str]) -> dict[str, str]:
    """What a checkpoint must agree with: data, weights, and everything that says what is generated and what the loss means.

    `contents`: fingerprints of the files that the configuration only names, in deterministic mode also what the machine computes with.
    The length of the run, the optimizer's settings, evaluation and the worker pool may change between lineages; what decides bits
    may not in deterministic mode.
    """
    parts = {
        "run.seed": config.run.seed,
        "run.permute_rewards": config.run.permute_rewards,
        **_task_identity(config, task),
        "reward": [reward.model_dump(exclude={"timeout_s"}) for reward in config.reward],
    }
    may_change = {
        "rollout": {"engine", "kernels", "instances", "slots", "kv_tokens", "versions_held"},
        "algorithm": {"gap_warn", "gap_stop"},
        "schedule": {"attempts", "on_failure", "rebalance_s", "high_kv_use"},
        "model": set(),
    }
    for name, exclude in may_change.items():
        parts |= {f"{name}.{key}": value for key, value in getattr(config, name).model_dump(exclude=exclude).items()}
    if _emulates(config):
        work = config.emulated.model_dump(include={"mean_tokens", "sigma", "solved"})
        parts |= {f"emulated.{key}": value for key, value in work.items()}
    if config.run.deterministic:
        parts |= {
            "run.deterministic": True,
            "pool.rollout_threads": _rollout_threads(config),
            "pool.trainer_threads": _trainer_threads(config),
        }
        parts |= {f"trainer.{key}": getattr(config.trainer, key) for key in ("micro_batch_tokens", "head_chunk", "kernels")}
        parts["rollout.kernels"] = config.rollout.kernels
    return {name: json.dumps(value) for name, value in parts.items()} | dict(contents)


def _parts(config: Config, task: RowTask | Mixture) -> dict[str, RowTask]:
    """Every training task by its name."""
    parts = [task] if isinstance(task, RowTask) else list(task.tasks.values())
    return dict(zip(map(task_name, training_tasks(config)), parts, strict=True))


def _task_identity(config: Config, task: RowTask | Mixture) -> dict[str, Any]:
    """Rows and contents of every task, and the whole with its order and template. The settings of `rundir.EXPLAINS` say what changed."""
    parts = _parts(config, task)
    return {
        FOLLOWS: task.fingerprint(),
        **{f"rows of task {name}": f"{len(part)} of {part.counts['read']}" for name, part in parts.items()},
        **{f"contents of task {name}": part.contents() for name, part in parts.items()},
        **{f"{EXPLAINS}{task_name(t)}.{key}": value for t in training_tasks(config) for key, value in t.model_dump().items()},
    }


def _explained(rundir: RunDir, parts: Mapping[str, RowTask]) -> dict[str, Callable[[], str]]:
    """How parts of the identity differ whose values are fingerprints."""

    def _rows(name: str) -> str:
        kept = _kept_rows(rundir, name)
        return changed_rows(kept, parts[name].digests) if kept else ""

    how = {f"contents of task {name}": partial(_rows, name) for name in parts}
    return {**how, FOLLOWS: lambda: "the same rows, rendered or ordered in another way"}


def _other_problems(rundir: RunDir, now: Mapping[int, str]) -> str:
    """What to say where evaluations to come are of other problems than those so far; they may be."""
    kept = _kept_rows(rundir, PROBLEMS)
    if not kept or not now or kept == now:
        return ""
    return f"evaluations from here on are of other problems than those before: {changed_rows(kept, now)}"


def _kept_rows(rundir: RunDir, name: str) -> dict[int, str]:
    """The digests of rows as a lineage before kept them; empty where it did not, or they cannot be read."""
    try:
        return {int(row): str(digest) for row, digest in json.loads(rundir.rows.read_text())[name].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


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


REASONS = 2
"""Rows left out whose reasons are told; a panel shows three notices."""


def _counted(task: RowTask | Mixture) -> Iterator[str]:
    """Rows of every task, what became of the others, and why the first of these were left out, in words."""
    if isinstance(task, RowTask):
        yield f"task: {_rows_in_words(task)}"
        yield from (f"left out: {reason}" for reason in task.skipped[:REASONS])
        return
    for (name, part), share in zip(task.tasks.items(), task.shares, strict=True):
        yield f"task {name}: {share / len(task):.1%} of the prompts; {_rows_in_words(part)}"
        yield from (f"left out of {name}: {reason}" for reason in part.skipped[:REASONS])


def _rows_in_words(task: RowTask) -> str:
    words = {"bad": "bad", "duplicate": "duplicates", "over_limit": "over max_prompt_tokens", "excluded": "held out for the evaluation"}
    gone = [f"{count} {words[name]}" for name, count in task.counts.items() if name in words and count]
    return f"{len(task)} prompts of {task.counts['read']} rows" + (f"; left out: {', '.join(gone)}" if gone else "")


# --- workers


def workers_of(config: Config) -> Workers:
    """What a training run starts."""
    return Workers(_trainer_spec(config), _rollout_specs(config), _reward_specs(config))


def _rollout_specs(config: Config) -> tuple[WorkerSpec, ...]:
    count, cores = config.rollout.instances, config.pool.rollout_cores
    threads = _rollout_threads(config)
    home, arguments = (emulated.__name__, emulated.engine_arguments(config)) if _emulates(config) else (__name__, {"config": config})
    return tuple(
        WorkerSpec(f"rollout-{i}", f"{home}:rollout_body", {**arguments, "instance": f"rollout-{i}"}, threads, cores[i::count])
        for i in range(count)
    )


def _bound(workers: Workers, contents: Mapping[str, str]) -> Workers:
    """Workers of this module bound to what the run is made of, whenever they are started: engines and trainer to these kernels, rewards to
    the files of their functions."""
    kernels_name = {"kernels_name": contents.get(KERNELS, "")}
    own: dict[str, dict[str, Any]] = {
        f"{__name__}:{rollout_body.__name__}": kernels_name,
        f"{__name__}:{trainer_body.__name__}": kernels_name,
        f"{__name__}:{reward_body.__name__}": {"before": contents},
    }

    def bound(spec: WorkerSpec) -> WorkerSpec:
        """Other factories know nothing of it."""
        return replace(spec, arguments={**spec.arguments, **own.get(spec.factory, {})})

    return Workers(bound(workers.trainer), tuple(map(bound, workers.rollout)), tuple(map(bound, workers.reward)))


def _emulates(config: Config) -> bool:
    return config.rollout.engine == "emulated"


def _trainer_spec(config: Config) -> WorkerSpec:
    threads = _trainer_threads(config)
    if _emulates(config):
        costs = {"costs": emulated.trainer_costs(config.emulated)}
        return WorkerSpec("trainer", f"{emulated.__name__}:trainer_body", costs, threads, config.pool.trainer_cores)
    return WorkerSpec("trainer", f"{__name__}:trainer_body", {"config": config}, threads, config.pool.trainer_cores)


def _reward_specs(config: Config) -> tuple[WorkerSpec, ...]:
    arguments: dict[str, Any] = {
        "config": config,
        "rewards": [reward.model_dump() for reward in config.reward],
        "permute_seed": config.run.seed if config.run.permute_rewards else None,
        "verifiers": config.pool.verifiers,
    }
    tasks = [task for task in task_sections(config).values() if task.kind == "reasoning_gym"]
    generators = {task_name(task): {"name": task.name, "parameters": task.parameters} for task in tasks}
    if generators:
        arguments |= {"scorer": "paceline.tasks.gym:scorers", "scorer_arguments": {"tasks": generators}}
    return tuple(WorkerSpec(f"reward-{i}", f"{__name__}:reward_body", arguments) for i in range(config.pool.reward_workers))


def _rollout_threads(config: Config) -> int:
    return config.pool.rollout_threads or max(1, _default_threads(config) // config.rollout.instances)


def _trainer_threads(config: Config) -> int:
    return config.pool.trainer_threads or _default_threads(config)


def _default_threads(config: Config) -> int:
    """All cores where phases take turns, else half of them each; half in deterministic mode, so that all schedules compute alike."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if config.schedule.preset == "serial" and not config.run.deterministic else max(1, cores // 2)


def rollout_body(config: Config, instance: str, kernels_name: str = "") -> WorkerBody:
    """Factory of a rollout worker. kernels_name: of the compiled kernels that a deterministic run is bound to, or `none`.

    Raises ConfigError where it must decode by kernels that this process does not have, or that do not suit the model.
    """
    from time import monotonic

    from paceline.engines.torch_engine import TorchEngine
    from paceline.models.load import load, load_tokenizer
    from paceline.runtime.bodies import RolloutBody

    device = config.pool.rollout_devices[int(instance.rpartition("-")[2]) % len(config.pool.rollout_devices)]
    loaded = load(config.model, device=device)
    tokenizer = load_tokenizer(loaded.directory)
    rollout = config.rollout
    found = _kernels(config, "rollout", device, instance, kernels_name)
    engine = TorchEngine(
        loaded,
        instance=instance,
        slots=rollout.slots,
        kv_tokens=rollout.kv_tokens or rollout.slots * kv_tokens_needed(rollout.max_prompt_tokens, rollout.max_tokens),
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        clock=monotonic,
        versions_held=rollout.versions_held,
        deterministic=config.run.deterministic,
        kernels=found,
    )
    if rollout.kernels == "native" and engine.without_kernels:
        raise ConfigError(f"rollout.kernels = 'native': {engine.without_kernels}")
    if found and engine.without_kernels:
        _log.warning("decoding runs on torch's operators: %s", engine.without_kernels)
    return RolloutBody(engine)


def reward_body(config: Config, before: Mapping[str, str] | None = None, **arguments: Any) -> WorkerBody:
    """Factory of a reward worker. before: `contents` when the run began.

    Raises ConfigError where a function's file is another by now: one run must not judge by two rewards.
    """
    from paceline.cli.contents import contents
    from paceline.rewards.worker import create

    now = contents(config, None)
    if changed := [name.removeprefix("contents of ") for name in now if (before or now).get(name) != now[name]]:
        raise ConfigError(f"{'; '.join(changed)}: changed while the run went on; a resume takes it as it is by then, and says so")
    return create(**arguments)


def _kernels(config: Config, section: Literal["rollout", "trainer"], device: str, worker: str, bound_to: str) -> Kernels | None:
    """Compiled kernels for a worker. ConfigError where it must have them and cannot, or where the run is bound to others."""
    from paceline.native.calls import kernels

    choice = getattr(config, section).kernels
    if device != "cpu" or choice == "torch" or (choice == "auto" and config.model.dtype == "float64"):
        return None
    found = kernels(choice, f"{section}.kernels")
    if bound_to not in ("", found.name if found else "none"):
        have = found.name if found else "no compiled kernels"
        raise ConfigError(f"run.deterministic: {worker} has {have}, the run's compiled kernels are {bound_to}")
    return found


def trainer_body(config: Config, kernels_name: str = "") -> WorkerBody:
    """Factory of the trainer worker. kernels_name: as of `rollout_body`."""
    from paceline.models.load import load
    from paceline.runtime.bodies import TrainerBody
    from paceline.trainers.torch_trainer import TorchTrainer

    reference, device = None, config.pool.trainer_device
    if config.algorithm.kl_weight > 0 and config.algorithm.reference is not None:
        reference = load(config.model.model_copy(update={"path": config.algorithm.reference}), device=device)
    trainer = TorchTrainer(
        load(config.model, train=True, device=device),
        algorithm=config.algorithm,
        trainer=config.trainer,
        rollout=config.rollout,
        model=config.model,
        total_updates=config.run.updates,
        reference=reference,
        deterministic=config.run.deterministic,
        kernels=_kernels(config, "trainer", device, "trainer", kernels_name),
    )
    return TrainerBody(trainer)


def check_data(config: Config) -> None:
    """Raise for every task's file that cannot be read or lacks a column, before anything heavy is loaded."""
    from paceline.cli.data import placed
    from paceline.tasks.files import check_columns

    faults: list[ConfigError | DataError] = []
    for section, task in task_sections(config).items():
        try:
            with placed(section):
                if task.kind == "file":
                    check_columns(task)
        except (ConfigError, DataError) as fault:
            faults.append(fault)
    if faults:
        raise type(faults[0])("\n".join(map(str, faults))) from faults[0]


def check_rewards(config: Config) -> None:
    """Raise ConfigError for a reward function that is not where the configuration says; its file is run to find it."""
    from paceline.rewards.resolve import resolve

    for reward in config.reward:
        if reward.function is not None:
            resolve(reward.function)


def data_body(config: Config) -> WorkerBody:
    """Factory of the worker that reads and renders tasks: tokenizers load torch, so it is not the controller's work."""
    from paceline.cli.contents import contents
    from paceline.cli.data import DataBody

    check_data(config)
    if _emulates(config):
        from paceline.tasks.synthetic import SyntheticTokenizer

        return DataBody(config, SyntheticTokenizer(config.rollout.max_prompt_tokens), contents=partial(contents, config, None))
    from paceline.models.load import load_tokenizer, positions, resolve
    from paceline.models.numerics import numerics
    from paceline.native.calls import kernels

    directory, computer = resolve(config.model.path), dict[str, str]()
    if config.run.deterministic:
        wanted = config.model.dtype != "float64" and {config.rollout.kernels, config.trainer.kernels} != {"torch"}
        found = kernels() if wanted else None
        computer = numerics() | {KERNELS: found.name if found else "none"}
    return DataBody(config, load_tokenizer(directory), positions(directory), lambda: contents(config, resolve) | computer)


@dataclass(frozen=True, slots=True)
class Data:
    """Rendered tasks, and for a training run the fingerprints of model and reward files (deterministic mode: of the machine too)."""

    task: RowTask | Mixture | None
    problems: tuple[Prompt, ...]
    contents: Mapping[str, str]


async def _load_data(pool: Pool, config: Config, *, training: bool, evaluation: bool) -> Data:
    """Read and render the tasks in a worker that ends afterwards; every row that cannot be used is refused here."""
    seat = Seat(pool, WorkerSpec("data", f"{__name__}:data_body", {"config": config}), config.pool.answer_timeout_s)
    try:
        await seat.fill(lambda report: None, lambda reason: None)
        rows, problems = await seat.call("load", training, evaluation)
        contents = await seat.call("contents") if training else {}
    finally:
        await seat.stop(1.0)
    return Data(_mixed(config, [RowTask(**arguments) for arguments in rows]) if rows else None, problems, contents)


def _mixed(config: Config, tasks: Sequence[RowTask]) -> RowTask | Mixture:
    """The only task, or the mixture of all."""
    configs = training_tasks(config)
    weights = [task.weight for task in configs if task.weight is not None]
    names = [task_name(task) for task in configs]
    return Mixture(dict(zip(names, tasks, strict=True)), weights or None) if config.mix else tasks[0]
