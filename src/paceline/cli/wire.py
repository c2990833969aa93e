"""The composition root: the workers of a run, and which adapter stands behind which port in each. It decides nothing about a run.

The controller that starts them never loads torch: whatever needs it is imported by the `*_body` factories, in the workers' processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli import emulated
from paceline.config.checks import task_name
from paceline.config.inspect import task_sections
from paceline.config.memory import kv_tokens_needed
from paceline.config.schema import Config
from paceline.ports.pool import WorkerBody, WorkerSpec
from paceline.runtime.session import Workers
from paceline.types.errors import ConfigError

if TYPE_CHECKING:
    from paceline.native.calls import Kernels

_log = logging.getLogger(__name__)
KERNELS = "compiled kernels"
"""Part of a deterministic run's identity."""


def workers_of(config: Config) -> Workers:
    """What a training run starts."""
    return Workers(trainer_spec(config), rollout_specs(config), reward_specs(config))


def rollout_specs(config: Config) -> tuple[WorkerSpec, ...]:
    """One per instance; cores are dealt out among them."""
    count, cores = config.rollout.instances, config.pool.rollout_cores
    threads = rollout_threads(config)
    home, arguments = (emulated.__name__, emulated.engine_arguments(config)) if emulates(config) else (__name__, {"config": config})
    return tuple(
        WorkerSpec(f"rollout-{i}", f"{home}:rollout_body", {**arguments, "instance": f"rollout-{i}"}, threads, cores[i::count])
        for i in range(count)
    )


def trainer_spec(config: Config) -> WorkerSpec:
    """The trainer, real or emulated."""
    threads = trainer_threads(config)
    if emulates(config):
        costs = {"costs": emulated.trainer_costs(config.emulated)}
        return WorkerSpec("trainer", f"{emulated.__name__}:trainer_body", costs, threads, config.pool.trainer_cores)
    return WorkerSpec("trainer", f"{__name__}:trainer_body", {"config": config}, threads, config.pool.trainer_cores)


def reward_specs(config: Config) -> tuple[WorkerSpec, ...]:
    """One per reward worker, with all rewards and the generators that score."""
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


def data_spec(config: Config) -> WorkerSpec:
    """The worker that reads and renders the rows."""
    return WorkerSpec("data", f"{__name__}:data_body", {"config": config})


def bound(workers: Workers, contents: Mapping[str, str]) -> Workers:
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


def emulates(config: Config) -> bool:
    """Whether engine and trainer pretend."""
    return config.rollout.engine == "emulated"


def rollout_threads(config: Config) -> int:
    """Threads of one rollout instance."""
    return config.pool.rollout_threads or max(1, _default_threads(config) // config.rollout.instances)


def trainer_threads(config: Config) -> int:
    """Threads of the trainer."""
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


def data_body(config: Config) -> WorkerBody:
    """Factory of the worker that reads and renders tasks: tokenizers load torch, so it is not the controller's work."""
    from paceline.cli.checks import check_data
    from paceline.cli.contents import contents
    from paceline.cli.data import DataBody

    check_data(config)
    if emulates(config):
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
