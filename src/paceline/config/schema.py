"""The tree of configuration models. Unknown keys and wrong types are refused; every field states unit, range and default.

Cross-field rules (combinations without effect or meaning) stand in `config.checks`, loading and overrides in `config.load`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every section: strict, frozen, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelConfig(Section):
    """Which policy is trained."""

    path: str = "smollm2-135m"
    """Local Hugging Face directory, a hub id, or the name of a packaged model (`smollm2-135m`)."""
    dtype: Literal["float32", "bfloat16", "float64"] = "bfloat16"
    """Compute dtype of engine and trainer; master weights are float32 (float64 for float64)."""
    implementation: Literal["auto", "slim", "transformers"] = "auto"
    """`slim` = paceline's decoder for the Llama / Qwen family, `transformers` = the model's own class, `auto` = slim where it fits."""


class TaskConfig(Section):
    """Where prompts come from."""

    kind: Literal["reasoning_gym", "file"] = "reasoning_gym"
    name: str = ""
    """reasoning_gym: the generator, e.g. `chain_sum`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """reasoning_gym: parameters of the generator."""
    size: int = Field(default=2000, ge=1)
    """reasoning_gym: rows generated (duplicates are removed afterwards and counted)."""
    seed: int = 1
    """reasoning_gym: seed of the generator."""
    path: str = ""
    """file: JSONL or Parquet file."""
    prompt_column: str = "prompt"
    """file: column with the question (text) or the messages (list of role/content)."""
    gold_column: str | None = None
    """file: column with the gold answer; None = no gold."""
    gold_pattern: str | None = None
    """file: regular expression; its last match's group 1 in the gold column is the gold (GSM8K: `####\\s*(.+)`)."""
    system: str | None = None
    """System message put before the question; None = the template's own default."""
    suffix: str = ""
    """Text appended to the question."""
    template: Literal["chat", "plain"] = "chat"
    """`chat` = the tokenizer's chat template with a generation prompt; `plain` = the text itself."""
    template_arguments: dict[str, Any] = Field(default_factory=dict)
    """chat: passed on to the template, e.g. `enable_thinking = false`."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """A row that cannot be used: refuse the file, or skip the row and count it."""
    limit: int | None = None
    """Use at most this many rows."""
    shuffle: bool = True
    """Shuffle each epoch (a pure function of run seed and epoch)."""


class RewardConfig(Section):
    """One reward function; several are summed with their weights."""

    kind: Literal["exact", "numeric", "task", "function"] = "numeric"
    """`exact`, `numeric`, `task` = the task's own scorer (reasoning-gym), `function` = yours."""
    weight: float = 1.0
    name: str | None = None
    """Name in metrics; default: the kind, or the function's name."""
    function: str | None = None
    """function: `module:function` or `path/to/file.py:function` with TRL's signature."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """numeric: `marker` (text before the answer; given, it is required, else no credit), `which` (`last`, `first`), `percent`
    (`loose`, `strict`). exact: `marker`. task: `answer` (`tag`, `number`, `text`), `marker`. function: keyword arguments of yours."""
    outcome: bool = True
    """Whether this function counts in the raw outcome that the group filter judges."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Deadline of one batch of calls, seconds."""


class RolloutConfig(Section):
    """The engine and how it samples."""

    engine: Literal["torch"] = "torch"
    instances: int = Field(default=1, ge=1)
    """Engine processes."""
    slots: int = Field(default=64, ge=1)
    """Trajectories decoded together per instance."""
    kv_tokens: int = Field(default=0, ge=0)
    """KV capacity per instance in tokens; 0 = enough for all slots at full length."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    """Sampled tokens per trajectory, at most."""
    over_limit: Literal["refuse", "filter"] = "refuse"
    """Prompts longer than max_prompt_tokens: refuse the task, or leave them out and count them."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 = no filter."""
    train_on_filtered: bool = False
    """top_p < 1 or top_k > 0 make behaviour and learner differ; training under a filter must be asked for by name."""
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    """End-of-sequence ids beside the model's own."""


class ScheduleConfig(Section):
    """When what is generated and trained; see the guide. Groups per update etc. are counts."""

    preset: Literal["serial", "pipelined", "streaming", "multiversion"] = "serial"
    group_size: int = Field(default=8, ge=1)
    groups_per_update: int = Field(default=8, ge=1)
    """U."""
    groups_per_round: int | None = None
    """R, serial and pipelined; default U."""
    groups_per_dispatch: int | None = None
    """D <= U; default U."""
    updates_per_publish: int | None = None
    """streaming, multiversion; serial and pipelined derive it from R / U."""
    frontier: int | Literal["auto"] | None = None
    """F, pipelined; None = fifo."""
    refill: Literal["group", "sample"] = "sample"
    staleness: int | None = None
    """S, streaming, in versions."""
    overstale: Literal["pace", "retry", "drop"] = "pace"
    at_publish: Literal["keep", "recompute", "drain"] = "keep"
    buffer_groups: int | None = None
    granularity: Literal["sample", "group"] = "sample"
    version_window: int | None = None
    """W, multiversion."""
    in_flight_groups: int | None = None
    no_signal: Literal["keep", "drop", "refill"] = "keep"
    """A group of equal raw outcomes: `keep` counts it with zero advantage, `drop` leaves it out, `refill` takes another prompt."""
    refill_limit: int = Field(default=3, ge=0)
    attempts: int = Field(default=3, ge=1)
    on_failure: Literal["drop_sample", "drop_group", "stop"] = "stop"
    in_order: bool = False


class AlgorithmConfig(Section):
    """The loss: advantage + ratio + clip + aggregation + KL."""

    advantage: Literal["group_std", "group_mean", "batch_std"] = "group_std"
    """GRPO; mean only (Dr.GRPO); mean of the group over the standard deviation of the update (needs D = U)."""
    std: Literal["sample", "population"] = "sample"
    """Divisor n - 1 or n."""
    std_eps: float = Field(default=1e-4, ge=0)
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over the update's tokens; mean over sequences of token means; sum over (sequences x constant_length) (Dr.GRPO)."""
    constant_length: int | None = None
    """constant: L; default max_tokens."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio per token (GRPO) or geometric mean per sequence (GSPO)."""
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    dual_clip: float | None = None
    """c > 1: bound of the loss for negative advantages; None = off."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    kl_weight: float = Field(default=0.0, ge=0)
    """beta."""
    reference: str | None = None
    """Reference model (path); None = the starting weights."""
    mask_kl_without_signal: bool = False
    """Leave the KL term out for groups without signal."""
    mask_truncated: bool = False
    """Samples cut at max_tokens do not enter the loss nor its denominator."""
    overlong_buffer: int = Field(default=0, ge=0)
    """DAPO's soft overlong penalty: tokens before max_tokens over which it grows to overlong_penalty; 0 = off."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    gap_warn: float = Field(default=0.1, gt=0)
    """Mean absolute log-prob difference engine to trainer on fresh groups: above it the run warns (nats)."""
    gap_stop: float = Field(default=1.0, gt=0)
    """Above it the run stops."""


class TrainerConfig(Section):
    """Optimizer and micro-batches."""

    learning_rate: float = Field(default=1e-5, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_updates: int = Field(default=5, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm; applied after the scaling by the denominator."""
    micro_batch_tokens: int = Field(default=2048, ge=1)
    """Token budget of a micro-batch, prompts counted once per group; never changes the result."""
    head_chunk: int = Field(default=512, ge=1)
    """Rows of logits that exist at once."""
    nonfinite_limit: int = Field(default=3, ge=1)
    """This many skipped updates in a row stop the run."""


class PoolConfig(Section):
    """Worker processes."""

    rollout_threads: int = Field(default=0, ge=0)
    """Threads per engine process; 0 = all cores for serial (phases take turns), else half of them."""
    trainer_threads: int = Field(default=0, ge=0)
    rollout_cores: tuple[int, ...] = ()
    """Cores to pin engines to (shared out among the instances); empty = no pinning."""
    trainer_cores: tuple[int, ...] = ()
    reward_workers: int = Field(default=1, ge=1)
    start_timeout_s: float = Field(default=180.0, gt=0)
    answer_timeout_s: float = Field(default=600.0, gt=0)
    """A worker that does not answer for this long is lost."""


class EvalConfig(Section):
    """Held-out evaluation, in the loop and alone."""

    task: TaskConfig | None = None
    """None = rows of the training task are never used; no evaluation."""
    problems: int = Field(default=200, ge=1)
    samples: int = Field(default=4, ge=0)
    """Sampled answers per problem at `temperature` (pass@k); 0 = greedy only."""
    temperature: float = Field(default=1.0, gt=0)
    greedy: bool = True
    every: int = Field(default=0, ge=0)
    """Updates between evaluations in the loop; 0 = only when asked."""
    exclude_training: bool = True
    """Leave out problems whose text occurs in the training task; counted."""


class RunConfig(Section):
    """The run itself."""

    dir: str = "runs/run"
    seed: int = 0
    updates: int = Field(default=60, ge=1)
    checkpoint_every: int = Field(default=0, ge=0)
    """Updates between checkpoints; 0 = only at the end."""
    keep_last: int = Field(default=2, ge=1)
    permute_rewards: bool = False
    """Control experiment: rewards are permuted within each group, so that nothing can be learned."""


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    reward: tuple[RewardConfig, ...] = (RewardConfig(),)
    rollout: RolloutConfig = RolloutConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    pool: PoolConfig = PoolConfig()
    eval: EvalConfig = EvalConfig()
