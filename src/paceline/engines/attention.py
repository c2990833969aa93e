"""Attention of one packed forward: trajectories decode one token each, prompts and lost KV are prefilled beside them.

A decoding row attends to pages, each by itself, and the parts are merged by their log-sum-exp. A prompt page is read
once for all rows of its group (one batched product), a trajectory's own page by its own row.

A step is small, so what costs is the number of operations. All that layers have in common (indices, masks, buffers and the views
of them) is made once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from paceline.engines.paged import PagedAttention
from paceline.engines.pages import End, PagePool, Span
from paceline.models.attend import causal
from paceline.models.kernels import bfloat16_products
from paceline.models.packed import Attend
from paceline.native.calls import Kernels

_MANY = 200
"""Lines (`_Decoding`) from which on a bfloat16 model's rows attend by products of bfloat16 numbers: faster, but a call costs more."""


@dataclass(slots=True, eq=False)
class PromptKV:
    """A prompt that lies in KV memory, shared by every trajectory that continues it."""

    ids: tuple[int, ...]
    version: int = 0
    """Policy version whose weights made its keys and values, or `scheduler.GONE`."""
    span: Span = field(default_factory=lambda: Span("front"))
    read: int = 0
    """Tokens whose keys and values lie in memory, or will after the step that is planned."""
    last: torch.Tensor | None = None
    """Final hidden state of the last prompt token [width], once all are read: predicts every sample's first token."""
    users: int = 0
    """Running trajectories that continue it."""

    @property
    def unread(self) -> int:
        """Tokens that are still to be read."""
        return len(self.ids) - self.read


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `start` to `stop` of a prompt, which run together; those before them lie in memory."""

    prompt: PromptKV
    start: int
    stop: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens."""
        return self.prompt.ids[self.start : self.stop]


@dataclass(slots=True, eq=False)
class Track:
    """A trajectory in KV memory: its prompt and the tokens after it, the last of which is yet to be written."""

    prompt: PromptKV
    own: Span = field(default_factory=lambda: Span("back"))
    tokens: list[int] = field(default_factory=list)
    last: torch.Tensor | None = None
    """Final hidden state of the last token [width], when all tokens have just run again."""


@dataclass(frozen=True, slots=True)
class _Behind:
    """n tokens that run at once, behind p tokens of the same text that lie in memory or run in the same forward."""

    rows: slice
    """Their rows of the forward."""
    where: torch.Tensor
    """Places of all these tokens, [p + n, kv_heads]."""
    sees: torch.Tensor
    """Which of them each row attends to, [n, p + n]."""


class StepAttention:
    """`Attend` over rows [decoding tracks..., tokens of parts of prompts..., tokens of rebuilt tracks...]; writes their keys and values."""

    def __init__(
        self,
        pool: PagePool,
        tracks: Sequence[Track],
        parts: Sequence[Part] = (),
        rebuilt: Sequence[Track] = (),
        kernels: Kernels | None = None,
    ) -> None:
        """parts: those that begin their prompts come first. kernels: compiled ones, that can read the memory."""
        self._pool, self._count = pool, len(tracks)
        begin = [part for part in parts if not part.start]
        self._prefill: Attend = causal([part.stop for part in begin], pool.shape.scale, kernels)
        places = [place for track in tracks for place in pool.rows(track.own, len(track.tokens) - 1, len(track.tokens))]
        places += [place for part in begin for place in pool.rows(part.prompt.span, 0, part.stop)]
        self._prefilled = len(places)
        self._behind: list[_Behind] = []
        for part in parts[len(begin) :]:
            places += self._follow(pool.rows(part.prompt.span, 0, part.stop), part.start, len(places))
        for track in rebuilt:
            prompt = pool.rows(track.prompt.span, 0, len(track.prompt.ids))
            places += self._follow(prompt + pool.rows(track.own, 0, len(track.tokens)), len(prompt), len(places))
        self._decode = _decoding(kernels, pool, tracks, places[: len(tracks)])
        self._where = pool.spread(places[len(tracks) :]).flatten()

    def _follow(self, text: list[int], before: int, first: int) -> list[int]:
        """Let rows from `first` on be those of a text at these places, but for `before` tokens. Their places."""
        n = len(text) - before
        sees = torch.ones(n, len(text), dtype=torch.bool, device=self._pool.device).tril(before)
        self._behind.append(_Behind(slice(first, first + n), self._pool.spread(text), sees))
        return text[before:]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, d], k and v [T, kv_heads, d] -> [T, heads, d]."""
        n, end = self._count, self._prefilled
        if self._decode is not None and n == len(q):
            return self._decode(layer, q, k, v)
        # First: a row may continue a prompt that is read in this very forward.
        self._pool.write(layer, self._where, k[n:], v[n:])
        parts = [] if self._decode is None else [self._decode(layer, q[:n], k[:n], v[:n])]
        if end > n:
            parts.append(self._prefill(layer, q[n:end], k[n:end], v[n:end]))
        parts += [self._from_memory(layer, q[one.rows], one) for one in self._behind]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _from_memory(self, layer: int, q: torch.Tensor, behind: _Behind) -> torch.Tensor:
        """q [n, heads, d] -> [n, heads, d], from memory and in float32 at least, as decoding computes."""
        wide = torch.promote_types(self._pool.dtype, torch.float32)
        keys, values = (part.to(wide) for part in self._pool.gather(layer, behind.where))
        repeats = q.shape[1] // keys.shape[1]
        parts = (q.to(wide), keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1))
        rows, keys, values = (part.transpose(0, 1)[None] for part in parts)
        result = F.scaled_dot_product_attention(rows, keys, values, attn_mask=behind.sees, scale=self._pool.shape.scale)
        return result[0].transpose(0, 1).to(q.dtype)


def _decoding(kernels: Kernels | None, pool: PagePool, tracks: Sequence[Track], places: list[int]) -> Attend | None:
    """Attention of tracks whose last tokens go to these places, which writes them there first."""
    if not tracks:
        return None
    if kernels is None:
        return _Decoding(pool, tracks, places)
    seen = [((track.prompt.span, len(track.prompt.ids)), (track.own, len(track.tokens))) for track in tracks]
    return PagedAttention(kernels, pool, places, seen)


@dataclass(frozen=True, slots=True)
class _Use:
    """Pages, and who attends to them."""

    span: Span
    tokens: int
    """How many lie in them."""
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class _End:
    """One end of the memory: in every layer, and as views of the step's buffers. Each tensor begins with [pages x kv_heads]."""

    keys: Sequence[torch.Tensor]
    """Of each layer, transposed, [..., d, size]."""
    values: Sequence[torch.Tensor]
    """Of each layer, [..., size, d]."""
    queries: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    results: torch.Tensor


class _Decoding:
    """Rows that decode one token each, in every layer of one step.

    Every page has places for the rows that attend to it: at the front of the memory as many as the largest group needs, at the back
    one. A line is a (page, KV head, place), with the query heads of the KV head in it; both ends share buffers of lines, so that what
    goes line by line is one operation. A place that no row takes computes what nobody reads.
    """

    def __init__(self, pool: PagePool, tracks: Sequence[Track], written: list[int]) -> None:
        shape = pool.shape
        self._pool, self._where = pool, pool.spread(written).flatten()
        self._scale, self._sizes = shape.scale, (len(tracks), shape.heads, shape.head_dim)
        kv_heads, repeats, d = shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim
        own = [_Use(track.own, len(track.tokens), (row,)) for row, track in enumerate(tracks)]
        uses: dict[End, list[_Use]] = {"front": _sharing(tracks), "back": own}
        places = {end: max(len(use.rows) for use in found) for end, found in uses.items()}
        lines = {end: pool.used(end) * kv_heads * count for end, count in places.items()}
        total = sum(lines.values())
        self._many = total >= _MANY
        like = torch.empty(0, dtype=pool.dtype, device=pool.device)
        self._queries = like.new_empty(total, repeats * d)
        self._scores = like.new_empty(total * repeats, pool.size)
        self._logs = torch.empty_like(self._scores)
        # One line more than there are: of weight zero, for rows that have fewer pages than others.
        self._results = like.new_zeros((total + 1) * repeats, d)
        self._sums = like.new_full(((total + 1) * repeats,), -torch.inf)
        self._first = (self._scores[:, 0], self._logs[:, 0], self._sums[: total * repeats])
        self._ends: list[_End] = []
        takes, biases, entries, first = [], [], [list[tuple[int, int]]() for _ in tracks], 0
        for end, found in uses.items():
            rows, bias = _taken(pool, end, found, places[end])
            takes.append((rows[:, None] * kv_heads + torch.arange(kv_heads)[:, None]).flatten())
            for use in found:
                for page in (pool.slot(use.span, index) for index in range(len(use.span.places))):
                    for place, row in enumerate(use.rows):
                        entries[row].append((first + page * kv_heads * places[end] + place, places[end]))
            biases.append(bias.repeat_interleave(kv_heads * places[end] * repeats, dim=0))
            self._ends.append(self._end(pool, end, first, places[end]))
            first += lines[end]
        self._bias = torch.cat(biases).to(pool.device)
        """0, or -inf where a page holds no token."""
        self._take = torch.cat(takes).to(pool.device)
        self._merge = _merging(entries, total, kv_heads, repeats).to(pool.device)

    def _end(self, pool: PagePool, end: End, first: int, places: int) -> _End:
        """Views of one end, whose lines begin at `first`."""
        keys, values = pool.read(end)
        pages, repeats = keys.shape[1], len(self._scores) // len(self._queries)
        lines = slice(first, first + pages * places)
        part = slice(lines.start * repeats, lines.stop * repeats)
        return _End(
            keys.transpose(2, 3).unbind(),
            values.unbind(),
            *(
                buffer.view(pages, places * repeats, -1)
                for buffer in (self._queries[lines], self._scores[part], self._logs[part], self._results[part])
            ),
        )

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [n, heads, d], k and v [n, kv_heads, d] -> [n, heads, d]; writes k and v to memory first."""
        self._pool.write(layer, self._where, k, v)
        wide = self._queries.dtype
        torch.index_select(q.to(wide).reshape(-1, self._queries.shape[1]), 0, self._take, out=self._queries)
        with bfloat16_products() if self._many and q.dtype == torch.bfloat16 else nullcontext():
            self._attend(layer)
        n, heads, d = self._sizes
        shares = self._sums.index_select(0, self._merge).view(-1, n * heads, 1).softmax(dim=0)
        parts = self._results.index_select(0, self._merge).view(-1, n * heads, d)
        return parts.mul_(shares).sum(dim=0).view(n, heads, d).to(q.dtype)

    def _attend(self, layer: int) -> None:
        """Results of all lines, and their log-sum-exps, from their queries."""
        for end in self._ends:
            torch.bmm(end.queries, end.keys[layer], out=end.scores)
        torch.add(self._bias, self._scores, alpha=self._scale, out=self._scores)
        torch.log_softmax(self._scores, dim=-1, out=self._logs)
        # A page's first position always holds a token, and there score - log-softmax is the log-sum-exp of the page.
        score, log, total = self._first
        torch.sub(score, log, out=total)
        self._logs.exp_()
        for end in self._ends:
            torch.bmm(end.weights, end.values[layer], out=end.results)


def _taken(pool: PagePool, end: End, uses: Sequence[_Use], places: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row at each place of each page [pages, places], 0 where it is empty; 0 or -inf per position of a page [pages, size]."""
    rows = [[0] * places for _ in range(pool.used(end))]
    # Pages that no row attends to (a prompt that waits for its samples) stay open.
    valid = [pool.size] * pool.used(end)
    for use in uses:
        for index in range(len(use.span.places)):
            page = pool.slot(use.span, index)
            rows[page][: len(use.rows)] = use.rows
            valid[page] = use.tokens - index * pool.size
    closed = torch.arange(pool.size)[None] >= torch.tensor(valid)[:, None]
    return torch.tensor(rows), torch.zeros(closed.shape, dtype=pool.dtype).masked_fill_(closed, -torch.inf)


def _merging(entries: Sequence[list[tuple[int, int]]], nothing: int, kv_heads: int, repeats: int) -> torch.Tensor:
    """What each query head merges, [most pages of a row x n x heads], from each row's lines: (that of KV head 0, step to the next).

    nothing: the line of weight zero.
    """
    longest = max(map(len, entries))
    filled = torch.tensor([found + [(nothing, 0)] * (longest - len(found)) for found in entries])
    first, step = filled.transpose(0, 1)[:, :, None].unbind(dim=-1)
    lines = first + step * torch.arange(kv_heads)
    return (lines[..., None] * repeats + torch.arange(repeats)).flatten()


def _sharing(tracks: Sequence[Track]) -> list[_Use]:
    """The prompts that tracks continue, each with its rows."""
    found: dict[int, list[int]] = {}
    for row, track in enumerate(tracks):
        found.setdefault(id(track.prompt), []).append(row)
    prompts = (tracks[rows[0]].prompt for rows in found.values())
    return [_Use(prompt.span, len(prompt.ids), rows) for prompt, rows in zip(prompts, found.values(), strict=True)]
