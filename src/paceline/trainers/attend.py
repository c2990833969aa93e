"""Attention for training, forward and backward: each prompt over itself, each sample over (its group's prompt, itself).

On the CPU it is written out as batched products, a few times faster than torch's kernels there: keys are shared by the
queries of their head without being repeated, what a causal mask or a shorter sample leaves out is mostly not computed, and
the backward pass makes the probabilities again instead of keeping them. Compiled kernels do the same without operators in between.
Other devices use torch's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from paceline.models.attend import Layout, compiled_for
from paceline.models.kernels import bfloat16_products
from paceline.models.packed import Attend
from paceline.models.rowwise import gapless
from paceline.native.calls import Kernels
from paceline.trainers.packing import Block

_TILE_ROWS = 128
"""Rows of a tile: later rows, and samples that have ended before, are not in it."""
_TILE_SCORES = 500_000
"""Scores of a tile per head, at most, where more than one sample is in it."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows `first` to `end` of samples `low` to `high` of a run."""

    low: int
    high: int
    first: int
    end: int
    seen: int
    """Keys that the last row sees: the prefix and its own text up to itself."""
    closed: torch.Tensor
    """[rows, rows]: -inf above the diagonal, else 0; added to the scores of the last keys."""

    def rows(self, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
        """x [m, heads, L, d] -> [texts x kv_heads, heads / kv_heads x rows, d]."""
        part = x[self.low : self.high, :, self.first : self.end]
        return part.reshape(len(part) * kv_heads, -1, x.shape[-1])

    def put(self, x: torch.Tensor, part: torch.Tensor) -> None:
        """Write a result of the shape of `rows` to its place in x [m, heads, L, d]."""
        place = x[self.low : self.high, :, self.first : self.end]
        place.copy_(part.view(place.shape))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        """Those that the rows may see: x [m, kv_heads, prefix + L, d] -> [texts x kv_heads, keys, d]."""
        return x[self.low : self.high, :, : self.seen].reshape(-1, self.seen, x.shape[-1])

    def add_keys(self, x: torch.Tensor, part: torch.Tensor) -> None:
        """Add a result of the shape of `keys` to its place in x [m, kv_heads, prefix + L, d]."""
        place = x[self.low : self.high, :, : self.seen]
        place.add_(part.view(place.shape))


@dataclass(frozen=True, slots=True)
class _Run:
    """m causal texts of at most L rows behind one prefix that all of them see, longest first."""

    texts: int
    """m"""
    prefix: slice
    """Rows of the prefix, possibly none."""
    rows: torch.Tensor
    """[m x L]: row of each place; places behind the end of a text repeat its last row. No real row sees them."""
    real: torch.Tensor
    """[n]: places that are not behind the end."""
    tiles: tuple[_Tile, ...]

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [R, h, d] of the forward -> [m, h, L, d] in float32 (float64 for float64)."""
        return _wide(rows.index_select(0, self.rows)).view(self.texts, -1, *rows.shape[1:]).transpose(1, 2).contiguous()

    def spread_real(self, rows: torch.Tensor) -> torch.Tensor:
        """The same with zeros behind the ends."""
        out = _wide(rows[:0]).new_zeros(len(self.rows), *rows.shape[1:])
        out[self.real] = _wide(rows.index_select(0, self.rows[self.real]))
        return out.view(self.texts, -1, *rows.shape[1:]).transpose(1, 2).contiguous()

    def gather(self, found: torch.Tensor, out: torch.Tensor) -> None:
        """Write the real rows of found [m, h, L, d] to their places in out [R, h, d]."""
        rows = found.transpose(1, 2).flatten(0, 1).index_select(0, self.real)
        out[self.rows[self.real]] = rows.to(out.dtype)

    def behind_prefix(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or values [R, kv_heads, d] -> [m, kv_heads, prefix + L, d]."""
        own, shared = self.spread(rows), _wide(rows[self.prefix]).transpose(0, 1)
        return torch.cat([shared.expand(len(own), -1, -1, -1), own], dim=2)


def block_attend(
    blocks: Sequence[Block], scale: float, device: torch.device, *, library: bool | None = None, kernels: Kernels | None = None
) -> Attend:
    """Attend for rows laid out as `blocks` say, forward and backward in float32, bfloat16 and float64 with grouped queries.

    library: use torch's kernels; by default everywhere but on the CPU. kernels: take these wherever they can.
    """
    by_library = device.type != "cpu" if library is None else library
    written_out = _written_out(blocks, scale, device, by_library)
    if kernels is None or by_library:
        return written_out
    layout = Layout.of([(block.prefix, *block.own) for block in blocks], scale)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As `Attend`."""
        if not compiled_for(q.dtype, q.shape[2]):
            return written_out(layer, q, k, v)
        result: torch.Tensor = _Compiled.apply(q, k, v, layout, kernels)  # type: ignore[no-untyped-call]
        return result

    return attend


class _Compiled(torch.autograd.Function):
    """Attention by compiled kernels. Everything is added up in float32, and a head's numbers lie without gaps."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, kernels: Kernels) -> torch.Tensor:
        """q [R, heads, d], k and v [R, kv_heads, d] -> [R, heads, d]."""
        q, k, v = gapless(q), gapless(k), gapless(v)
        ctx.save_for_backward(q, k, v)
        ctx.layout, ctx.kernels = layout, kernels
        return kernels.attend_texts(layout.blocks(q, k), q, k, v)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v."""
        q, k, v = ctx.saved_tensors
        return (*ctx.kernels.attend_texts_backward(ctx.layout.blocks(q, k), q, k, v, gapless(grads[0])), None, None)


def _written_out(blocks: Sequence[Block], scale: float, device: torch.device, by_library: bool) -> Attend:
    runs: list[_Run] = []
    start = 0
    for block in blocks:
        prompt = slice(start, start + block.prefix)
        runs.append(_run(slice(0, 0), [(prompt.start, block.prefix)], device))
        starts = torch.tensor([prompt.stop, *block.own]).cumsum(0).tolist()
        if block.own:
            runs.append(_run(prompt, list(zip(starts, block.own, strict=False)), device))
        start = starts[-1]

    order = torch.cat([run.rows[run.real] for run in runs]).argsort()

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As `Attend`."""
        if not by_library:
            result: torch.Tensor = _Attention.apply(q, k, v, runs, scale)  # type: ignore[no-untyped-call]
            return result
        parts = [_library(run, q, k, v, scale) for run in runs]
        return torch.cat(parts).index_select(0, order)

    return attend


def _run(prefix: slice, texts: Sequence[tuple[int, int]], device: torch.device) -> _Run:
    """texts: (first row, number of rows) of each."""
    texts = sorted(texts, key=lambda text: -text[1])
    starts, lengths = torch.tensor(texts).unbind(1)
    longest = texts[0][1]
    places = torch.arange(longest).expand(len(texts), longest)
    rows = starts[:, None] + torch.minimum(places, lengths[:, None] - 1)
    real = (places < lengths[:, None]).flatten().nonzero()[:, 0]
    tiles = tuple(_tiles([length for _, length in texts], prefix.stop - prefix.start, device))
    return _Run(len(texts), prefix, rows.flatten().to(device), real.to(device), tiles)


def _tiles(lengths: Sequence[int], prefix: int, device: torch.device) -> list[_Tile]:
    """Cut the rows of texts, longest first, into tiles."""
    tiles = []
    for first in range(0, lengths[0], _TILE_ROWS):
        end = min(first + _TILE_ROWS, lengths[0])
        alive = sum(length > first for length in lengths)
        closed = torch.full((end - first, end - first), -torch.inf, device=device).triu_(1)
        together = max(1, _TILE_SCORES // ((end - first) * (prefix + end)))
        tiles += [_Tile(low, min(low + together, alive), first, end, prefix + end, closed) for low in range(0, alive, together)]
    return tiles


class _Attention(torch.autograd.Function):
    """softmax(scale q k^T) v per run and tile. Values of bfloat16 are multiplied exactly and added up in float32."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: Sequence[_Run], scale: float) -> torch.Tensor:
        """q [R, heads, d], k and v [R, kv_heads, d] -> [R, heads, d]."""
        ctx.save_for_backward(q, k, v)
        ctx.runs, ctx.scale = runs, scale
        out = torch.empty_like(q)
        with _products(q):
            for run in runs:
                queries, keys, values = run.spread(q), run.behind_prefix(k), run.behind_prefix(v)
                found = torch.zeros_like(queries)
                for tile in run.tiles:
                    weights = _weights(tile.rows(queries, k.shape[1]), tile.keys(keys), tile, scale)
                    tile.put(found, torch.bmm(weights, tile.keys(values)))
                run.gather(found, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v. What the texts of a run send to their prefix adds up in float32 at least."""
        q, k, v = ctx.saved_tensors
        (grad,) = grads
        sums = tuple(torch.zeros(x.shape, dtype=_wide(x[:0]).dtype, device=x.device) for x in (q, k, v))
        with _products(q):
            for run in ctx.runs:
                _run_backward(run, (q, k, v), grad, sums, ctx.scale)
        return (*(total.to(x.dtype) for total, x in zip(sums, (q, k, v), strict=True)), None, None)


def _run_backward(run: _Run, inputs: Sequence[torch.Tensor], grad: torch.Tensor, sums: Sequence[torch.Tensor], scale: float) -> None:
    """Add the gradients of a run's q, k and v, `inputs` [R, h, d] each, to `sums`, given that of its output, `grad` [R, heads, d]."""
    q, k, v = inputs
    queries, keys, values, given = run.spread(q), run.behind_prefix(k), run.behind_prefix(v), run.spread_real(grad)
    for_q, for_k, for_v = (torch.zeros_like(x) for x in (queries, keys, values))
    for tile in run.tiles:
        rows, shown = (tile.rows(x, k.shape[1]) for x in (queries, given))
        weights = _weights(rows, tile.keys(keys), tile, scale)
        tile.add_keys(for_v, torch.bmm(weights.transpose(1, 2), shown))
        inner = torch.bmm(shown, tile.keys(values).transpose(1, 2))
        inner = torch._softmax_backward_data(inner, weights, -1, weights.dtype)
        tile.put(for_q, torch.bmm(inner, tile.keys(keys)))
        tile.add_keys(for_k, torch.bmm(inner.transpose(1, 2), rows))
    for_q *= scale
    for_k *= scale
    prefix = run.prefix.stop - run.prefix.start
    sums[0].index_add_(0, run.rows, for_q.transpose(1, 2).flatten(0, 1))
    for total, found in ((sums[1], for_k), (sums[2], for_v)):
        total[run.prefix] += found[:, :, :prefix].sum(0).transpose(0, 1)
        total.index_add_(0, run.rows, found[:, :, prefix:].transpose(1, 2).flatten(0, 1))


def _weights(rows: torch.Tensor, keys: torch.Tensor, tile: _Tile, scale: float) -> torch.Tensor:
    """Probabilities [b, g x rows, keys] of rows [b, g x rows, d] over keys [b, keys, d]."""
    scores = torch.baddbmm(rows.new_empty(1, 1, 1), rows, keys.transpose(1, 2), beta=0, alpha=scale)
    size = len(tile.closed)
    scores.view(len(scores), -1, size, scores.shape[-1])[..., -size:] += tile.closed
    return scores.softmax(-1)


def _library(run: _Run, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """The real rows of a run [n, heads, d] by torch's own kernels."""
    queries, keys, values = run.spread(q), run.behind_prefix(k), run.behind_prefix(v)
    mask = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool, device=q.device).tril(keys.shape[2] - queries.shape[2])
    out = F.scaled_dot_product_attention(
        queries.to(q.dtype), keys.to(q.dtype), values.to(q.dtype), attn_mask=mask, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2).flatten(0, 1).index_select(0, run.real)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _products(x: torch.Tensor) -> AbstractContextManager[None]:
    return bfloat16_products() if x.dtype == torch.bfloat16 else nullcontext()
