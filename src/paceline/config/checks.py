"""Combinations without effect or without meaning: rules across sections, and the check of all. The guide's table is made from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from paceline.config import section_rules as own
from paceline.config.emulated import EmulatedConfig
from paceline.config.faults import Fault, refuse, show
from paceline.config.keys import value_at
from paceline.config.machine_rules import MACHINE
from paceline.config.rules import Rule, changed, only
from paceline.config.schedule_rules import SCHEDULE
from paceline.config.schema import (
    DEFAULT_WINDOW,
    AlgorithmConfig,
    Config,
    ModelConfig,
    RewardConfig,
    ScheduleConfig,
    TaskConfig,
    TrainerConfig,
)
from paceline.config.section import Section


def reward_name(reward: RewardConfig) -> str:
    """The name of a reward in metrics: its own, the function's, or its kind."""
    return reward.name or (reward.function or reward.kind).rpartition(":")[2]


_SAMPLING = ("temperature", "top_p", "top_k", "stop", "stop_ids")


def _emulated(c: Config) -> bool:
    return c.rollout.engine == "emulated"


def training_tasks(config: Config) -> tuple[TaskConfig, ...]:
    """`[task]` and every `[[mix]]`."""
    return (config.task, *config.mix)


def task_name(task: TaskConfig) -> str:
    """The name of a task in metrics and messages: its label, the generator's, or the file's."""
    return task.label or {"reasoning_gym": task.name, "file": PurePath(task.path).stem, "synthetic": "synthetic"}[task.kind]


def _tasks(c: Config) -> list[TaskConfig]:
    return [*training_tasks(c), *([c.eval.task] if c.eval.task else [])]


def _generated(c: Config) -> list[TaskConfig]:
    return [task for task in _tasks(c) if task.kind == "reasoning_gym"]


def _on_policy(s: ScheduleConfig) -> bool:
    """Whether every group is consumed by exactly the weights that sampled it."""
    match s.preset:
        case "serial" | "pipelined":
            return s.groups_per_round in (None, s.groups_per_update)
        case "streaming":
            return s.staleness == 0 and s.updates_per_publish in (None, 1)
    return s.version_window == 1 and s.updates_per_publish in (None, 1)


WHOLE: list[Rule[Config]] = [
    Rule("some_reward", ("reward",), "at least one reward function is needed", lambda c: not c.reward),
    Rule(
        "reward_names_differ",
        ("reward",),
        "each reward function needs a name of its own in the metrics; set reward.N.name",
        lambda c: len({reward_name(r) for r in c.reward}) < len(c.reward),
    ),
    Rule(
        "some_outcome",
        ("reward",),
        "at least one reward must count in the raw outcome, else the group filter judges nothing",
        lambda c: bool(c.reward) and not any(r.outcome for r in c.reward),
    ),
    Rule(
        "task_scores_itself",
        ("task.kind", "eval.task.kind"),
        "the reward kind task is the generator's own scorer: every task must be of kind reasoning_gym",
        lambda c: any(r.kind == "task" for r in c.reward) and any(t.kind != "reasoning_gym" for t in _tasks(c)),
    ),
    Rule(
        "gold_to_compare_with",
        ("task.gold_column", "eval.task.gold_column"),
        "the rewards math, numeric and exact compare with a gold answer; name its column",
        lambda c: (
            any(r.kind in ("math", "numeric", "exact") for r in c.reward) and any(t.kind == "file" and not t.gold_column for t in _tasks(c))
        ),
    ),
    Rule(
        "verifiers_compare_mathematics",
        ("pool.verifiers", "reward"),
        "only rewards of kind math compare in processes of their own",
        lambda c: c.pool.verifiers > 1 and not any(r.kind == "math" for r in c.reward),
    ),
    Rule(
        "batch_std_sees_the_update",
        ("algorithm.advantage", "schedule.groups_per_dispatch", "schedule.groups_per_update"),
        "batch_std divides by the deviation of the whole update, which only a dispatch of the whole update knows: D = U",
        lambda c: c.algorithm.advantage == "batch_std" and c.schedule.groups_per_dispatch not in (None, c.schedule.groups_per_update),
    ),
    *only(
        "rollout.versions_held",
        lambda c: c.schedule.preset == "multiversion",
        "every instance serves one version in the presets serial, pipelined and streaming",
    ),
    Rule(
        "versions_held_within_window",
        ("rollout.versions_held", "schedule.version_window"),
        "no more than W versions are alive, so further copies of the weights would serve nothing",
        lambda c: c.schedule.preset == "multiversion" and c.rollout.versions_held > (c.schedule.version_window or DEFAULT_WINDOW),
    ),
    Rule(
        "slots_hold_a_group",
        ("schedule.granularity", "schedule.group_size", "rollout.slots"),
        "a group that is submitted whole needs a slot for each of its samples on one instance",
        lambda c: c.schedule.granularity == "group" and c.rollout.slots < c.schedule.group_size,
    ),
    Rule(
        "frontier_within_slots",
        ("schedule.frontier", "schedule.group_size", "rollout.instances", "rollout.slots"),
        "limits nothing: all slots together hold no more than F x group_size trajectories",
        lambda c: (
            isinstance(c.schedule.frontier, int)
            and c.schedule.refill == "sample"
            and c.schedule.frontier * c.schedule.group_size >= c.rollout.instances * c.rollout.slots
        ),
        "warn",
    ),
    Rule(
        "versions_fit_the_fleet",
        ("rollout.instances", "rollout.versions_held", "schedule.version_window"),
        "the instances together hold fewer versions than W: the oldest are served first, and the newest waits for a place; raise "
        "versions_held (a copy of the weights each) or instances",
        lambda c: (
            c.schedule.preset == "multiversion"
            and c.rollout.instances * c.rollout.versions_held < (c.schedule.version_window or DEFAULT_WINDOW)
        ),
        "warn",
    ),
    Rule(
        "correction_corrects",
        ("algorithm.correction", "model.dtype", "schedule.preset", "schedule.groups_per_round", "schedule.groups_per_update"),
        "has no effect: each group is consumed by the weights that sampled it, and in float32 and float64 engine and trainer agree to "
        "rounding, so every weight is 1",
        lambda c: c.algorithm.correction != "none" and c.model.dtype != "bfloat16" and _on_policy(c.schedule),
    ),
    Rule(
        "overlong_buffer_below_max_tokens",
        ("algorithm.overlong_buffer", "rollout.max_tokens"),
        "the penalty grows over the last tokens before max_tokens; a buffer of all of them punishes every answer",
        lambda c: c.algorithm.overlong_buffer >= c.rollout.max_tokens,
    ),
    Rule(
        "emulated_no_effect",
        ("rollout.engine",),
        "[emulated] has no effect: it says what the engine emulated pretends",
        lambda c: not _emulated(c) and c.emulated != EmulatedConfig(),
    ),
    Rule(
        "emulated_learns_nothing",
        ("rollout.engine",),
        "[model], [trainer] and [algorithm] have no effect: the trainer of the engine emulated has no weights",
        lambda c: _emulated(c) and (c.model, c.trainer, c.algorithm) != (ModelConfig(), TrainerConfig(), AlgorithmConfig()),
    ),
    Rule(
        "emulated_samples_nothing",
        tuple(f"rollout.{key}" for key in _SAMPLING),
        "have no effect: the engine emulated samples nothing",
        lambda c: _emulated(c) and any(changed(c.rollout, key) for key in _SAMPLING),
    ),
    Rule(
        "emulated_is_synthetic",
        ("rollout.engine", "task.kind", "eval.task.kind"),
        "the engine emulated has no tokenizer: it goes with tasks of kind synthetic, and they with it",
        lambda c: any((t.kind == "synthetic") != _emulated(c) for t in _tasks(c)),
    ),
    Rule(
        "mixed_tasks_differ_by_name",
        ("task.label", "mix"),
        "each task of a mixture needs a name of its own in the metrics; set mix.N.label",
        lambda c: len({task_name(t) for t in training_tasks(c)}) <= len(c.mix),
    ),
    Rule(
        "one_generator_per_name",
        ("task.name", "mix", "eval.task.name"),
        "answers are given to the generator's scorer by the task's name; set a label of its own for another generator",
        lambda c: len({(task_name(t), t.name) for t in _generated(c)}) > len({task_name(t) for t in _generated(c)}),
    ),
    Rule(
        "weights_for_all_or_none",
        ("task.weight", "mix"),
        "with weights every task of the mixture needs one; without any, each counts by its number of rows",
        lambda c: bool(c.mix) and len({t.weight is None for t in training_tasks(c)}) > 1,
    ),
    Rule(
        "weight_needs_a_mixture",
        ("task.weight", "eval.task.weight"),
        "has no effect: it is a share among [task] and every [[mix]]",
        lambda c: (c.task.weight is not None and not c.mix) or (c.eval.task is not None and c.eval.task.weight is not None),
    ),
    Rule(
        "deterministic_order_of_prompts",
        ("run.deterministic", "schedule.no_signal"),
        "which prompt replaces which depends on when rewards come back, so a run with refill would not repeat; keep or drop",
        lambda c: c.run.deterministic and c.schedule.no_signal == "refill",
    ),
    Rule(
        "deterministic_computes",
        ("run.deterministic", "rollout.engine"),
        "has no effect: the engine emulated computes nothing",
        lambda c: c.run.deterministic and _emulated(c),
    ),
    Rule(
        "deterministic_engine_only",
        ("run.deterministic", "schedule.preset"),
        "covers the engine only: which version samples a token, and which groups an update takes, depend on timing in streaming and "
        "multiversion; serial and pipelined repeat bit for bit",
        lambda c: c.run.deterministic and c.schedule.preset in ("streaming", "multiversion"),
        "warn",
    ),
    Rule(
        "gold_for_the_function",
        ("task.gold_column", "eval.task.gold_column"),
        "a function with the signature of verl or openrlhf is called with the gold, which is None for such a file",
        lambda c: (
            any(r.signature in ("verl", "openrlhf") for r in c.reward) and any(t.kind == "file" and not t.gold_column for t in _tasks(c))
        ),
        "warn",
    ),
    Rule(
        "warmup_within_run",
        ("trainer.warmup_updates", "run.updates"),
        "the run ends before the learning rate reaches its peak",
        lambda c: c.trainer.warmup_updates >= c.run.updates and not _emulated(c),
        "warn",
    ),
    *MACHINE,
    Rule(
        "micro_batch_holds_a_sequence",
        ("trainer.micro_batch_tokens", "rollout.max_prompt_tokens", "rollout.max_tokens"),
        "a sequence can be longer than the budget; it then makes a micro-batch of its own",
        lambda c: c.trainer.micro_batch_tokens < c.rollout.max_prompt_tokens + c.rollout.max_tokens and not _emulated(c),
        "warn",
    ),
]
"""Rules across sections."""

RULES: dict[str, list[Rule[Any]]] = {
    "schedule": SCHEDULE,
    "task": own.TASK,
    "mix.N": own.TASK,
    "eval.task": own.TASK,
    "reward.N": own.REWARD,
    "rollout": own.ROLLOUT,
    "algorithm": own.ALGORITHM,
    "emulated": own.EMULATED,
    "eval": own.EVAL,
    "tracking": own.TRACKING,
    "": WHOLE,
}
"""All rules by the section they judge."""


def check(config: Config) -> list[Fault]:
    """Every refused combination of a configuration that is valid key by key."""
    return list(_broken(config, "refuse"))


def ensure(config: Config) -> Config:
    """The configuration itself, if no combination is refused; for those built in Python. Raises one ConfigError with every fault."""
    if faults := check(config):
        raise refuse(faults, "the configuration")
    return config


def warnings(config: Config) -> list[Fault]:
    """Combinations that are allowed and probably not meant."""
    return list(_broken(config, "warn"))


def _broken(config: Config, level: str) -> Iterator[Fault]:
    for where, rules in RULES.items():
        for prefix, section in _sections(config, where):
            for rule in rules:
                if rule.level == level and rule.broken(section):
                    items = tuple((prefix + key, show(_value(section, key))) for key in rule.keys)
                    yield Fault(items, rule.why, name=rule.name)


def _sections(config: Config, where: str) -> Iterator[tuple[str, Section]]:
    if where.endswith(".N"):
        name = where.removesuffix(".N")
        yield from ((f"{name}.{index}.", section) for index, section in enumerate(value_at(config, name)))
    elif not where:
        yield "", config
    elif (section := value_at(config, where)) is not None:
        yield f"{where}.", section


def _value(section: Section, key: str) -> Any:
    value = value_at(section, key)
    names: dict[str, Callable[[Any], str]] = {"reward": reward_name, "mix": task_name}
    return [*map(names[key], value)] if key in names else value
