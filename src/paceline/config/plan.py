"""What a configuration amounts to: the schedule with every default resolved, and the plan that `--dry-run` prints.

A *group* is one prompt with its `group_size` samples. Updates count groups: U groups are U prompts and U x group_size samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.config.checks import task_name, training_tasks
from paceline.config.inspect import ModelShape
from paceline.config.memory import Memory, memory
from paceline.config.schema import DEFAULT_STALENESS, DEFAULT_WINDOW, Config, ScheduleConfig
from paceline.core.presets import DEADLINES, traits
from paceline.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts of a run in which every group trains; tokens are upper limits."""

    schedule: Schedule
    updates: int
    rounds: int | None
    """Serial and pipelined; None where generation never pauses."""
    publishes: int
    """Versions made available, the starting weights (version 0) included."""
    groups: int
    """= prompts: updates x U, less where run.epochs ends them in mid-update."""
    samples: int
    """groups x group_size."""
    groups_by_task: tuple[tuple[str, int], ...]
    """Groups of the run per task of a mixture, by its name; empty without one and where numbers of rows are needed and unknown."""
    rows: int | None
    """Prompts per epoch; None = unknown before the file is read."""
    updates_per_epoch: float | None
    epochs: float | None
    """Share or multiple of the rows that the run uses."""
    prompt_tokens: int
    """groups x max_prompt_tokens: a prompt is read once per group."""
    sampled_tokens: int
    """samples x max_tokens."""
    trained_tokens: int
    """Rows through the trainer: a prompt once per group, and every sampled token. Only sampled tokens enter the loss."""
    more_prompts: int
    """Further prompts at most that take the places of groups without signal in their rounds (no_signal = refill)."""
    memory: tuple[Memory, ...]
    """Per process; empty when the model's shape is unknown."""


def schedule(config: Config) -> Schedule:
    """The machine's schedule. Defaults: R = U; D by `_dispatch`; serial waits for all groups, others start at a dispatch; S = 1; W = 2."""
    s = config.schedule
    period = _period(s)
    return Schedule(
        preset=s.preset,
        group_size=s.group_size,
        groups_per_round=period,
        groups_per_update=s.groups_per_update,
        groups_per_dispatch=s.groups_per_dispatch or _dispatch(config),
        updates_per_publish=-(-period // s.groups_per_update),
        start_when=_start(s),
        total_updates=config.run.updates,
        frontier=s.frontier,
        refill=s.refill,
        staleness=_staleness(s),
        overstale=s.overstale,
        at_publish=s.at_publish,
        buffer_groups=_buffer(s),
        granularity=s.granularity,
        version_window=_window(s),
        in_flight_groups=s.in_flight_groups or 0,
        no_signal=s.no_signal,
        refill_limit=s.refill_limit,
        empty_limit=s.empty_limit,
        attempts=s.attempts,
        on_failure=s.on_failure,
        in_order=s.in_order or (config.run.deterministic and s.preset in ("serial", "pipelined")),
        evaluate_every=config.eval.every,
        checkpoint_every=config.run.checkpoint_every,
        rebalance_seconds=s.rebalance_s if s.preset == "multiversion" else 0.0,
        high_kv_use=s.high_kv_use,
        deadlines=_deadlines(config),
    )


def _period(s: ScheduleConfig) -> int:
    """R; where there are no rounds, the groups of a publish period."""
    if s.preset in ("serial", "pipelined"):
        return s.groups_per_round or s.groups_per_update
    return s.groups_per_update * (s.updates_per_publish or 1)


def _dispatch(config: Config) -> int:
    """Pipelined with one update per round: an eighth of it, or the next smaller divisor, since with D = R nothing overlaps. Else U."""
    s = config.schedule
    if s.preset != "pipelined" or _period(s) != s.groups_per_update or config.algorithm.advantage == "batch_std":
        return s.groups_per_update
    return next(d for d in range(max(1, s.groups_per_update // 8), 0, -1) if s.groups_per_update % d == 0)


def _start(s: ScheduleConfig) -> Literal["dispatch", "all"]:
    return s.start_when or ("all" if s.preset == "serial" else "dispatch")


def _staleness(s: ScheduleConfig) -> int:
    if s.preset != "streaming":
        return 0
    return DEFAULT_STALENESS if s.staleness is None else s.staleness


def _window(s: ScheduleConfig) -> int:
    return (s.version_window or DEFAULT_WINDOW) if s.preset == "multiversion" else 1


def _buffer(s: ScheduleConfig) -> int:
    return (s.buffer_groups or (_staleness(s) + 1) * _period(s)) if s.preset == "streaming" else 0


VERIFIER_GRACE_S = 15.0
"""Seconds for what is no comparison: starting the verifier processes again when they are lost."""


def reward_deadline(config: Config) -> tuple[float, float]:
    """Seconds that judging the answers to one prompt may take, and seconds more for each answer.

    Rewards add up, since one worker may have to compute them in turn. `math` has a deadline per answer, `pool.verifiers` at a time: n
    answers take timeout_s x ceil(n / verifiers) at most.
    """
    maths = sum(reward.timeout_s for reward in config.reward if reward.kind == "math")
    calls = sum(reward.timeout_s for reward in config.reward if reward.kind != "math")
    return calls + (maths + VERIFIER_GRACE_S if maths else 0.0), maths / config.pool.verifiers


TOKEN_S = 0.25
"""Seconds that a token may take: a trajectory that needs longer is overdue, however many tokens it may have."""


def _deadlines(config: Config) -> tuple[tuple[str, float], ...]:
    """Waits on workers are due with the worker's answer; those for what decodes leave time for every token besides."""
    answer, (rewards, per_answer) = config.pool.answer_timeout_s, reward_deadline(config)
    judging = rewards + per_answer * config.schedule.group_size
    own = {
        "dispatch": config.pool.train_timeout_s,
        "materialize": judging,
        "admit": answer + _decoding(config, 1),
        "evaluate": answer + _decoding(config, config.eval.problems * (config.eval.samples + config.eval.greedy)),
        "groups": answer + judging + _decoding(config, _period(config.schedule) * config.schedule.group_size),
    }
    return tuple((dict.fromkeys(DEADLINES, answer) | own).items())


def _decoding(config: Config, samples: int) -> float:
    """Seconds that so many samples may decode for: in waves, as many at a time as there are slots."""
    waves = math.ceil(samples / (config.rollout.instances * config.rollout.slots))
    return waves * config.rollout.max_tokens * TOKEN_S


def _by_task(config: Config, groups: int, rows: Sequence[int | None]) -> tuple[tuple[str, int], ...]:
    tasks = training_tasks(config)
    weights = [task.weight if task.weight is not None else count for task, count in zip(tasks, rows, strict=True)]
    known = [weight for weight in weights if weight is not None]
    if not config.mix or len(known) < len(tasks):
        return ()
    return tuple((task_name(task), round(groups * weight / sum(known))) for task, weight in zip(tasks, known, strict=True))


def _all_rows(by_task: Sequence[int | None]) -> int | None:
    known = [count for count in by_task if count is not None]
    return sum(known) if len(known) == len(by_task) else None


def _more_prompts(fixed: Schedule, groups: int) -> int:
    return groups * fixed.refill_limit if fixed.no_signal == "refill" and traits(fixed).rounds else 0


def plan(
    config: Config,
    by_task: Sequence[int | None],
    shape: ModelShape | None,
    *,
    panels: bool = False,
    trainer_panels: bool = False,
    reference: ModelShape | None = None,
) -> Plan:
    """Counts, token limits and memory of a run. by_task: rows of each training task, None = unknown; `shape` None leaves the memory out.

    panels, trainer_panels, reference: as `config.memory.memory`.
    """
    fixed = schedule(config)
    rows = _all_rows(by_task)
    groups = fixed.total_updates * fixed.groups_per_update
    if rows is not None and config.run.epochs is not None:
        groups = min(groups, config.run.epochs * rows)
    updates = -(-groups // fixed.groups_per_update)
    samples = groups * fixed.group_size
    periods = -(-updates // fixed.updates_per_publish)
    prompt_tokens = groups * config.rollout.max_prompt_tokens
    sampled_tokens = samples * config.rollout.max_tokens
    return Plan(
        schedule=fixed,
        updates=updates,
        rounds=periods if fixed.preset in ("serial", "pipelined") else None,
        publishes=1 + periods,
        groups=groups,
        samples=samples,
        rows=rows,
        groups_by_task=_by_task(config, groups, by_task),
        updates_per_epoch=None if rows is None else rows / fixed.groups_per_update,
        epochs=groups / rows if rows else None,
        prompt_tokens=prompt_tokens,
        sampled_tokens=sampled_tokens,
        trained_tokens=prompt_tokens + sampled_tokens,
        more_prompts=_more_prompts(fixed, groups),
        memory=()
        if shape is None
        else memory(config, shape, fixed.groups_per_dispatch, panels=panels, trainer_panels=trainer_panels, reference=reference),
    )
