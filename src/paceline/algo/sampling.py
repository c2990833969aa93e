"""Drawing tokens: temperature, top-k, top-p, then the inverse of the cumulative distribution at a given uniform number.

A row's token and log-probs depend on that row alone. Everything runs in the type of the logits (float32, or float64 for float64
models). Sums run over fixed blocks of the vocabulary, so their rounding depends on neither thread count nor number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from paceline.types.errors import ConfigError
from paceline.types.records import Sampling

BLOCK = 256
"""Tokens of the vocabulary per block of the cumulative distribution."""
_CANDIDATES = 1024
"""Largest weights looked at before a top-p row needs the whole vocabulary sorted."""


def check(sampling: Sampling) -> None:
    """Raise ConfigError naming the field, its value and its range if tokens cannot be drawn with `sampling`."""
    rules = (
        (sampling.max_tokens >= 1, "max_tokens", sampling.max_tokens, "at least 1"),
        (math.isfinite(sampling.temperature) and sampling.temperature >= 0, "temperature", sampling.temperature, "finite and at least 0"),
        (0 < sampling.top_p <= 1, "top_p", sampling.top_p, "in (0, 1]"),
        (sampling.top_k >= 0, "top_k", sampling.top_k, "at least 0 (0 = no filter)"),
        (all(sampling.stop), "stop", sampling.stop, "without empty strings"),
    )
    for holds, field, value, rule in rules:
        if not holds:
            raise ConfigError(f"sampling.{field} = {value!r}: must be {rule}")


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of N rows as tensors, each [N]."""

    temperature: torch.Tensor
    """float64; 0 = greedy."""
    top_p: torch.Tensor
    """float64."""
    top_k: torch.Tensor
    """int64; 0 = no filter."""

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> Knobs:
        """One entry per row, in order."""
        return cls(
            torch.tensor([r.temperature for r in rows], dtype=torch.float64),
            torch.tensor([r.top_p for r in rows], dtype=torch.float64),
            torch.tensor([r.top_k for r in rows], dtype=torch.int64),
        )

    def to(self, device: torch.device) -> Knobs:
        """The same on another device."""
        return Knobs(self.temperature.to(device), self.top_p.to(device), self.top_k.to(device))

    def filtered(self) -> torch.Tensor:
        """Rows that a filter cuts, bool [N]. Greedy rows are never cut: their token is the same with any filter."""
        return ((self.top_p < 1) | (self.top_k > 0)) & (self.temperature > 0)


@dataclass(frozen=True, slots=True)
class Draw:
    """What `draw` returns for N rows."""

    ids: torch.Tensor
    """Sampled tokens, int64 [N]."""
    logprob: torch.Tensor
    """Natural log-prob over the full vocabulary at the row's temperature (greedy rows: at temperature 1), dtype of the logits [N]."""
    logprob_kept: torch.Tensor
    """The same over the set kept by the filters; equal to `logprob` where none is on."""
    finite: torch.Tensor
    """bool [N]: False where the logits held NaN, +inf or nothing but -inf; the row's other values then mean nothing."""


def scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """logits [N, V] / temperature [N]; rows of temperature 0 stay as they are. Returns `logits` itself if every divisor is 1."""
    divisor = torch.where(temperature > 0, temperature, 1.0).to(logits.dtype)
    return logits if bool((divisor == 1).all()) else logits / divisor[:, None]


def draw(logits: torch.Tensor, knobs: Knobs, numbers: torch.Tensor) -> Draw:
    """Draw one token per row of logits [N, V]; numbers [N] are uniforms in [0, 1). Never draws a token of probability zero.

    Greedy rows take the largest logit, ties the lowest id. Filters work as `keep_mask` says. Log-probs belong to softmax(z / T),
    not to softmax(z) / T. Settings and numbers may lie on another device than the logits.
    """
    knobs = knobs.to(logits.device)
    z = scaled(logits, knobs.temperature)
    weights = z.softmax(dim=-1)
    if missing := -z.shape[-1] % BLOCK:
        weights = F.pad(weights, (0, missing))
    sums = _block_sums(weights)
    mass = sums.sum(dim=-1)
    """Of all tokens: 1 but for what a float32 softmax over a large vocabulary loses, which is the same for every token of a row."""
    finite, kept_mass = mass.isfinite(), mass.clone()
    cut = knobs.filtered().nonzero()[:, 0]
    if cut.numel():
        mine = weights[cut]
        mine *= keep_mask(mine, knobs.top_p[cut], knobs.top_k[cut])
        weights[cut], sums[cut] = mine, _block_sums(mine)
        kept_mass[cut] = sums[cut].sum(dim=-1)
    ids = _invert(weights, sums, numbers.to(z))
    greedy = (knobs.temperature == 0).nonzero()[:, 0]
    if greedy.numel():
        ids[greedy] = z[greedy].argmax(dim=-1)
    weight = weights.gather(1, ids[:, None])[:, 0].log()
    return Draw(ids, weight - mass.log(), weight - kept_mass.log(), finite)


def keep_mask(weights: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Tokens that top-k, then top-p keep, bool like weights [N, V] (unnormalised probabilities >= 0; top_p, top_k [N]).

    Tokens are ordered by weight, equal weights by ascending id. Top-k keeps the first k; top-p keeps the shortest prefix of those whose
    mass reaches top_p of theirs, at least one token. Only rows whose prefix is long pay for sorting the whole vocabulary.
    """
    vocabulary = weights.shape[-1]
    width = min(vocabulary, max(_CANDIDATES, int(top_k.max())))
    values = weights.topk(width, dim=-1).values
    counts = _prefix(values, weights, top_p, top_k)
    long = (counts > width).nonzero()[:, 0]
    threshold = values.gather(1, counts.clamp(max=width)[:, None] - 1)
    if long.numel():
        ordered = weights[long].sort(dim=-1, descending=True).values
        counts[long] = _prefix(ordered, weights[long], top_p[long], top_k[long]).clamp(max=vocabulary)
        threshold[long] = ordered.gather(1, counts[long][:, None] - 1)
    above, ties = weights > threshold, weights == threshold
    wanted = counts - above.sum(dim=-1)
    if bool((ties.sum(dim=-1) > wanted).any()):
        ties &= ties.cumsum(dim=-1) <= wanted[:, None]
    return above | ties


def _prefix(values: torch.Tensor, weights: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Length of the kept prefix [N] given the largest `values` [N, M], descending; above M where M values do not decide it.

    M, which depends on the rows' neighbours, changes no rounding.
    """
    unlimited = torch.full_like(top_k, weights.shape[-1])
    limit = torch.where(top_k > 0, torch.minimum(top_k, unlimited), unlimited)
    inside = torch.arange(values.shape[-1], device=limit.device)[None] < limit[:, None]
    mass = torch.where(inside, values, 0).cumsum(dim=-1)
    whole = torch.where(limit < weights.shape[-1], mass[:, -1], _mass(weights))
    reached = mass >= (top_p.to(weights.dtype) * whole)[:, None]
    counts = torch.where(top_p < 1, (~reached).sum(dim=-1) + 1, limit)
    return torch.minimum(counts, limit)


def _mass(weights: torch.Tensor) -> torch.Tensor:
    """Sum of each row [N, V] -> [N]. Blocks first: threads share the sum over a lone row, and give other roundings than for many."""
    blocks = weights.shape[-1] // BLOCK
    head, rest = weights[:, : blocks * BLOCK], weights[:, blocks * BLOCK :]
    return head.reshape(len(weights), blocks, BLOCK).sum(dim=-1).sum(dim=-1) + rest.sum(dim=-1)


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """[N, blocks x BLOCK] -> [N, blocks]."""
    return weights.view(len(weights), -1, BLOCK).sum(dim=-1)


def _invert(weights: torch.Tensor, sums: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """First token whose cumulative weight exceeds number x total, int64 [N]; the block is found first, then the place in it."""
    cumulative = sums.cumsum(dim=-1)
    target = numbers * cumulative[:, -1]
    # Numbers end at 1 - 2^-24, so the target stays below the total and the clamp matters for rows that are not finite only.
    block = (cumulative <= target[:, None]).sum(dim=-1).clamp(max=sums.shape[-1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0)
    inner = weights.view(len(weights), -1, BLOCK)[torch.arange(len(block), device=block.device), block].cumsum(dim=-1)
    place = (inner <= (target - before)[:, None]).sum(dim=-1)
    # The block's own sum may round below its step in the cumulative sum: stop at the last token that adds weight.
    last = (inner < inner[:, -1:]).sum(dim=-1)
    return block * BLOCK + torch.minimum(place, last)
