"""The rows of a run in its controller: read and rendered by a worker, mixed, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.cli.wire import data_spec
from paceline.config.checks import task_name, training_tasks
from paceline.config.schema import Config
from paceline.ports.pool import Pool
from paceline.runtime.calls import Seat
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask
from paceline.types.records import Prompt

REASONS = 2
"""Rows left out whose reasons are told; a panel shows three notices."""


@dataclass(frozen=True, slots=True)
class Data:
    """Rendered tasks, and for a training run the fingerprints of model and reward files (deterministic mode: of the machine too)."""

    task: RowTask | Mixture | None
    problems: tuple[Prompt, ...]
    contents: Mapping[str, str]


async def load_data(pool: Pool, config: Config, *, training: bool, evaluation: bool) -> Data:
    """Read and render the tasks in a worker that ends afterwards; every row that cannot be used is refused here."""
    seat = Seat(pool, data_spec(config), config.pool.answer_timeout_s)
    try:
        await seat.fill(lambda report: None, lambda reason: None)
        rows, problems = await seat.call("load", training, evaluation)
        contents = await seat.call("contents") if training else {}
    finally:
        await seat.stop(1.0)
    return Data(mixed(config, [RowTask(**arguments) for arguments in rows]) if rows else None, problems, contents)


def mixed(config: Config, tasks: Sequence[RowTask]) -> RowTask | Mixture:
    """The only task, or the mixture of all."""
    configs = training_tasks(config)
    weights = [task.weight for task in configs if task.weight is not None]
    names = [task_name(task) for task in configs]
    return Mixture(dict(zip(names, tasks, strict=True)), weights or None) if config.mix else tasks[0]


def parts_of(config: Config, task: RowTask | Mixture) -> dict[str, RowTask]:
    """Every training task by its name."""
    parts = [task] if isinstance(task, RowTask) else list(task.tasks.values())
    return dict(zip(map(task_name, training_tasks(config)), parts, strict=True))


def counted(task: RowTask | Mixture) -> Iterator[str]:
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
