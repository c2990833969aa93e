"""The known keys: every dotted name of the tree, and what stands there. Positions in `reward` are written `N`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.config.schema import Config
from paceline.config.section import Section

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")

ELSEWHERE: dict[str, str] = {
    "num_generations": "schedule.group_size",
    "rollouts_per_example": "schedule.group_size",
    "n": "schedule.group_size",
    "batch_size": "schedule.groups_per_update",
    "per_device_train_batch_size": "schedule.groups_per_update",
    "gradient_accumulation_steps": "schedule.groups_per_update",
    "ppo_mini_batch_size": "schedule.groups_per_update",
    "train_batch_size": "schedule.groups_per_round",
    "generation_batch_size": "schedule.groups_per_round",
    "steps_per_generation": "schedule.groups_per_round",
    "ppo_max_token_len_per_gpu": "trainer.micro_batch_tokens",
    "ppo_micro_batch_size_per_gpu": "trainer.micro_batch_tokens",
    "seq_len": "trainer.micro_batch_tokens",
    "gradient_checkpointing": "trainer.checkpoint_activations",
    "enable_gradient_checkpointing": "trainer.checkpoint_activations",
    "torch_compile": "trainer.compile",
    "use_torch_compile": "trainer.compile",
    "staleness_threshold": "schedule.staleness",
    "max_staleness": "schedule.staleness",
    "max_head_offpolicyness": "schedule.staleness",
    "max_async_level": "schedule.staleness",
    "max_off_policy_steps": "schedule.staleness",
    "partial_rollout": "schedule.at_publish",
    "max_num_seqs": "rollout.slots",
    "max_completion_length": "rollout.max_tokens",
    "max_completion_tokens": "rollout.max_tokens",
    "max_response_length": "rollout.max_tokens",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "lr": "trainer.learning_rate",
    "warmup_steps": "trainer.warmup_updates",
    "lr_warmup_steps": "trainer.warmup_updates",
    "lr_scheduler_type": "trainer.decay",
    "max_grad_norm": "trainer.clip_norm",
    "grad_clip": "trainer.clip_norm",
    "max_steps": "run.updates",
    "total_training_steps": "run.updates",
    "num_train_epochs": "run.epochs",
    "total_epochs": "run.epochs",
    "output_dir": "run.dir",
    "default_local_dir": "run.dir",
    "save_steps": "run.checkpoint_every",
    "save_freq": "run.checkpoint_every",
    "save_total_limit": "run.keep_last",
    "max_actor_ckpt_to_keep": "run.keep_last",
    "eval_steps": "eval.every",
    "test_freq": "eval.every",
    "beta": "algorithm.kl_weight",
    "kl_loss_coef": "algorithm.kl_weight",
    "kl_loss_type": "algorithm.kl",
    "use_kl_loss": "algorithm.kl",
    "epsilon": "algorithm.clip_low",
    "clip_ratio_low": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "clip_ratio_high": "algorithm.clip_high",
    "delta": "algorithm.dual_clip",
    "clip_ratio_c": "algorithm.dual_clip",
    "scale_rewards": "algorithm.advantage",
    "adv_estimator": "algorithm.advantage",
    "norm_adv_by_std_in_grpo": "algorithm.advantage",
    "loss_type": "algorithm.aggregation",
    "loss_agg_mode": "algorithm.aggregation",
    "importance_sampling_level": "algorithm.ratio",
    "vllm_importance_sampling_correction": "algorithm.correction",
    "rollout_is": "algorithm.correction",
    "vllm_importance_sampling_cap": "algorithm.correction_high",
    "rollout_is_threshold": "algorithm.correction_high",
    "mask_truncated_completions": "algorithm.mask_truncated",
    "reward_funcs": "reward.N.function",
    "custom_reward_function": "reward.N.function",
    "reward_weights": "reward.N.weight",
    "model_name_or_path": "model.path",
    "train_dataset": "task.path",
    "train_files": "task.path",
    "val_files": "eval.task.path",
    "prompt_key": "task.prompt_column",
    "chat_template_kwargs": "task.template_arguments",
    "apply_chat_template_kwargs": "task.template_arguments",
    "report_to": "tracking.kinds",
    "logger": "tracking.kinds",
    "project_name": "tracking.project",
    "run_name": "tracking.name",
    "experiment_name": "tracking.name",
}
"""What a key of TRL, verl, AReaL or prime-rl (its last part) is called here; the guide's table has them with the difference in meaning."""


def section_of(annotation: Any) -> type[Section] | None:
    """The section inside an annotation (itself, optional, or the items of a tuple), else None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (section_of(part) for part in get_args(annotation))
    return next((section for section in found if section is not None), None)


def walk(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key below a section, sections included, in the order of the models."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner = section_of(field.annotation)
        if inner is not None:
            yield from walk(inner, f"{prefix}{name}.N." if get_origin(field.annotation) is tuple else f"{prefix}{name}.")


@cache
def known() -> dict[str, FieldInfo]:
    """All keys by name."""
    return dict(walk())


def field_at(key: str) -> FieldInfo | None:
    """The field that a dotted key names, None for an unknown one; `reward.1.kind` finds `reward.N.kind`."""
    return known().get(_INDEX.sub("N", key))


def is_text(key: str) -> bool:
    """Whether the key holds a plain text (or nothing): its value needs no quotes on the command line."""
    field = field_at(key)
    return field is not None and field.annotation in (str, str | None)


def is_leaf(key: str) -> bool:
    """Whether the key holds a value rather than a section."""
    field = field_at(key)
    return field is not None and section_of(field.annotation) is None


def nearest(key: str, most: int = 3) -> list[str]:
    """Known keys that an unknown one may mean: what other frameworks call so; else alike in its own section first, then of like name
    anywhere, then alike in full."""
    key = _INDEX.sub("N", key)
    head, _, tail = key.rpartition(".")
    if tail in ELSEWHERE:
        return [ELSEWHERE[tail].replace(".N", ".0")]
    beside = [k for k in known() if k.rpartition(".")[0] == head]
    found = [f"{head}.{name}".lstrip(".") for name in difflib.get_close_matches(tail, map(_last, beside), most, 0.6)]
    found += [k for k in known() if _last(k) == tail]
    found += difflib.get_close_matches(key, known(), most, 0.75)
    return list(dict.fromkeys(k.replace(".N", ".0") for k in found))[:most]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def value_at(config: BaseModel | tuple[Any, ...] | dict[str, Any], key: str) -> Any:
    """The value at a dotted key of a valid configuration; None where an optional section is absent."""
    here: Any = config
    for part in key.split("."):
        if here is None:
            return None
        here = here[int(part)] if isinstance(here, tuple) else here[part] if isinstance(here, dict) else getattr(here, part)
    return here
