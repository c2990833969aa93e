"""Attention for training: forward and backward over (a shared prompt, each sample's own rows), by blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from paceline.models.packed import Attend
from paceline.trainers.packing import Block


@dataclass(frozen=True, slots=True)
class _Samples:
    """Index tensors that pad the samples of a block to the longest, m samples of at most L rows."""

    padded: torch.Tensor
    """[m x L]: row within the block's own rows; padding repeats a sample's last row."""
    back: torch.Tensor
    """[sum of own rows]: place of each own row in the padded layout."""
    mask: torch.Tensor
    """bool [L, prefix + L]: all of the prompt, own rows up to oneself. Padding comes last, so no real row ever sees it."""


def block_attend(blocks: Sequence[Block], scale: float, device: torch.device) -> Attend:
    """Attend for rows laid out as `blocks` say. Works forward and backward in float32, bfloat16 and float64 (SDPA, grouped queries)."""
    sizes = [block.prefix + sum(block.own) for block in blocks]
    samples = [_samples(block, device) if block.own else None for block in blocks]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Block by block."""
        parts = zip(blocks, samples, *(torch.split(rows, sizes) for rows in (q, k, v)), strict=True)
        return torch.cat([_block(block, index, scale, *rows) for block, index, *rows in parts])

    return attend


def _samples(block: Block, device: torch.device) -> _Samples:
    longest = max(block.own)
    lengths = torch.tensor(block.own)
    starts = lengths.cumsum(0) - lengths
    places = torch.arange(longest).expand(len(block.own), longest)
    padded = starts[:, None] + torch.minimum(places, lengths[:, None] - 1)
    back = (places < lengths[:, None]).flatten().nonzero()[:, 0]
    mask = torch.ones(longest, block.prefix + longest, dtype=torch.bool).tril(block.prefix)
    return _Samples(padded.flatten().to(device), back.to(device), mask.to(device))


def _block(block: Block, samples: _Samples | None, scale: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [rows, heads, d], k and v [rows, kv_heads, d] of one block -> [rows, heads, d]."""
    n = block.prefix
    prompt = _sdpa(q[None, :n], k[None, :n], v[None, :n], scale, None)[0]
    if samples is None:
        return prompt
    count = len(block.own)

    def pad(rows: torch.Tensor) -> torch.Tensor:
        """Own rows [sum(own), h, d] -> [m, L, h, d]."""
        return rows[n:].index_select(0, samples.padded).view(count, -1, *rows.shape[1:])

    def with_prompt(rows: torch.Tensor) -> torch.Tensor:
        """Rows of the block -> [m, prefix + L, h, d]."""
        return torch.cat([rows[None, :n].expand(count, -1, -1, -1), pad(rows)], dim=1)

    own = _sdpa(pad(q), with_prompt(k), with_prompt(v), scale, samples.mask).flatten(0, 1)
    return torch.cat([prompt, own.index_select(0, samples.back)])


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """[m, rows, heads, d] each, causal without a mask -> [m, rows, heads, d]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)
