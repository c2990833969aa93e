"""Per-token estimators of KL(policy || reference) from the log-probs of sampled tokens (Schulman, "Approximating KL divergence")."""

from __future__ import annotations

from typing import Literal

import torch

KL = Literal["k1", "k2", "k3"]


def kl_estimate(logp: torch.Tensor, reference_logp: torch.Tensor, kind: KL) -> torch.Tensor:
    """Elementwise, same shape as the inputs. With d = logp - reference_logp, tokens sampled from the policy:

    | kind | value | expectation | gradient if differentiated as it stands |
    |---|---|---|---|
    | k1 | d | KL(policy, reference), may be negative per token | 0 in expectation: useless as a loss |
    | k2 | d^2 / 2 | biased | that of KL(policy, reference) |
    | k3 | exp(-d) - 1 + d | KL(policy, reference), never negative | that of KL(reference, policy) |

    ValueError for another kind.
    """
    difference = logp - reference_logp
    match kind:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return torch.expm1(-difference) + difference
    raise ValueError(f"kl must be k1, k2 or k3, got {kind!r}")


def kl_penalty(logp: torch.Tensor, reference_logp: torch.Tensor, kind: KL) -> torch.Tensor:
    """The estimator as a loss term. k2 and k3 as they stand; k1 keeps its value but takes the gradient d * grad(logp).

    That is the score-function gradient of KL(policy, reference): unbiased, and equal to k2's. (Differentiating k1 directly
    would give pure noise around zero.)
    """
    estimate = kl_estimate(logp, reference_logp, kind)
    if kind != "k1":
        return estimate
    weight = estimate.detach()
    return weight + weight * (logp - logp.detach())
