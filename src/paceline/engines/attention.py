"""Attention of one packed forward: trajectories decode one token each, prompts and lost KV are prefilled beside them.

A decoding row attends to pages, each by itself, and the parts are merged by their log-sum-exp. A prompt page is read
once for all rows of its group (one batched product), a trajectory's own page by its own row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from paceline.engines.pages import End, PagePool, Span
from paceline.models.attend import causal
from paceline.models.packed import Attend, Shape


@dataclass(slots=True, eq=False)
class PromptKV:
    """A prompt that lies in KV memory, shared by every trajectory that continues it."""

    ids: tuple[int, ...]
    version: int = 0
    """Policy version whose weights made its keys and values, or `scheduler.GONE`."""
    span: Span = field(default_factory=lambda: Span("front"))
    last: torch.Tensor | None = None
    """Final hidden state of the last prompt token [width]: predicts every sample's first token."""
    users: int = 0
    """Running trajectories that continue it."""


@dataclass(slots=True, eq=False)
class Track:
    """A trajectory in KV memory: its prompt and the tokens after it, the last of which is yet to be written."""

    prompt: PromptKV
    own: Span = field(default_factory=lambda: Span("back"))
    tokens: list[int] = field(default_factory=list)
    last: torch.Tensor | None = None
    """Final hidden state of the last token [width], when all tokens have just run again."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One end of the memory as the decoding rows see it: every page is attended by `width` rows, some of them nobody."""

    end: End
    width: int
    take: torch.Tensor
    """Row of each (page, place in page), [pages x width]; number of rows = nobody."""
    bias: torch.Tensor
    """0 or -inf per position, [pages x kv_heads, 1, size]."""


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A trajectory all of whose tokens run at once, after a prompt that lies in memory or is prefilled in the same forward."""

    rows: slice
    """Its rows of the forward."""
    where: torch.Tensor
    """Places of the prompt and its own tokens, [p + n, kv_heads]."""
    sees: torch.Tensor
    """Which of them each row attends to, [n, p + n]."""


class StepAttention:
    """`Attend` over rows [decoding tracks..., tokens of fresh prompts..., tokens of rebuilt tracks...]; writes their keys and values."""

    def __init__(
        self,
        pool: PagePool,
        shape: Shape,
        dtype: torch.dtype,
        tracks: Sequence[Track],
        fresh: Sequence[PromptKV] = (),
        rebuilt: Sequence[Track] = (),
    ) -> None:
        self._pool, self._shape, self._dtype, self._count = pool, shape, dtype, len(tracks)
        self._prefill: Attend = causal([len(prompt.ids) for prompt in fresh], shape.scale)
        places = [place for track in tracks for place in pool.rows(track.own, len(track.tokens) - 1, len(track.tokens))]
        places += [place for prompt in fresh for place in pool.rows(prompt.span, 0, len(prompt.ids))]
        self._prefilled = len(places)
        self._rebuilt: list[_Rebuilt] = []
        for track in rebuilt:
            before, n = len(track.prompt.ids), len(track.tokens)
            lost = pool.rows(track.own, 0, n)
            where = pool.spread(pool.rows(track.prompt.span, 0, before) + lost)
            sees = torch.ones(n, before + n, dtype=torch.bool).tril(before)
            self._rebuilt.append(_Rebuilt(slice(len(places), len(places) + n), where, sees))
            places += lost
        self._where = pool.spread(places).flatten()
        if tracks:
            shared, own = _sharing(tracks), [(track.own, len(track.tokens), [row]) for row, track in enumerate(tracks)]
            self._parts = (self._part("front", shared), self._part("back", own))
            self._merge = self._places(shared, own)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, d], k and v [T, kv_heads, d] -> [T, heads, d]."""
        n, end = self._count, self._prefilled
        self._pool.write(layer, self._where, k, v)
        if n == len(q):
            return self._decode(layer, q)
        parts = [self._decode(layer, q[:n])] if n else []
        if end > n:
            parts.append(self._prefill(layer, q[n:end], k[n:end], v[n:end]))
        parts += [self._again(layer, q[track.rows], track) for track in self._rebuilt]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _again(self, layer: int, q: torch.Tensor, track: _Rebuilt) -> torch.Tensor:
        """q [n, heads, d] -> [n, heads, d], from memory and in its dtype, as decoding computes."""
        keys, values = self._pool.gather(layer, track.where)
        repeats = q.shape[1] // keys.shape[1]
        parts = (q.to(self._dtype), keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1))
        rows, keys, values = (part.transpose(0, 1)[None] for part in parts)
        result = F.scaled_dot_product_attention(rows, keys, values, attn_mask=track.sees, scale=self._shape.scale)
        return result[0].transpose(0, 1).to(q.dtype)

    def _decode(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [n, heads, d] -> [n, heads, d]."""
        rows = torch.zeros(self._count + 1, *q.shape[1:], dtype=self._dtype)
        rows[:-1] = q
        rows *= self._shape.scale
        (shared, shared_lse), (own, own_lse) = (self._attend(layer, part, rows) for part in self._parts)
        nobody = own_lse.new_full((1, own_lse.shape[1]), -torch.inf)
        weights = torch.cat([shared_lse, own_lse, nobody])[self._merge].softmax(dim=1)
        values = torch.cat([shared, own, torch.zeros_like(own[:1])])[self._merge]
        return (weights[..., None] * values).sum(dim=1).to(q.dtype)

    def _attend(self, layer: int, part: _Part, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Result [pages x width, heads, d] and log-sum-exp [pages x width, heads] of each row over each page alone."""
        keys, values = self._pool.read(layer, part.end)
        kv_heads, width, (heads, d) = self._shape.kv_heads, part.width, rows.shape[1:]
        q = rows[part.take].view(-1, width, kv_heads, heads // kv_heads, d).transpose(1, 2).reshape(len(keys), -1, d)
        scores = torch.baddbmm(part.bias, q, keys.transpose(1, 2))
        weights = scores.softmax(dim=-1)
        result = torch.bmm(weights, values).view(-1, kv_heads, width, heads // kv_heads, d)
        # The largest weight is exp(largest score - lse): cheaper than a second pass of exponentials.
        lse = (scores.amax(dim=-1) - weights.amax(dim=-1).log()).view(-1, kv_heads, width, heads // kv_heads)
        return result.transpose(1, 2).reshape(-1, heads, d), lse.transpose(1, 2).reshape(-1, heads)

    def _part(self, end: End, spans: Sequence[tuple[Span, int, list[int]]]) -> _Part:
        """spans: (pages, tokens in them, rows that attend)."""
        pool, width = self._pool, max(len(rows) for _, _, rows in spans)
        take = [[self._count] * width for _ in range(pool.used(end))]
        # Pages that no row attends (a prompt that waits for its samples) stay open: their rows are nobody's.
        valid = [pool.size] * pool.used(end)
        for span, tokens, rows in spans:
            for index in range(len(span.places)):
                slot = pool.slot(span, index)
                take[slot][: len(rows)] = rows
                valid[slot] = tokens - index * pool.size
        closed = torch.arange(pool.size)[None] >= torch.tensor(valid)[:, None]
        bias = torch.zeros(closed.shape, dtype=self._dtype).masked_fill_(closed, -torch.inf)
        return _Part(end, width, torch.tensor(take).flatten(), bias.repeat_interleave(self._shape.kv_heads, dim=0)[:, None])

    def _places(self, shared: Sequence[tuple[Span, int, list[int]]], own: Sequence[tuple[Span, int, list[int]]]) -> torch.Tensor:
        """For each row the entries of (shared results, own results, nobody) that it merges, [n, most pages of a row]."""
        pool, width = self._pool, self._parts[0].width
        first_own = pool.used("front") * width
        table: list[list[int]] = [[] for _ in range(self._count)]
        for span, _, rows in shared:
            for place, row in enumerate(rows):
                table[row] += [pool.slot(span, index) * width + place for index in range(len(span.places))]
        for span, _, (row,) in own:
            table[row] += [first_own + pool.slot(span, index) for index in range(len(span.places))]
        longest, nobody = max(map(len, table)), first_own + pool.used("back")
        return torch.tensor([entries + [nobody] * (longest - len(entries)) for entries in table])


def _sharing(tracks: Sequence[Track]) -> list[tuple[Span, int, list[int]]]:
    """The prompts that tracks continue, each with its rows."""
    found: dict[int, tuple[Span, int, list[int]]] = {}
    for row, track in enumerate(tracks):
        found.setdefault(id(track.prompt), (track.prompt.span, len(track.prompt.ids), []))[2].append(row)
    return list(found.values())
