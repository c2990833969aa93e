"""What a row's metrics are called where they are sent: paceline's own names, or those that users of TRL or verl know.

Under every convention everything is sent: a metric that the convention has no name for keeps paceline's. It is renamed only where the
other trainer's metric is the same quantity; all of these are of the axis `update`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

TRL = re.compile(
    r"loss|grad_norm|learning_rate|entropy|kl|num_tokens|step_time|reward|reward_std|frac_reward_zero_std"
    r"|rewards/[^/]+/(mean|std)|completions/(mean|min|max)_(terminated_)?length|completions/clipped_ratio"
    r"|clip_ratio/(low|high|region)_mean|sampling/sampling_logp_difference/(mean|max)"
)
"""Metrics that TRL's GRPOTrainer has under the same name; trackers show them below `train/`."""

VERL: Mapping[str, tuple[str, ...]] = {
    "reward": ("critic/score/mean", "critic/rewards/mean"),
    "policy_loss": ("actor/pg_loss",),
    "grad_norm": ("actor/grad_norm",),
    "learning_rate": ("actor/lr",),
    "entropy": ("actor/entropy",),
    "kl": ("actor/kl_loss",),
    "approx_kl_k1": ("actor/ppo_kl",),
    "clip_ratio/region_mean": ("actor/pg_clipfrac",),
    "completions/mean_length": ("response_length/mean",),
    "completions/min_length": ("response_length/min",),
    "completions/max_length": ("response_length/max",),
    "completions/clipped_ratio": ("response_length/clip_ratio",),
    "step_time": ("timing_s/step",),
    "rollout_seconds": ("timing_s/gen",),
    "reward_seconds": ("timing_s/reward",),
    "train_seconds": ("timing_s/update_actor",),
}
"""verl's names of paceline's metrics. Score and reward are one, since the KL term is in the loss."""

STEPS: Mapping[str, str] = {"trl": "train/global_step", "verl": "training/global_step"}
"""What each calls the number of the update."""


def own(axis: str, name: str) -> str:
    """paceline's name of a metric where all axes share one space: below its axis, once."""
    return name if name.startswith(f"{axis}/") else f"{axis}/{name}"


def named(axis: str, step: int, values: Mapping[str, float], conventions: Sequence[str]) -> dict[str, float]:
    """All metrics of a row under the names of every convention, with the step as `AXIS/step`."""
    row: dict[str, float] = {own(axis, "step"): step}
    for convention in conventions:
        if axis == "update" and convention in STEPS:
            row[STEPS[convention]] = step
        for name, value in values.items():
            row |= dict.fromkeys(_names(axis, name, convention), value)
    return row


def _names(axis: str, name: str, convention: str) -> tuple[str, ...]:
    if axis == "update" and convention == "trl" and TRL.fullmatch(name):
        return (f"train/{name}",)
    if axis == "update" and convention == "verl" and name in VERL:
        return VERL[name]
    return (own(axis, name),)
