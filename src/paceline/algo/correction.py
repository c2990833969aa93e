"""Importance correction: weights of the learner's policy against the one that sampled, bounded. docs/design/losses.md has the derivation.

With p the learner's probability at consumption and b the recorded one, the log-weight of a token is log p - log b; of a sequence their
sum; geometric: their mean. One pass per group: the learner at consumption is the learner of the gradient, so p is `logp.detach()`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["truncate", "mask", "reject"]
Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True)
class Correction:
    """How weights are bounded. ValueError for an unknown word, and for bounds that leave a weight of 1 outside."""

    kind: Kind
    """`truncate`: min(w, high), TIS. `mask`: w from low to high, else 0, IcePop. `reject`: 1 from low to high, else 0."""
    level: Level = "token"
    """`token`: each its own; `sequence`: their product, `geometric`: their geometric mean, on every token of the sequence."""
    low: float = 0.5
    """truncate has no lower bound and does not look at it."""
    high: float = 2.0

    def __post_init__(self) -> None:
        if self.kind not in ("truncate", "mask", "reject"):
            raise ValueError(f"correction must be truncate, mask or reject, got {self.kind!r}")
        if self.level not in ("token", "sequence", "geometric"):
            raise ValueError(f"correction_level must be token, sequence or geometric, got {self.level!r}")
        if not self.high >= 1:
            raise ValueError(f"correction_high must be >= 1, the weight of a token on policy, got {self.high}")
        if self.kind != "truncate" and not 0 <= self.low < 1 < self.high:
            raise ValueError(f"{self.kind} needs 0 <= correction_low < 1 < correction_high, got {self.low} and {self.high}")

    @property
    def weighs(self) -> bool:
        """Whether the weight carries the ratio to the behaviour policy, so that the surrogate must not divide by it again."""
        return self.kind != "reject"


def over_sequence(log_ratio: torch.Tensor, sequence: torch.Tensor, counts: torch.Tensor, level: Level) -> torch.Tensor:
    """Log-ratios [N] of tokens as they are, or their sum or mean over the sequence, on each of its tokens.

    `sequence` [N] names the sequence of a token, `counts` [S] holds the tokens of each.
    """
    if level == "token":
        return log_ratio
    sums = torch.zeros(counts.shape, dtype=log_ratio.dtype, device=log_ratio.device).index_add(0, sequence, log_ratio)
    return (sums if level == "sequence" else sums / counts.clamp(min=1))[sequence]


def correct(log_weight: torch.Tensor, correction: Correction) -> tuple[torch.Tensor, dict[str, float]]:
    """The factor of each token's surrogate loss [N], from log-weights [N] without gradient, and what it did.

    Bounds are compared as logarithms, so a product over a long sequence cannot overflow. NaN stays NaN. Metrics are means over the
    tokens; `log_weight` is before the bounds, nats, `weight` the factor itself.
    """
    high = log_weight > math.log(correction.high)
    if correction.kind == "truncate":
        outside = high
        factor = log_weight.clamp(max=math.log(correction.high)).exp()
    else:
        outside = high | (log_weight < (math.log(correction.low) if correction.low > 0 else -math.inf))
        inside = log_weight.exp() if correction.weighs else torch.ones_like(log_weight)
        factor = inside.masked_fill(outside, 0.0)
    share = "correction/truncated" if correction.kind == "truncate" else "correction/masked"
    if not log_weight.numel():
        return factor, {}
    return factor, {
        share: float(outside.double().mean()),
        "correction/log_weight/mean": float(log_weight.double().mean()),
        "correction/log_weight/min": float(log_weight.min()),
        "correction/log_weight/max": float(log_weight.max()),
        "correction/weight/mean": float(factor.double().mean()),
        "correction/weight_square/mean": float(factor.double().square().mean()),
    }


def effective_share(mean: float, mean_square: float) -> float:
    """Effective sample size over sample size, (sum w)^2 / (n sum w^2) (Kish 1965): 1 for equal weights, 0 where all are 0."""
    return mean * mean / mean_square if mean_square > 0 else 0.0
