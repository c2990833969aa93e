"""Causal attention over sequences laid one after another: of prompts in the engine, of probes on both sides, and the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from paceline.models.packed import Attend
from paceline.models.rowwise import gapless
from paceline.native.calls import DTYPES, LANES, Blocks, Kernels

_FEW = 32
"""Rows of a text from which on torch's causal kernel is safe. Where they are fewer than a vector of the processor has numbers it gives 0
for scores that are NaN, as if a broken model worked; with a mask it does not."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of packed rows as the kernels read them; their memory."""

    firsts: torch.Tensor
    starts: torch.Tensor
    sizes: torch.Tensor
    longest: int
    scale: float

    @staticmethod
    def of(sizes: Sequence[tuple[int, ...]], scale: float) -> Layout:
        """Of consecutive blocks: rows of a prefix, even of none, then those of each sample behind it."""
        flat = torch.tensor([size for block in sizes for size in block])
        firsts = torch.tensor([0, *(len(block) for block in sizes)]).cumsum(0)
        return Layout(firsts, flat.cumsum(0) - flat, flat, max(block[0] + max(block[1:], default=0) for block in sizes), scale)

    def blocks(self, q: torch.Tensor, k: torch.Tensor) -> Blocks:
        """For rows q [R, heads, d] and k [R, kv_heads, d]."""
        rows = int(self.starts[-1] + self.sizes[-1])
        assert len(q) == len(k) == rows, f"{len(q)} and {len(k)} rows, the blocks have {rows}"  # the kernels would read what lies behind
        return Blocks(
            firsts=self.firsts.data_ptr(),
            starts=self.starts.data_ptr(),
            sizes=self.sizes.data_ptr(),
            blocks=len(self.firsts) - 1,
            heads=q.shape[1],
            kv_heads=k.shape[1],
            d=q.shape[2],
            scale=self.scale,
            longest=self.longest,
        )


def compiled_for(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernels' attention over packed rows is for such numbers."""
    return dtype in DTYPES and not head_dim % LANES


def causal(lengths: Sequence[int], scale: float, kernels: Kernels | None = None) -> Attend:
    """Attention of each sequence over itself; rows are the sequences in order, `sum(lengths)` of them.

    Works forward and backward in float32, bfloat16 and float64; grouped queries share the heads of k and v. kernels: take these where
    they can, forward only; the trainer attends by them too, so both sides get the same bits.
    """
    sizes = [n for n in lengths if n]
    layout = Layout.of([(n,) for n in sizes], scale) if kernels is not None and sizes else None

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As `Attend`."""
        assert q.shape[0] == sum(sizes), f"layer {layer}: {q.shape[0]} rows for lengths {sizes}"
        if kernels is not None and layout is not None and compiled_for(q.dtype, q.shape[2]):
            return kernels.attend_texts(layout.blocks(q, k), gapless(q), gapless(k), gapless(v))
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
