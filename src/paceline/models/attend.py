"""Plain causal attention over sequences laid one after another: the reference, and what probes use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from paceline.models.packed import Attend

_FEW = 32
"""Rows of a text from which on torch's causal kernel is safe. Where they are fewer than a vector of the processor has numbers it gives 0
for scores that are NaN, as if a broken model worked; with a mask it does not."""


def causal(lengths: Sequence[int], scale: float) -> Attend:
    """Attention of each sequence over itself; rows are the sequences in order, `sum(lengths)` of them.

    Works forward and backward in float32, bfloat16 and float64; grouped queries share the heads of k and v.
    """
    sizes = [n for n in lengths if n]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As `Attend`."""
        assert q.shape[0] == sum(sizes), f"layer {layer}: {q.shape[0]} rows for lengths {sizes}"
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        parts = zip(torch.split(q, sizes), torch.split(k, sizes), torch.split(v, sizes), strict=True)
        return torch.cat([_one(*part, scale=scale) for part in parts])

    return attend


def _one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float) -> torch.Tensor:
    """[n, heads, d] each -> [n, heads, d]."""
    n = len(q)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril() if n < _FEW else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)[0].transpose(0, 1)
