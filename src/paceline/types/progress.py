"""What trainers and weight transports report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One optimizer step. `applied` is False when a non-finite loss or gradient made the trainer skip it."""

    update: int
    """1-based count of updates issued, this one included."""
    applied: bool
    groups: tuple[int, ...]
    sequences: int
    tokens: int
    """Loss tokens, i.e. sampled tokens that the mask keeps."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Named values, e.g. loss, grad_norm, learning_rate, entropy, kl, clip_ratio/low_mean, logprob_gap/mean, logprob_gap/max."""
    culprits: tuple[tuple[int, int], ...] = ()
    """(group, sample) of the trajectories that made a value non-finite, when `applied` is False."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What an engine computes with after loading weights: checksum of what arrived and log-probs through its serving path."""

    version: int
    fingerprint: str
    logprobs: tuple[float, ...]
    """Log-prob of each fixed probe token given those before it, temperature 1, float32, [n - 1]."""
    seconds: float = 0.0
    rounding: float = 0.0
    """Mean absolute difference of `logprobs` from those of another order of sums, nats; 0 where the dtype is wide, and from engines."""
    by: str = ""
    """What computed the prompt: names kernels that give the same bits wherever they run; empty where bits depend on more."""
    prefilled: int = 0
    """Log-probs at the front that come of the prompt, where an engine decodes the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is doing, for whoever watches it; sent when the phase changes, an update is done, or there is something to say."""

    update: int
    """Updates done."""
    total: int
    """Updates of the whole run."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The row of the update that was just done, or `eval/...` values of an evaluation; empty otherwise."""
    phase: str = ""
    """What happens now, in a word: rollout, train, publish, evaluate, checkpoint, stop."""
    message: str = ""
    """A warning or notice, one line."""
