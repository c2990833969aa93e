"""The deterministic forward: every kernel sees tiles of `TILE` token rows, so a row's bits depend on what it is, never on where it lies.

1. All rows are alike, whether they decode, prefill, rebuild lost KV or answer a probe: a token, its position, and the pages that it sees.
2. A tile is full. What is missing repeats the last row, which writes the same keys and values to the same place once more.
3. A row attends to its pages one after the other, first those of its prompt, then its own. Which positions share a page follows
   from the trajectory alone; a page that only a neighbour has leaves sums as they are (times 1, plus 0).
4. Tiles run one after the other, tokens of prompts first, so a prompt's keys are there before the rows behind it ask for them.

Compiled kernels (`native`) treat every row by itself in any number: with them all rows run together, and all write before any reads.

That kernels of one shape treat all rows alike is a property of the machine and its libraries: `prove` checks it where it is relied upon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch

from paceline.algo.sampling import Draw, Knobs, draw
from paceline.engines.attention import Part, PromptKV, Track
from paceline.engines.paged import PagedAttention, pages
from paceline.engines.pages import PagePool, Span
from paceline.models.packed import PackedModel
from paceline.native.calls import Kernels
from paceline.types.errors import EngineError
from paceline.types.records import Sampling

TILE = 32
"""Rows of a tile."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token on its way through the model."""

    token: int
    prompt: PromptKV
    own: Span | None
    """Pages of the trajectory after the prompt; None for a token of the prompt."""
    place: int
    """Position in the prompt, or among the trajectory's own tokens."""

    @property
    def position(self) -> int:
        """In the whole text."""
        return self.place if self.own is None else len(self.prompt.ids) + self.place

    def spans(self) -> list[tuple[Span, int]]:
        """What it sees, itself included: spans, each with the number of its tokens."""
        if self.own is None:
            return [(self.prompt.span, self.place + 1)]
        return [(self.prompt.span, len(self.prompt.ids)), (self.own, self.place + 1)]


class TileAttention:
    """`Attend` over the rows of one tile; writes their keys and values first."""

    def __init__(self, pool: PagePool, rows: Sequence[TokenRow]) -> None:
        self._pool = pool
        self._where = pool.spread([_own_place(pool, row) for row in rows]).flatten()
        seen = [pages(pool, row.spans()) for row in rows]
        longest = max(map(len, seen))
        # A row that has no such page sees nothing of its first one.
        filled = [found + [(found[0][0], 0)] * (longest - len(found)) for found in seen]
        self._blocks = [self._block(column) for column in zip(*filled, strict=True)]

    def _block(self, pages: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Page of each row [T], and 0 or -inf per position [T x kv_heads, 1, size]."""
        valid = torch.tensor([tokens for _, tokens in pages])
        closed = torch.arange(self._pool.size)[None] >= valid[:, None]
        bias = torch.zeros(closed.shape, dtype=self._pool.dtype).masked_fill_(closed, -torch.inf)
        numbers, device = torch.tensor([page for page, _ in pages]), self._pool.device
        return numbers.to(device), bias.repeat_interleave(self._pool.kv_heads, dim=0)[:, None].to(device)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, d], k and v [T, kv_heads, d] -> [T, heads, d]: page by page, rescaled to the largest score so far."""
        self._pool.write(layer, self._where, k, v)
        rows = (q.to(self._pool.dtype) * self._pool.shape.scale).reshape(len(q) * self._pool.kv_heads, -1, q.shape[-1])
        most = rows.new_full((*rows.shape[:2], 1), -torch.inf)
        total, result = torch.zeros_like(most), torch.zeros_like(rows)
        for which, bias in self._blocks:
            keys, values = self._pool.take(layer, which)
            scores = torch.bmm(rows, keys.transpose(1, 2)) + bias
            largest = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
            shrink, weights = (most - largest).exp_(), (scores - largest).exp_()
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            result = result * shrink + torch.bmm(weights, values)
            most = largest
        return (result / total).view(q.shape).to(q.dtype)


def rows_of(tracks: Sequence[Track], parts: Sequence[Part], rebuilt: Sequence[Track]) -> list[TokenRow]:
    """Rows [the last token of each track..., tokens of parts of prompts..., all tokens of rebuilt tracks...]."""
    rows = [TokenRow(track.tokens[-1], track.prompt, track.own, len(track.tokens) - 1) for track in tracks]
    rows += [TokenRow(token, part.prompt, None, place) for part in parts for place, token in enumerate(part.ids, part.start)]
    return rows + [TokenRow(token, track.prompt, track.own, place) for track in rebuilt for place, token in enumerate(track.tokens)]


def hidden(model: PackedModel, pool: PagePool, rows: Sequence[TokenRow], kernels: Kernels | None) -> torch.Tensor:
    """Final hidden states of rows [N, width]; their keys and values are in memory afterwards. kernels: of a model whose rows they treat
    alike, in any number."""
    if kernels is not None:
        ids, positions = torch.tensor([[row.token for row in rows], [row.position for row in rows]])
        attend = PagedAttention(kernels, pool, [_own_place(pool, row) for row in rows], [row.spans() for row in rows])
        return model.hidden(ids, positions, attend)
    order = sorted(range(len(rows)), key=lambda index: rows[index].own is not None)
    parts = []
    for tile in _tiles(len(rows)):
        members = [rows[order[index]] for index in tile]
        ids, positions = torch.tensor([[row.token for row in members], [row.position for row in members]]).to(pool.device)
        parts.append(model.hidden(ids, positions, TileAttention(pool, members)))
    states = torch.cat(parts)
    result = torch.empty_like(states[: len(rows)])
    result[order] = states[: len(rows)]
    return result


def logits(model: PackedModel, states: torch.Tensor, kernels: Kernels | None) -> torch.Tensor:
    """states [N, width] -> [N, vocabulary]. kernels: as in `hidden`."""
    if kernels is not None:
        return model.logits(states)
    return torch.cat([model.logits(states[tile]) for tile in _tiles(len(states))])[: len(states)]


def drawn(scores: torch.Tensor, samplings: Sequence[Sampling], numbers: torch.Tensor) -> Draw:
    """`draw` for logits [N, vocabulary] and uniform numbers [N]."""
    parts = [draw(scores[tile], Knobs.of([samplings[index] for index in tile]), numbers[tile]) for tile in _tiles(len(scores))]
    columns = {field.name: torch.cat([getattr(part, field.name) for part in parts])[: len(scores)] for field in fields(Draw)}
    return Draw(**columns)


def log_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Of each row [N, vocabulary]."""
    return torch.cat([scores[tile].log_softmax(dim=-1) for tile in _tiles(len(scores))])[: len(scores)]


def prove(model: PackedModel, like: PagePool, kernels: Kernels | None) -> None:
    """Run two texts in full tiles, in the other order in parts of tiles, and row by row: EngineError if a row's logits differ in a bit.

    They take memory of their own, of the kind of `like`. kernels: as in `hidden`.
    """
    texts = [[(37 * place + 11 * count + 5) % model.shape.vocabulary for place in range(count)] for count in (TILE + 7, TILE // 3)]
    right = _scored(model, like, kernels, texts, len(texts[0]) + len(texts[1]))
    other = _scored(model, like, kernels, texts[::-1], TILE // 2 + 3)[::-1] + _scored(model, like, kernels, texts[1:], 1)
    for ours, theirs in zip([*right, right[1]], other, strict=True):
        if not torch.equal(ours, theirs):
            raise EngineError(
                f"run.deterministic: {type(model).__name__} gives a row other logits at another place of a tile "
                f"(by {float((ours - theirs).abs().max()):.3g}): a kernel of this machine depends on that place, so runs would not repeat"
            )


def _scored(
    model: PackedModel, like: PagePool, kernels: Kernels | None, texts: Sequence[Sequence[int]], at_once: int
) -> list[torch.Tensor]:
    """Logits of each text's tokens, so many rows at a time."""
    prompts = [PromptKV(tuple(text)) for text in texts]
    pool = like.another(sum(like.needed(len(text)) for text in texts))
    for prompt in prompts:
        pool.extend(prompt.span, pool.needed(len(prompt.ids)))
    rows = rows_of([], [Part(prompt, 0, len(prompt.ids)) for prompt in prompts], [])
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
    scores = torch.cat([logits(model, hidden(model, pool, part, kernels), kernels) for part in parts])
    return list(torch.split(scores, [len(text) for text in texts]))


def _own_place(pool: PagePool, row: TokenRow) -> int:
    """Where its key and value go, as `PagePool.rows` counts."""
    return pool.rows(row.spans()[-1][0], row.place, row.place + 1)[0]


def _tiles(count: int) -> Iterator[list[int]]:
    """The rows of each tile; the last one is filled up with the last row."""
    for start in range(0, count, TILE):
        yield [min(index, count - 1) for index in range(start, start + TILE)]
