"""What makes a run the same run: what its checkpoints must agree with, and how a resume says what changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from paceline.cli.loading import parts_of
from paceline.cli.wire import emulates, rollout_threads, trainer_threads
from paceline.config.changes import changes
from paceline.config.checks import task_name, training_tasks
from paceline.config.schema import Config
from paceline.runtime.lives import Start
from paceline.runtime.rundir import FOLLOWS, RunDir, mended
from paceline.tasks.changes import changed_rows
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask

PROBLEMS = "problems of the evaluation"
"""What `rows.json` calls them, beside the names of tasks."""


def identity_of(config: Config, task: RowTask | Mixture, contents: Mapping[str, str]) -> dict[str, str]:
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
    if emulates(config):
        work = config.emulated.model_dump(include={"mean_tokens", "sigma", "solved"})
        parts |= {f"emulated.{key}": value for key, value in work.items()}
    if config.run.deterministic:
        parts |= {
            "run.deterministic": True,
            "pool.rollout_threads": rollout_threads(config),
            "pool.trainer_threads": trainer_threads(config),
        }
        parts |= {f"trainer.{key}": getattr(config.trainer, key) for key in ("micro_batch_tokens", "head_chunk", "kernels")}
        parts["rollout.kernels"] = config.rollout.kernels
    return {name: json.dumps(value) for name, value in parts.items()} | dict(contents)


def _task_identity(config: Config, task: RowTask | Mixture) -> dict[str, Any]:
    """Rows and contents of every task, and the whole with its order and template. The settings, see `rundir.EXPLAINS`, say what changed:
    those of the evaluation too, whose problems are held out of the rows."""
    parts = parts_of(config, task)
    held_out = [config.eval.task] if config.eval.task and config.eval.hold_out else []
    settings = [("task", one) for one in training_tasks(config)] + [("eval.task", one) for one in held_out]
    return {
        FOLLOWS: task.fingerprint(),
        **{f"rows of task {name}": f"{len(part)} of {part.counts['read']}" for name, part in parts.items()},
        **{f"contents of task {name}": part.contents() for name, part in parts.items()},
        **{f"{section}.{task_name(one)}.{key}": value for section, one in settings for key, value in one.model_dump().items()},
        **{f"eval.{key}": getattr(config.eval, key) for key in ("hold_out", "problems")},
    }


def told(start: Start, rundir: RunDir, config: Config, rows: Mapping[str, Mapping[int, str]], identity: Mapping[str, str]) -> Iterator[str]:
    """Where a resume goes on, and with which other settings, rewards and problems than before.

    rows: of every task and of the problems, their digests. identity: as of `identity_of`, now.
    """
    other = changes(rundir.config, config)
    begins = "no checkpoint was written yet: begins again" if start.checkpoint is None else f"goes on from {start.checkpoint.name}"
    yield f"{begins}{' with other settings: ' if other else ''}{'; '.join(other)}"
    if start.info is not None and (files := mended(start.info.identity, identity)):
        yield f"rewards from here on are those of other files than before: {'; '.join(files)}"
    if problems := _other_problems(rundir, rows.get(PROBLEMS, {})):
        yield problems


def explained(rundir: RunDir, parts: Mapping[str, RowTask]) -> dict[str, Callable[[], str]]:
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
