"""Rules that one section can judge alone, but for [schedule] (`config.schedule_rules`). Rules across sections: `config.checks`."""

from __future__ import annotations

import re

from paceline.config.emulated import EmulatedConfig
from paceline.config.memory import KV_PAGE, kv_tokens_needed
from paceline.config.rules import Rule, changed, only
from paceline.config.schema import (
    AlgorithmConfig,
    EvalConfig,
    RewardConfig,
    RolloutConfig,
    TaskConfig,
)
from paceline.config.tracking import TrackingConfig

ARGUMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "math": {"marker": (), "percent": ("loose", "strict")},
    "numeric": {"marker": (), "which": ("last", "first"), "percent": ("loose", "strict")},
    "exact": {"marker": ()},
    "task": {"answer": ("tag", "number", "text"), "marker": ()},
}
"""Arguments that each kind of reward takes, with their values; () = any text that is not blank. A function takes any."""


TASK: list[Rule[TaskConfig]] = [
    Rule(
        "generator_named",
        ("kind", "name"),
        "kind reasoning_gym needs the generator's name",
        lambda t: t.kind == "reasoning_gym" and not t.name,
    ),
    Rule("file_named", ("kind", "path"), "kind file needs a path", lambda t: t.kind == "file" and not t.path),
    *only("name parameters seed", lambda t: t.kind == "reasoning_gym", "it belongs to the kind reasoning_gym"),
    *only("size", lambda t: t.kind != "file", "it belongs to the kinds reasoning_gym and synthetic"),
    *only("path prompt_column gold_column gold_pattern bad_rows", lambda t: t.kind == "file", "it belongs to the kind file"),
    *only("template_arguments", lambda t: t.template == "chat", "it belongs to the template chat"),
    Rule(
        "synthetic_has_no_text",
        ("kind", "system", "suffix", "template", "template_arguments"),
        "synthetic prompts are numbers of tokens: nothing can be said in them",
        lambda t: t.kind == "synthetic" and any(changed(t, key) for key in ("system", "suffix", "template", "template_arguments")),
    ),
    Rule(
        "gold_pattern_needs_column",
        ("gold_pattern", "gold_column"),
        "the pattern is applied to the gold column; name it",
        lambda t: t.kind == "file" and t.gold_pattern is not None and t.gold_column is None,
    ),
    Rule(
        "gold_pattern_has_a_group",
        ("gold_pattern",),
        "must be a regular expression with at least one group, which is the gold",
        lambda t: t.gold_pattern is not None and _groups(t.gold_pattern) < 1,
    ),
]
"""Rules about [task], and [eval.task] alike."""

REWARD: list[Rule[RewardConfig]] = [
    Rule(
        "function_named",
        ("kind", "function"),
        "kind function needs `module:function` or `path/to/file.py:function`",
        lambda r: r.kind == "function" and not re.fullmatch(r"[^:]+:[A-Za-z_][\w.]*", r.function or ""),
    ),
    *only("function", lambda r: r.kind == "function", "it belongs to the kind function"),
    *only("signature", lambda r: r.kind == "function", "it belongs to the kind function"),
    Rule(
        "arguments_known",
        ("kind", "arguments"),
        "math takes marker and percent; numeric takes marker, which and percent; exact takes marker; task takes answer and marker",
        lambda r: r.kind != "function" and not set(r.arguments) <= set(ARGUMENTS[r.kind]),
    ),
    Rule(
        "argument_values",
        ("arguments",),
        "which is last or first, percent loose or strict, answer tag, number or text, marker a text that is not blank",
        lambda r: r.kind != "function" and any(not _allowed(r.kind, name, value) for name, value in r.arguments.items()),
    ),
    Rule(
        "marker_outside_tags",
        ("kind", "arguments"),
        "the task's scorer reads what stands in <answer> tags, where a marker has no effect; set answer = number or text",
        lambda r: r.kind == "task" and "marker" in r.arguments and r.arguments.get("answer", "tag") == "tag",
    ),
]
"""Rules about every [[reward]]."""

ROLLOUT: list[Rule[RolloutConfig]] = [
    Rule(
        "sampling_needs_temperature",
        ("temperature",),
        "training samples at a temperature above 0: greedy answers of one prompt are all alike and carry no signal",
        lambda r: r.temperature == 0,
    ),
    Rule(
        "filter_asked_for",
        ("top_p", "top_k", "train_on_filtered"),
        "a filter makes the sampled distribution another one than the learner's; say train_on_filtered = true if you mean it",
        lambda r: (r.top_p < 1 or r.top_k > 0) and not r.train_on_filtered,
    ),
    *only("train_on_filtered", lambda r: r.top_p < 1 or r.top_k > 0, "neither top_p nor top_k filters anything"),
    Rule(
        "kv_holds_a_trajectory",
        ("kv_tokens", "max_prompt_tokens", "max_tokens"),
        f"the KV cache must hold at least one prompt and answer of full length, each in whole pages of {KV_PAGE} tokens",
        lambda r: 0 < r.kv_tokens < kv_tokens_needed(r.max_prompt_tokens, r.max_tokens),
    ),
]
"""Rules about [rollout] alone."""

ALGORITHM: list[Rule[AlgorithmConfig]] = [
    *only("std std_eps", lambda a: a.advantage != "group_mean", "the advantage group_mean divides by nothing"),
    *only("constant_length", lambda a: a.aggregation == "constant", "only aggregation = constant divides by it"),
    Rule(
        "dual_clip_above_one",
        ("dual_clip",),
        "c must be above 1, else it would clip ratios near 1",
        lambda a: a.dual_clip is not None and a.dual_clip <= 1,
    ),
    Rule("clip_low_at_most_one", ("clip_low",), "a ratio is never below 0, so above 1 nothing is clipped", lambda a: a.clip_low > 1),
    *only("correction_level correction_high", lambda a: a.correction != "none", "there is no correction"),
    *only("correction_low", lambda a: a.correction in ("mask", "reject"), "only mask and reject have a lower bound"),
    *only(
        "clip_low clip_high dual_clip ratio",
        lambda a: a.correction not in ("truncate", "mask"),
        "in truncate and mask the weight carries the ratio, and what is left to clip is the learner against itself, which is 1; "
        "correction = reject keeps the clipped ratio",
    ),
    Rule(
        "correction_keeps_on_policy",
        ("correction", "correction_low", "correction_high"),
        "a token on policy has weight 1, which mask and reject must keep: correction_low < 1 < correction_high",
        lambda a: a.correction in ("mask", "reject") and not a.correction_low < 1 < a.correction_high,
    ),
    Rule(
        "correction_bound_acts",
        ("correction", "correction_high"),
        "weights are 1 on average, so fewer than one in a thousand could be above 1000: the bound would do nothing",
        lambda a: a.correction != "none" and a.correction_high > 1000,
    ),
    Rule(
        "geometric_bounds_wide",
        ("correction_level", "correction_low", "correction_high"),
        "a geometric mean averages over the sequence and stays near 1, so in long answers these bounds hardly act; try 0.99 and 1.01",
        lambda a: a.correction != "none" and a.correction_level == "geometric" and a.correction_high > 1.2,
        "warn",
    ),
    Rule(
        "kl_weight_needs_kl",
        ("kl", "kl_weight"),
        "a weight needs an estimator: kl = k1, k2 or k3",
        lambda a: a.kl == "none" and a.kl_weight > 0,
    ),
    Rule("kl_needs_weight", ("kl", "kl_weight"), "with weight 0 the term does nothing", lambda a: a.kl != "none" and a.kl_weight == 0),
    *only("reference mask_kl_without_signal", lambda a: a.kl != "none", "there is no KL term"),
    *only("overlong_penalty", lambda a: a.overlong_buffer > 0, "overlong_buffer = 0 switches the penalty off"),
    Rule(
        "overlong_buffer_needs_penalty",
        ("overlong_buffer", "overlong_penalty"),
        "with penalty 0 the buffer does nothing",
        lambda a: a.overlong_buffer > 0 and a.overlong_penalty == 0,
    ),
    Rule("gap_warns_first", ("gap_warn", "gap_stop"), "must warn at or before it stops", lambda a: a.gap_warn > a.gap_stop),
]
"""Rules about [algorithm] alone."""

EVAL: list[Rule[EvalConfig]] = [
    *only("problems samples temperature greedy every hold_out", lambda e: e.task is not None, "there is no eval.task"),
    Rule(
        "eval_scores_something",
        ("greedy", "samples"),
        "without greedy and with 0 samples nothing is scored",
        lambda e: e.task is not None and not e.greedy and e.samples == 0,
    ),
    *only("temperature", lambda e: e.samples > 0, "no answer is sampled", "temperature_without_samples"),
]
"""Rules about [eval] alone."""


EMULATED: list[Rule[EmulatedConfig]] = [
    *only("mean_tokens sigma", lambda e: not e.lengths, "lengths are drawn from the file in `lengths`"),
]
"""Rules about [emulated] alone."""

TRACKING: list[Rule[TrackingConfig]] = [
    *only("names", lambda t: bool(t.kinds), "nothing is sent anywhere: tracking.kinds is empty"),
    *only("project name", lambda t: bool({*t.kinds} - {"tensorboard"}), "no kind that has projects is among tracking.kinds"),
    *only("offline", lambda t: "wandb" in t.kinds, "it belongs to the kind wandb"),
    *only("mlflow_server", lambda t: "mlflow" in t.kinds, "it belongs to the kind mlflow"),
    Rule(
        "no_password_in_the_address",
        ("kinds",),
        "tracking.mlflow_server holds a user name or password, and a configuration is kept in the run directory, shown in reports and sent "
        "to services: give them as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        lambda t: re.search("//[^/]*@", t.mlflow_server or "") is not None,
    ),
    Rule("kinds_once", ("kinds",), "each kind once: a second one would write every row twice", lambda t: len({*t.kinds}) < len(t.kinds)),
]
"""Rules about [tracking] alone."""


def _allowed(kind: str, name: str, value: object) -> bool:
    """Whether a known argument has a value it may have; unknown names are another rule's."""
    values = ARGUMENTS[kind].get(name)
    return (
        values is None
        or (value in values and not isinstance(value, (bool, float)))
        or (not values and isinstance(value, str) and bool(value.strip()))
    )


def _groups(pattern: str) -> int:
    """Groups of a regular expression, -1 if it is none."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return -1
