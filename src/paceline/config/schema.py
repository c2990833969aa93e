"""The tree of configuration models. Unknown keys and wrong types are refused; every field states unit, range and default.

Cross-field rules (combinations without effect or meaning) stand in `config.checks`, loading and overrides in `config.load`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.config.emulated import EmulatedConfig
from paceline.config.section import Decay, Ids, Section, Table, Texts
from paceline.config.task import TaskConfig as TaskConfig
from paceline.config.tracking import TrackingConfig

DEFAULT_STALENESS = 1
"""S of streaming when none is given: the least that lets generation and training overlap."""
DEFAULT_WINDOW = 2
"""W of multiversion when none is given: the least that lets versions overlap."""


class ModelConfig(Section):
    """Which policy is trained."""

    path: str = "smollm2-135m"
    """Local Hugging Face directory, a hub id, or the name of a packaged model (`smollm2-135m`)."""
    dtype: Literal["float32", "bfloat16", "float64"] = "bfloat16"
    """Compute dtype of engine and trainer; master weights are float32 (float64 for float64)."""
    implementation: Literal["auto", "slim", "transformers"] = "auto"
    """`slim` = paceline's decoder for the Llama / Qwen family, `transformers` = the model's own class, `auto` = slim where it fits."""


class RewardConfig(Section):
    """One reward function; several are summed with their weights."""

    kind: Literal["math", "numeric", "exact", "task", "function"] = "numeric"
    """`math` = equal as mathematics, `numeric` = one number, exactly, `exact` = the same text, `task` = the task's own scorer
    (reasoning-gym), `function` = yours."""
    weight: float = 1.0
    """Factor in the sum of rewards; 0 = computed and logged only."""
    name: str | None = None
    """Name in metrics; default: the kind, or the function's name."""
    function: str | None = None
    """function: `module:function` or `path/to/file.py:function`."""
    signature: Literal["trl", "verl", "openrlhf", "areal"] | None = None
    """function: whose calling convention it follows; default `trl`."""
    arguments: Table = Field(default_factory=dict)
    """`marker`: text before the answer; given, it is required, else no credit. math: `marker`, `percent` (`loose`, `strict`). numeric:
    `marker`, `which` (`last`, `first`), `percent`. exact: `marker`. task: `answer` (`tag`, `number`, `text`), `marker`. function: keyword
    arguments of yours."""
    outcome: bool = True
    """Whether this function tells right from wrong, for the group filter and the evaluation: a value of at least 1 is right, less is
    wrong. Set it to false for shaping. `schedule.no_signal` says what becomes of a group whose outcomes are equal; the reward counts in
    the advantage either way."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Deadline, seconds: of one answer for `math`, where it counts 0 afterwards; of the calls for one group for the others, where it
    is an error."""


class RolloutConfig(Section):
    """The engine and how it samples."""

    engine: Literal["torch", "emulated"] = "torch"
    """`torch` = decodes in its process; `emulated` = computes when trajectories would end, with a trainer alike: load tests of the
    runtime without a model, see `[emulated]`."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """What decodes bfloat16 and float32 on a CPU: `native` = kernels that are compiled at the first start, which needs a C++ compiler;
    `torch` = its operators; `auto` = native where it can be had."""
    instances: int = Field(default=1, ge=1)
    """Engine processes."""
    slots: int = Field(default=64, ge=1)
    """Trajectories decoded together per instance."""
    kv_tokens: int = Field(default=0, ge=0)
    """KV capacity per instance in tokens; 0 = enough for all slots at full length."""
    versions_held: int = Field(default=1, ge=1)
    """multiversion: policy versions that one instance serves side by side, each with a copy of the weights; at most W."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    """Longest prompt, tokens."""
    max_tokens: int = Field(default=256, ge=1)
    """Sampled tokens per trajectory, at most."""
    over_limit: Literal["refuse", "filter"] = "refuse"
    """Prompts longer than max_prompt_tokens: refuse the task, or leave them out and count them."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; training needs more than 0."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus filter: the smallest set of tokens with this probability; 1 = no filter."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 = no filter."""
    train_on_filtered: bool = False
    """top_p < 1 or top_k > 0 make behaviour and learner differ; training under a filter must be asked for by name."""
    stop: Texts = ()
    """Texts that end a trajectory."""
    stop_ids: Ids = ()
    """End-of-sequence ids beside the model's own."""


class ScheduleConfig(Section):
    """When what is generated and trained. U, R, D, F, S, W and I are counts of groups, updates or versions."""

    preset: Literal["serial", "pipelined", "streaming", "multiversion"] = "serial"
    """`serial` = generate a round, train it; `pipelined` = train groups of the round as they complete; `streaming` = generate on while
    weights change, staleness at most S; `multiversion` = up to W versions generate side by side, each group on one."""
    group_size: int = Field(default=8, ge=1)
    """Samples per prompt."""
    groups_per_update: int = Field(default=8, ge=1)
    """U: groups (prompts, not samples) that one optimizer step consumes."""
    groups_per_round: int | None = Field(default=None, ge=1)
    """R, serial and pipelined: groups generated under one version; default U."""
    groups_per_dispatch: int | None = Field(default=None, ge=1)
    """D <= U: groups given to the trainer at once; default U, for pipelined with R = U an eighth of it (or the next smaller divisor)."""
    updates_per_publish: int | None = Field(default=None, ge=1)
    """streaming, multiversion: default 1; serial and pipelined derive it from R / U."""
    start_when: Literal["dispatch", "all"] | None = None
    """When training starts: D trainable groups, or all of a publish period; default `all` for serial, else `dispatch`."""
    frontier: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """F, pipelined: at most F groups' worth of trajectories in flight; unset = fifo."""
    refill: Literal["group", "sample"] = "sample"
    """pipelined with a frontier: what frees a place for the next group, a complete group or a finished sample."""
    staleness: int | None = Field(default=None, ge=0)
    """S, streaming: largest staleness at consumption, versions; default 1."""
    overstale: Literal["pace", "retry", "drop"] = "pace"
    """streaming: keep within S by pacing (nothing is lost), or let groups get too old, and drop them or retry them (once, then paced); both
    counted."""
    at_publish: Literal["keep", "recompute", "drain"] = "keep"
    """streaming, unfinished work at a publish: keep its KV cache, rebuild it, or finish it first."""
    buffer_groups: int | None = Field(default=None, ge=1)
    """streaming: capacity of the buffer of trainable groups, >= U; default all that the bound admits."""
    granularity: Literal["sample", "group"] = "sample"
    """streaming: whether single samples or whole groups are submitted when a slot is free."""
    version_window: int | None = Field(default=None, ge=1)
    """W, multiversion: versions alive at the same time; default 2."""
    in_flight_groups: int | None = Field(default=None, ge=1)
    """I, streaming and multiversion: groups requested and not consumed, at most; default all that the bound admits."""
    rebalance_s: float = Field(default=30.0, ge=0)
    """multiversion: seconds after which instances are shared out anew among the live versions, beside every publish and whenever one runs
    empty; 0 = only then."""
    high_kv_use: float = Field(default=0.9, gt=0, le=1)
    """multiversion: share of its KV memory above which work is moved away from an instance."""
    no_signal: Literal["keep", "drop", "refill"] = "keep"
    """A group of equal outcomes, all right or all wrong: `keep` trains on it as on any other (its rewards decide: partial credit and
    shaping teach, equal rewards give zero advantages), `drop` leaves it out, `refill` takes another prompt."""
    refill_limit: int = Field(default=3, ge=0)
    """serial and pipelined with no_signal = refill: replacements per place in the round, at most."""
    empty_limit: int = Field(default=10, ge=0)
    """This many rounds (or publish periods) in a row without a group to train end the run, after a checkpoint; 0 = never."""
    attempts: int = Field(default=3, ge=1)
    """Attempts per trajectory before on_failure decides."""
    on_failure: Literal["drop_sample", "drop_group", "stop"] = "stop"
    """A trajectory that failed for good: train the survivors (at least two), give the group up, or stop the run."""
    in_order: bool = False
    """serial, pipelined: consume groups in order of submission."""


class AlgorithmConfig(Section):
    """The loss: advantage + ratio + clip + correction + aggregation + KL."""

    advantage: Literal["group_std", "group_mean", "batch_std"] = "group_std"
    """GRPO; mean only (Dr.GRPO); mean of the group over the standard deviation of the update (needs D = U)."""
    std: Literal["sample", "population"] = "sample"
    """Divisor n - 1 or n."""
    std_eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over the update's tokens; mean over sequences of token means; sum over (sequences x constant_length) (Dr.GRPO)."""
    constant_length: int | None = Field(default=None, ge=1)
    """constant: L; default max_tokens."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio per token (GRPO) or geometric mean per sequence (GSPO)."""
    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low; at most 1."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = None
    """c > 1: bound of the loss for negative advantages; unset = off."""
    correction: Literal["none", "truncate", "mask", "reject"] = "none"
    """Weight of the learner's probability at consumption over the recorded one. `none` = the clipped ratio alone; `truncate` = weight up
    to correction_high, no clip (TIS); `mask` = weight within the bounds, else 0, no clip (IcePop); `reject` = the clipped ratio within
    the bounds, else 0."""
    correction_level: Literal["token", "sequence", "geometric"] = "token"
    """What the weight is of: each token, the sequence (product over its tokens), or their geometric mean."""
    correction_low: float = Field(default=0.5, ge=0)
    """mask, reject: smallest weight that trains; 0 = no lower bound."""
    correction_high: float = Field(default=2.0, ge=1)
    """truncate: largest weight; mask, reject: largest weight that trains."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator of the KL term to the reference model."""
    kl_weight: float = Field(default=0.0, ge=0)
    """beta."""
    reference: str | None = None
    """Reference model (path); unset = the starting weights."""
    mask_kl_without_signal: bool = False
    """Leave the KL term out for groups of equal rewards, whose advantages are all zero."""
    mask_truncated: bool = False
    """Samples cut at max_tokens do not enter the loss nor its denominator."""
    overlong_buffer: int = Field(default=0, ge=0)
    """DAPO's soft overlong penalty: tokens before max_tokens over which it grows to overlong_penalty; 0 = off."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Largest soft overlong penalty, subtracted from the reward."""
    gap_warn: float = Field(default=0.1, gt=0)
    """Mean absolute log-prob difference engine to trainer on fresh groups: above it the run warns (nats)."""
    gap_stop: float = Field(default=1.0, gt=0)
    """Above it the run stops."""


class TrainerConfig(Section):
    """Optimizer and micro-batches."""

    learning_rate: float = Field(default=1e-5, ge=0)
    """Peak learning rate of AdamW; 0 is allowed (a check of the numerics)."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.95)
    """Decay of AdamW's two moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, per unit of learning rate."""
    warmup_updates: int = Field(default=5, ge=0)
    """Updates over which the learning rate rises linearly."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall towards 0, which the update after the last would have."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm; applied after the scaling by the denominator."""
    micro_batch_tokens: int = Field(default=2048, ge=1)
    """Token budget of a micro-batch, prompts counted once per group; an update is cut into as few of them as it allows, as equal as can be.
    Changes the result by rounding only. With run.deterministic no micro-batch spans groups."""
    checkpoint_activations: bool = False
    """Keep each layer's input only, and compute the layer again in the backward pass: less memory (`--dry-run` says how much), more time,
    the same bits. Slim decoder only."""
    compile: bool = False
    """Run what lies between attentions through torch.compile: needs a C++ compiler on a CPU and a minute at the start; changes the result
    by rounding. Slim decoder only."""
    head_chunk: int = Field(default=1024, ge=1)
    """Rows of logits that exist at once. A micro-batch with no more sampled tokens than this computes its logits once, not twice."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """What computes norms, rotations, gates, attention, log-probs and, in bfloat16, products on a CPU, forward and backward: as
    `rollout.kernels`. Changes the result by rounding."""
    nonfinite_limit: int = Field(default=3, ge=1)
    """This many skipped updates in a row stop the run."""


class PoolConfig(Section):
    """Worker processes."""

    rollout_threads: int = Field(default=0, ge=0)
    """Threads per engine process; 0 = all cores for serial (phases take turns), else half of them, shared out among the instances; half
    for run.deterministic."""
    trainer_threads: int = Field(default=0, ge=0)
    """Threads of the trainer; 0 = all cores for serial, else half of them; half for run.deterministic."""
    rollout_devices: Texts = ("cpu",)
    """Torch devices of the engines (`cpu`, `cuda`, `cuda:1`), shared out among the instances in turn."""
    trainer_device: str = "cpu"
    """Torch device of the trainer and the reference model."""
    rollout_cores: Ids = ()
    """Cores to pin engines to (shared out among the instances); empty = no pinning."""
    trainer_cores: Ids = ()
    """Cores to pin the trainer to; empty = no pinning."""
    reward_workers: int = Field(default=1, ge=1)
    """Processes that compute rewards."""
    verifiers: int = Field(default=1, ge=1, le=64)
    """Processes in each reward worker that compare answers side by side, for rewards of kind `math`."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """A worker that is not ready after this many seconds is lost."""
    answer_timeout_s: float = Field(default=600.0, gt=0)
    """A worker that does not answer for this many seconds is lost."""
    train_timeout_s: float = Field(default=7200.0, gt=0)
    """The same for the trainer while it computes a dispatch or a step: it answers when all groups of the dispatch are done."""
    trainer_restarts: int = Field(default=3, ge=0)
    """Lost trainers in a row, without a new checkpoint between them, after which the run still goes on by itself: from its last
    checkpoint, or from the beginning. 0 = a lost trainer ends the run. Other workers are replaced where they stood."""


class EvalConfig(Section):
    """Held-out evaluation, in the loop and alone."""

    task: TaskConfig | None = None
    """Held-out task, with the keys of `task`; unset = no evaluation."""
    problems: int = Field(default=200, ge=1)
    """Problems scored, at most."""
    samples: int = Field(default=4, ge=0)
    """Sampled answers per problem at `temperature` (pass@k); 0 = greedy only."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of the sampled answers."""
    greedy: bool = True
    """Also score one greedy answer per problem."""
    every: int = Field(default=0, ge=0)
    """Updates between evaluations in the loop; 0 = only when asked."""
    hold_out: bool = True
    """Leave the rows whose question is one of these problems out of the training task; counted."""


class RunConfig(Section):
    """The run itself."""

    dir: str = Field(default="runs/run", min_length=1)
    """Run directory, relative to the working directory."""
    seed: int = 0
    """Seed of sampling and of the data order."""
    updates: int = Field(default=60, ge=1)
    """Optimizer steps, at most."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the prompts, at most: what is left at their end trains as one short update. Unset = as many as the updates need."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Updates between checkpoints; 0 = only at the end."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints kept."""
    deterministic: bool = False
    """Repeat bit for bit: two runs, a resumed one, serial and pipelined with the same U (streaming, multiversion: the engine only). Implies
    schedule.in_order. It costs little with compiled kernels (`rollout.kernels`), more without, and holds for one number of threads,
    instruction set and build of torch; a resume checks them."""
    permute_rewards: bool = False
    """Control experiment: rewards are permuted within each group, so that nothing can be learned."""


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    """The run itself."""
    model: ModelConfig = ModelConfig()
    """The policy."""
    task: TaskConfig = TaskConfig()
    """The training task."""
    mix: Annotated[tuple[TaskConfig, ...], Field(strict=False)] = ()
    """Further training tasks, `[[mix]]`, with the keys of `task`: prompts of all come mixed by `weight`."""
    reward: Annotated[tuple[RewardConfig, ...], Field(strict=False)] = (RewardConfig(),)
    """Reward functions, `[[reward]]`."""
    rollout: RolloutConfig = RolloutConfig()
    """Engine and sampling."""
    schedule: ScheduleConfig = ScheduleConfig()
    """When what happens."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The loss."""
    trainer: TrainerConfig = TrainerConfig()
    """The optimizer."""
    pool: PoolConfig = PoolConfig()
    """Worker processes."""
    emulated: EmulatedConfig = EmulatedConfig()
    """What the emulated engine pretends."""
    eval: EvalConfig = EvalConfig()
    """Held-out evaluation."""
    tracking: TrackingConfig = TrackingConfig()
    """Services that metrics are sent to."""
