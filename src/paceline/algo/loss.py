"""The policy loss, composed: importance ratio, clipped surrogate, correction, KL penalty, aggregation. Each a function of its own."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from paceline.algo.correction import Correction, correct, over_sequence
from paceline.algo.kl import KL, kl_estimate, kl_penalty

Aggregation = Literal["token", "sequence", "constant"]
Ratio = Literal["token", "sequence"]


class PolicyLoss(NamedTuple):
    """What `policy_loss` returns; `metrics` are means over loss tokens unless their name says min or max.

    `ratio/*` is learner over behaviour, `clip_ratio/*` the share beyond the clip, whatever a correction makes of the tokens.
    """

    loss: torch.Tensor
    metrics: dict[str, float]


def policy_loss(
    logp: torch.Tensor,
    behaviour_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token",
    constant_length: int | None = None,
    ratio: Ratio = "token",
    correction: Correction | None = None,
    kl: KL | Literal["none"] = "none",
    kl_weight: float = 0.0,
    reference_logp: torch.Tensor | None = None,
    kl_logp: torch.Tensor | None = None,
    kl_sequences: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
    denominator: float | None = None,
) -> PolicyLoss:
    """PPO's clipped surrogate as GRPO, DAPO, Dr.GRPO and GSPO use it, with an optional KL penalty. Lower is better.

    Shapes: padded, logp, behaviour_logp, mask [B, T] and advantages [B] or [B, T]; or packed, logp, behaviour_logp, mask [N],
    `segments` [N] the sequence of each token, advantages [S]. Tokens outside the mask have no influence, whatever they hold.

    - loss per token: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); `dual_clip` c bounds it by -c A where A < 0
    - r: exp(logp - behaviour_logp) per token, or the geometric mean over the sequence (`ratio="sequence"`)
    - `correction` multiplies that loss by a bounded weight without gradient. Where the weight carries the ratio to the behaviour
      policy (truncate, mask), r is exp(logp - logp.detach()): 1, with the gradient of logp, and no clip touches it
    - `kl_weight` x the estimator `kl` against `reference_logp` is added per token (k1 with its score-function gradient, see
      `kl_penalty`); `kl_logp` replaces logp there (where a sampling filter makes them differ), `kl_sequences` [B] or [S] bool
      limits it to some sequences
    - `aggregation`: sum over tokens / tokens; sum of sequence means / sequences; sum over tokens / (sequences x constant_length).
      A sequence counts when it has a token in the mask. `denominator` replaces the divisor: pass the whole update's to split it
      into micro-batches, or 1 for the raw sum.

    ValueError for options without meaning and for shapes that do not fit.
    """
    check_options(clip_low, clip_high, dual_clip, aggregation, constant_length, ratio, kl, kl_weight)
    sequence = sequence_of_tokens(logp, segments)
    keep = mask.bool()
    if not keep.shape == logp.shape == behaviour_logp.shape:
        raise ValueError(f"logp {tuple(logp.shape)}, behaviour_logp {tuple(behaviour_logp.shape)} and mask {tuple(mask.shape)} must agree")
    sequence, policy, behaviour = sequence[keep], logp[keep], behaviour_logp[keep]
    scores = _per_token(advantages, keep, sequence, segments)
    counts = torch.bincount(sequence, minlength=1)
    ratios, weights, corrected = _ratio_and_weight(policy, behaviour, sequence, counts, ratio, correction)
    per_token = weights * clipped_surrogate(ratios, scores.to(policy.dtype), clip_low, clip_high, dual_clip)
    measured = importance_ratio(policy.detach(), behaviour, sequence, counts, ratio)
    metrics = (
        _metrics(per_token.detach(), measured, policy.detach() - behaviour, scores, *_clip(clip_low, clip_high, correction)) | corrected
    )
    if reference_logp is not None and kl != "none":
        learner, reference = policy if kl_logp is None else kl_logp[keep], reference_logp[keep]
        metrics["kl"] = _mean(kl_estimate(learner.detach(), reference, kl))
        if kl_weight > 0:
            per_token = per_token + kl_weight * _penalty(learner, reference, kl, kl_sequences, sequence)
    elif kl_weight > 0:
        raise ValueError(f"kl_weight {kl_weight} needs reference_logp")
    divisor = denominators(counts, constant_length)[aggregation] if denominator is None else denominator
    return PolicyLoss(aggregate(per_token, sequence, counts, aggregation, divisor), metrics)


def sequence_of_tokens(logp: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
    """The sequence each token belongs to, shaped like logp: the row of a padded batch [B, T], or `segments` of a packed one [N]."""
    if segments is None:
        if logp.ndim != 2:
            raise ValueError(f"logp must be [batch, tokens], or packed [tokens] with segments; got shape {tuple(logp.shape)}")
        return torch.arange(logp.shape[0], device=logp.device)[:, None].expand(logp.shape)
    if logp.ndim != 1 or segments.shape != logp.shape:
        raise ValueError(f"packed logp and segments must both be [tokens], got {tuple(logp.shape)} and {tuple(segments.shape)}")
    return segments


def _per_token(advantages: torch.Tensor, keep: torch.Tensor, sequence: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
    """Advantages of the kept tokens [N] from one per sequence, or from one per token of a padded batch."""
    if segments is None and advantages.shape == keep.shape:
        return advantages[keep]
    if advantages.ndim != 1 or (segments is None and len(advantages) != len(keep)) or bool((sequence >= len(advantages)).any()):
        raise ValueError(f"advantages must hold one value per sequence, got shape {tuple(advantages.shape)} for logp {tuple(keep.shape)}")
    return advantages[sequence]


def _ratio_and_weight(
    policy: torch.Tensor, behaviour: torch.Tensor, sequence: torch.Tensor, counts: torch.Tensor, kind: Ratio, correction: Correction | None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Ratio [N] with gradient and its factor [N] without; the quotient to the behaviour policy is in the one or in the other."""
    proximal = policy.detach()
    if correction is None:
        return importance_ratio(policy, behaviour, sequence, counts, kind), torch.ones_like(proximal), {}
    weights, metrics = correct(over_sequence(proximal - behaviour, sequence, counts, correction.level), correction)
    return importance_ratio(policy, proximal if correction.weighs else behaviour, sequence, counts, kind), weights, metrics


def _clip(low: float, high: float, correction: Correction | None) -> tuple[float, float]:
    """How far a ratio may go; anywhere under a correction that carries it, for no clip touches it there."""
    return (low, high) if correction is None or not correction.weighs else (math.inf, math.inf)


def _penalty(learner: torch.Tensor, reference: torch.Tensor, kind: KL, only: torch.Tensor | None, sequence: torch.Tensor) -> torch.Tensor:
    """KL penalty of the kept tokens [N], 0 outside the sequences `only` [S] bool."""
    penalty = kl_penalty(learner, reference, kind)
    return penalty if only is None else penalty * only[sequence]


def importance_ratio(
    logp: torch.Tensor, behaviour_logp: torch.Tensor, sequence: torch.Tensor, counts: torch.Tensor, kind: Ratio
) -> torch.Tensor:
    """Policy over behaviour probability [N]: per token, or exp of the sequence's mean log-ratio on each of its tokens (GSPO)."""
    return over_sequence(logp - behaviour_logp, sequence, counts, "geometric" if kind == "sequence" else "token").exp()


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> torch.Tensor:
    """Loss per token [N] (PPO, equation 7, negated); `dual_clip` c bounds it by -c A for negative A (Ye et al. 2020, equation 5)."""
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def aggregate(per_token: torch.Tensor, sequence: torch.Tensor, counts: torch.Tensor, kind: Aggregation, divisor: float) -> torch.Tensor:
    """Sum over tokens, or over the means of the sequences (`sequence`), by `divisor` (see `denominators`); 0 of nothing, a scalar."""
    if kind == "sequence":
        per_token = per_token / counts[sequence]
    total = per_token.sum()
    return total / divisor if divisor else total


def denominators(counts: torch.Tensor, constant_length: int | None = None) -> dict[Aggregation, int]:
    """What each aggregation divides by, from the loss tokens of each sequence [S]; sequences without any do not count."""
    sequences = int((counts > 0).sum())
    return {"token": int(counts.sum()), "sequence": sequences, "constant": sequences * (constant_length or 0)}


def check_options(
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    aggregation: str,
    constant_length: int | None,
    ratio: str,
    kl: str,
    kl_weight: float,
) -> None:
    """ValueError with the value and the rule for every option of `policy_loss` that has no meaning."""
    rules = (
        (0 <= clip_low <= 1, f"clip_low must be between 0 and 1 (a ratio is never below 0), got {clip_low}"),
        (clip_high >= 0, f"clip_high must be >= 0, got {clip_high}"),
        (dual_clip is None or dual_clip > 1, f"dual_clip must be > 1 (or None), got {dual_clip}"),
        (aggregation in ("token", "sequence", "constant"), f"aggregation must be token, sequence or constant, got {aggregation!r}"),
        (aggregation != "constant" or (constant_length or 0) > 0, f"aggregation constant needs constant_length > 0, got {constant_length}"),
        (ratio in ("token", "sequence"), f"ratio must be token or sequence, got {ratio!r}"),
        (kl in ("none", "k1", "k2", "k3"), f"kl must be none, k1, k2 or k3, got {kl!r}"),
        (kl_weight >= 0, f"kl_weight must be >= 0, got {kl_weight}"),
        (kl_weight == 0 or kl != "none", f"kl_weight {kl_weight} has no effect with kl none"),
    )
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


def _metrics(
    per_token: torch.Tensor,
    ratio: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> dict[str, float]:
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    extremes = (float(ratio.min()), float(ratio.max())) if ratio.numel() else (1.0, 1.0)
    return {
        "policy_loss": _mean(per_token),
        "clip_ratio/low_mean": _mean(low),
        "clip_ratio/high_mean": _mean(high),
        "clip_ratio/region_mean": _mean(low | high),
        "approx_kl": _mean(torch.expm1(log_ratio) - log_ratio),
        "approx_kl_k1": _mean(-log_ratio),
        "ratio/mean": _mean(ratio) if ratio.numel() else 1.0,
        "ratio/min": extremes[0],
        "ratio/max": extremes[1],
    }


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0
