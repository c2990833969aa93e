"""Records of the data plane: prompts, requests, trajectories, groups. Arrays are numpy; units and shapes stand per field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FinishReason = Literal["eos", "stop", "length"]
Purpose = Literal["train", "eval", "draft"]

LOGPROB = "logprob"
"""Column: natural log-probability of the sampled token over the full vocabulary, at the sampling temperature, float32 [n]."""
LOGPROB_KEPT = "logprob_kept"
"""Column: the same over the set kept by top-p / top-k, float32 [n]; present only where a filter was on."""
VERSION = "version"
"""Column: policy version that sampled the token, int32 [n]."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a task, rendered. `index` is its position in the run's data order, unique across epochs."""

    index: int
    row: int
    """Row number in the task (0-based), the same in every epoch."""
    ids: npt.NDArray[np.int32]
    """Prompt token ids, [p], special tokens included, exactly as the engine must read them."""
    text: str
    """The question as the row has it, before system message, suffix and template."""
    gold: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row, passed to the reward by name."""
    task: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """The row's own messages when it is conversational (then functions get messages, not text); None for a text row."""
    where: str = ""
    """Where a user finds the row in its file (`train.jsonl line 4`); "" where task and number say it."""

    @property
    def place(self) -> str:
        """What messages call the row: `row 3 of train [train.jsonl line 4]`."""
        return f"row {self.row} of {self.task or 'the task'}{f' [{self.where}]' if self.where else ''}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy. top_p = 1 and top_k = 0 mean no filter."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    """Extra end-of-sequence ids, beside the model's own."""


@dataclass(frozen=True, slots=True)
class Request:
    """One trajectory to generate. The uniform number of a token depends on (seed, purpose, group, sample, position) only."""

    group: int
    sample: int
    attempt: int
    prompt_ids: npt.NDArray[np.int32]
    sampling: Sampling
    seed: int
    version: int
    purpose: Purpose = "train"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished sample: exactly the sampled ids, never re-tokenised text. `ids` includes the end-of-sequence token if sampled."""

    group: int
    sample: int
    attempt: int
    prompt_ids: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    """Sampled token ids, [n], n >= 0."""
    columns: Mapping[str, npt.NDArray[Any]]
    """Named per-token columns, each [n]: LOGPROB, VERSION, sometimes LOGPROB_KEPT; later MoE routing."""
    finish: FinishReason
    text: str
    """The decoded completion without special tokens and without the stop string."""
    instance: str = ""
    seconds: float = 0.0
    """Wall time from admission to finish on the engine."""
    purpose: Purpose = "train"


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward says of one trajectory. `value` None = not applicable; `parsed` = an answer could be read at all."""

    value: float | None
    reason: str = ""
    parsed: bool | None = None
    extracted: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group that is ready for the trainer: all its trajectories in order of `sample`, with rewards."""

    group: int
    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    """Weighted sum over the reward functions, one per trajectory (shaping included; the overlong penalty is added by the trainer)."""
    outcomes: tuple[float, ...]
    """The raw outcome the filter judges, one per trajectory: 1 = right, 0 = wrong, between where several functions judge and disagree."""
    parts: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Reward of each function before weighting, by its name; None = not applicable."""
    scores: Mapping[str, tuple[Score, ...]] = field(default_factory=dict)
