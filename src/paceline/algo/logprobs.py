"""Log-probs of given tokens from hidden states, chunk by chunk: no [tokens, vocabulary] tensor of the batch ever exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.checkpoint import checkpoint

from paceline.algo.sampling import keep_mask

Head = Callable[[torch.Tensor], torch.Tensor]
"""[n, width] -> logits [n, vocabulary] in float32 (float64 for float64); `PackedModel.logits`."""


class Scorer(Protocol):
    """Log-probs straight from hidden states, where a model has something better than logits to offer."""

    def __call__(
        self, hidden: torch.Tensor, ids: torch.Tensor, temperature: float, *, entropy: bool, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """hidden [n, width], ids [n] -> log-probs at the temperature [n], differentiable, and entropies [n] or [0]; None if it has none.

        keep: the backward pass comes next, so logits are better kept for it than made again.
        """


_ROWS = 16
"""Rows of logits that are looked at together where a pass over all of them would need another tensor of their size."""


class TokenScores(NamedTuple):
    """Per token, natural logarithms, float32 (float64 for float64), each [N]."""

    logp: torch.Tensor
    """Over the full vocabulary, at the temperature. Differentiable."""
    kept: torch.Tensor
    """Over the set kept by top-p and top-k, the given token always included. Differentiable; equal to `logp` without a filter."""
    entropy: torch.Tensor
    """Of the full distribution at the temperature, nats, without gradient; empty [0] unless asked for."""


def token_logprobs(
    hidden: torch.Tensor,
    ids: torch.Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    chunk: int = 512,
    entropy: bool = False,
    scorer: Scorer | None = None,
) -> TokenScores:
    """Score `ids` [N] by the distributions that `head` makes of `hidden` [N, width].

    Logits of at most `chunk` rows exist at a time; the backward pass makes all but the last chunk's again. Values do not depend on the
    chunk beyond the rounding of a matrix product of another height. `scorer` takes the place of `head` where there is no filter.
    ValueError for a temperature or a chunk that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"log-probs need a temperature > 0, got {temperature}")
    if chunk < 1:
        raise ValueError(f"head_chunk must be >= 1, got {chunk}")

    def chunk_of(rows: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits live in here only."""
        return _score(head(rows), tokens, temperature, top_p, top_k, entropy)

    def scored(rows: torch.Tensor, tokens: torch.Tensor, keep: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A chunk, whose logits stay for the backward pass if `keep`."""
        found = scorer(rows, tokens, temperature, entropy=entropy, keep=keep) if scorer and top_p == 1 and top_k == 0 else None
        if found is not None:
            return found[0], found[0], found[1]
        if keep:
            return chunk_of(rows, tokens)
        again: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = checkpoint(
            chunk_of, rows, tokens, use_reentrant=False, preserve_rng_state=False
        )
        return again

    pieces = list(zip(torch.split(hidden, chunk), torch.split(ids, chunk), strict=True))
    # The backward pass begins with the last chunk: keeping its logits saves making them again and costs no more at once.
    last = len(pieces) - 1 if torch.is_grad_enabled() else 0
    parts = [scored(*piece, index >= last) for index, piece in enumerate(pieces)]
    logp, kept, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenScores(logp, kept, entropies)


def _score(
    logits: torch.Tensor, ids: torch.Tensor, temperature: float, top_p: float, top_k: int, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scaled = logits if temperature == 1 else logits / temperature
    keep = None
    if top_p < 1 or top_k > 0:
        # The same rule as the engine's, so that on-policy the sets agree; the given token stays in when an update moved it out.
        keep = _kept(scaled.detach(), top_p, top_k).scatter(-1, ids[:, None], True)
    logp, kept, spread = _Normalised.apply(scaled, ids, keep, entropy)  # type: ignore[no-untyped-call]
    return logp, kept, spread


class _Normalised(torch.autograd.Function):
    """z_id - logsumexp(z), over all tokens and over the kept ones, and the entropy of all; made of softmax, one fused pass."""

    @staticmethod
    def forward(
        ctx: Any, scaled: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor | None, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """scaled [n, vocabulary], ids [n], keep bool like scaled or None for no filter -> [n], [n] and [n] or [0]."""
        chosen = scaled.gather(-1, ids[:, None])[:, 0]
        weights, total = _softmax(scaled)
        kept_weights, kept_total = (None, total) if keep is None else _softmax(scaled.masked_fill(~keep, -torch.inf))
        spread = _entropy(scaled, weights, total) if entropy else scaled.new_empty(0)
        ctx.save_for_backward(weights, kept_weights, ids)
        ctx.mark_non_differentiable(spread)
        return chosen - total, chosen - kept_total, spread

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Of each log-prob: one-hot minus softmax, over its own set."""
        weights, kept_weights, ids = ctx.saved_tensors
        full, kept, _ = grads
        # In place: nobody else holds these probabilities, and a second tensor of this size would double what a chunk takes.
        if kept_weights is None:
            out = weights.mul_(-(full + kept)[:, None])
        else:
            out = weights.mul_(-full[:, None]).addcmul_(kept_weights, kept[:, None], value=-1)
        return out.scatter_add_(-1, ids[:, None], (full + kept)[:, None]), None, None, None


def _softmax(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [n, vocabulary] and logsumexp [n] of rows: the largest probability is exp(largest - logsumexp)."""
    weights = scaled.softmax(-1)
    return weights, scaled.amax(-1) - weights.amax(-1).log()


def _kept(scaled: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    rows, device = scaled.shape[0], scaled.device
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
    # float64, as the sampler has it: 0.9 rounded to float32 would keep another set where a token stands at the edge.
    mass = torch.full((rows,), top_p, dtype=torch.float64, device=device)
    return keep_mask(weights, mass, torch.full((rows,), top_k, device=device))


def _entropy(scaled: torch.Tensor, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """-sum p log p of rows [n, vocabulary] with logsumexp [n] -> [n]."""
    # 0 x -inf is 0 here. A few rows at a time stay in the processor's cache, and no further tensor of this size is needed.
    least = torch.finfo(scaled.dtype).min
    pieces = zip(torch.split(scaled, _ROWS), torch.split(weights, _ROWS), strict=True)
    return total - torch.cat([(rows.clamp(min=least) * shares).sum(-1) for rows, shares in pieces])
