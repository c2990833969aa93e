"""Attention by the compiled kernel: each row reads the pages that it sees, one after the other, whatever other rows there are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from paceline.engines.pages import PagePool, Span
from paceline.models.packed import Shape
from paceline.native.calls import DTYPES, Kernels, Step
from paceline.native.machine import HEAD_DIMS, LONGEST_PAGE

Seen = Sequence[tuple[Span, int]]
"""What a row attends to, its own token included: spans in order, each with how many of its tokens."""


def misfit(shape: Shape, size: int, dtype: torch.dtype, device: torch.device) -> str:
    """Why the kernel cannot read keys and values in pages of `size` tokens; empty if it can."""
    for what, fits in (
        (f"on {device}", device.type == "cpu"),
        (f"in {dtype}", dtype in DTYPES),
        (f"with heads of {shape.head_dim}", shape.head_dim in HEAD_DIMS),
        (f"in pages of {size} tokens", size <= LONGEST_PAGE),
    ):
        if not fits:
            return f"attention is not compiled for keys and values {what}"
    return ""


def pages(pool: PagePool, seen: Seen) -> list[tuple[int, int]]:
    """Pages that a row sees, each with the number of tokens in it, by position."""
    return [
        (page, min(pool.size, tokens - index * pool.size))
        for span, tokens in seen
        for index, page in enumerate(pool.numbers(span)[: pool.needed(tokens)])
    ]


class PagedAttention:
    """Rows of one forward, in every layer. Their keys and values are written before any row reads. Rows of a group should lie side by
    side: then their prompt is in the processor's cache."""

    def __init__(self, kernels: Kernels, pool: PagePool, where: Sequence[int], seen: Sequence[Seen]) -> None:
        """where: place of each row's token for head 0, as `PagePool.rows` counts."""
        self._kernels, self._dtype = kernels, pool.dtype
        rows = [pages(pool, one) for one in seen]
        first = list(itertools.accumulate(map(len, rows), initial=0))
        numbers, tokens = zip(*(entry for row in rows for entry in row), strict=True)
        shape, (keys, values) = pool.shape, pool.memory()
        # The kernel gets addresses: what lies there must live as long as this.
        self._held = (*(torch.tensor(column, dtype=torch.int64) for column in (list(where), first, numbers, tokens)), keys, values)
        self._step = Step(
            keys.data_ptr(), values.data_ptr(), *(tensor.data_ptr() for tensor in self._held[:4]),
            len(rows), shape.heads, shape.kv_heads, shape.head_dim, pool.size, keys[0].numel(), shape.scale, torch.get_num_threads(),
        )  # fmt: skip

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [n, heads, d], k and v [n, kv_heads, d] -> [n, heads, d]; computed in the dtype of the memory."""
        if not q.dtype == k.dtype == v.dtype == self._dtype:
            return self(layer, q.to(self._dtype), k.to(self._dtype), v.to(self._dtype)).to(q.dtype)
        k, v = _rows(k), _rows(v)
        if k.stride(0) != v.stride(0):
            k, v = k.contiguous(), v.contiguous()
        return self._kernels.attend(self._step, layer, _rows(q), k, v)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x, each of whose rows is contiguous."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
