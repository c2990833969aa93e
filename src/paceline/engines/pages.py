"""KV memory: one allocation of equal pages, filled from both ends, so that what lives at either end is always one slice.

Prompts grow from the front and trajectories from the back; memory is full when they meet. A freed page is filled with the
last page of its end, so a kernel reads `[0, n)` or `[total - n, total)` and never gathers. The pages of a span keep
absolute positions: page j holds positions j x size ... (j + 1) x size - 1 of its span.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from paceline.models.packed import Shape

End = Literal["front", "back"]
KV = tuple[torch.Tensor, torch.Tensor]
"""Keys and values; of saved tokens each [layers, tokens, kv_heads, head_dim]."""


@dataclass(slots=True, eq=False)
class Span:
    """The pages of one prompt or one trajectory, in order of position."""

    end: End
    places: list[int] = field(default_factory=list)
    """Distance of each page from its end of the memory; the pool keeps them up to date."""


class PagePool:
    """Keys and values, each [layers, pages, kv_heads, size, head_dim].

    Compiled kernels read them in the dtype that the model writes. torch's operators want the type that attention computes in, float32 also
    for bfloat16 models: their scores would otherwise be rounded to 8 bits, or every page be converted at every step.
    """

    def __init__(self, shape: Shape, pages: int, size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.shape, self.pages, self.size, self.dtype, self.device = shape, pages, size, dtype, torch.device(device)
        self.kv_heads = shape.kv_heads
        # Untouched memory of a CPU costs nothing until a page is first used; `extend` clears pages before use.
        self._keys = torch.empty(shape.layers, pages, shape.kv_heads, size, shape.head_dim, dtype=dtype, device=device)
        self._values = torch.empty_like(self._keys)
        self._lines = list(zip(self._flat(self._keys).unbind(), self._flat(self._values).unbind(), strict=True))
        """Of each layer, as `write` sees it."""
        self._owners: dict[End, list[tuple[Span, int]]] = {"front": [], "back": []}

    def another(self, pages: int) -> PagePool:
        """Memory of the same kind with so many pages, all free."""
        return PagePool(self.shape, pages, self.size, self.dtype, self.device)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self.pages - self.used("front") - self.used("back")

    def used(self, end: End) -> int:
        """Pages held at one end."""
        return len(self._owners[end])

    def needed(self, tokens: int) -> int:
        """Pages for so many tokens of one span."""
        return -(-tokens // self.size)

    def extend(self, span: Span, pages: int) -> None:
        """Append free pages, cleared: a masked position has weight zero, and zero times a leftover NaN would not be zero."""
        assert pages <= self.free, f"{pages} pages wanted, {self.free} free"
        owners = self._owners[span.end]
        for _ in range(pages):
            owners.append((span, len(span.places)))
            span.places.append(len(owners) - 1)
            page = self._page(span.end, len(owners) - 1)
            self._keys[:, page] = 0
            self._values[:, page] = 0

    def release(self, span: Span) -> None:
        """Free all pages of a span; the last pages of its end move into the gaps."""
        owners = self._owners[span.end]
        for place in sorted(span.places, reverse=True):
            moved, index = owners.pop()
            if place < len(owners):
                source, target = self._page(span.end, len(owners)), self._page(span.end, place)
                self._keys[:, target] = self._keys[:, source]
                self._values[:, target] = self._values[:, source]
                owners[place] = (moved, index)
                moved.places[index] = place
        span.places.clear()

    def rows(self, span: Span, start: int, stop: int) -> list[int]:
        """Where positions start ... stop - 1 of a span lie for head 0, as `write` counts; head h lies h x size further."""
        bases = [self._page(span.end, place) * self.kv_heads * self.size for place in span.places]
        return [bases[position // self.size] + position % self.size for position in range(start, stop)]

    def spread(self, rows: list[int]) -> torch.Tensor:
        """`rows` of head 0 -> those of every head [T, kv_heads]."""
        return (torch.tensor(rows, dtype=torch.int64)[:, None] + torch.arange(self.kv_heads) * self.size).to(self.device)

    def gather(self, layer: int, where: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values at `where` [T, kv_heads], each [T, kv_heads, d]."""
        keys, values = self._keys[layer], self._values[layer]
        return keys.view(-1, keys.shape[-1])[where], values.view(-1, values.shape[-1])[where]

    def save(self, span: Span, tokens: int) -> KV:
        """A copy of a span's first tokens, without pages."""
        where = self.spread(self.rows(span, 0, tokens))
        return self._flat(self._keys)[:, where], self._flat(self._values)[:, where]

    def restore(self, span: Span, kv: KV) -> None:
        """Write what `save` gave, of any page size, into the first tokens of a span that has the pages for it."""
        where = self.spread(self.rows(span, 0, kv[0].shape[1]))
        for memory, saved in zip((self._keys, self._values), kv, strict=True):
            self._flat(memory)[:, where] = saved.to(self.device)

    def _flat(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.view(len(memory), -1, memory.shape[-1])

    def write(self, layer: int, where: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v [T, kv_heads, d] at `where` [T x kv_heads], rows of the layer's memory seen as [pages x kv_heads x size, d]."""
        for memory, new in zip(self._lines[layer], (k, v), strict=True):
            memory.index_copy_(0, where, new.to(memory.dtype).reshape(len(where), -1))

    def read(self, end: End) -> KV:
        """Keys and values of one end in every layer, each a view [layers, used x kv_heads, size, d]; `slot` finds a page in it."""
        n = self.used(end)
        span = slice(0, n) if end == "front" else slice(self.pages - n, self.pages)
        return self._keys[:, span].flatten(1, 2), self._values[:, span].flatten(1, 2)

    def memory(self) -> KV:
        """All keys and values, each [layers, pages, kv_heads, size, head_dim]."""
        return self._keys, self._values

    def numbers(self, span: Span) -> list[int]:
        """The span's pages, counted from the front of the memory, as `take` wants them."""
        return [self._page(span.end, place) for place in span.places]

    def take(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values of pages [n], each [n x kv_heads, size, d]."""
        return self._keys[layer][pages].flatten(0, 1), self._values[layer][pages].flatten(0, 1)

    def slot(self, span: Span, index: int) -> int:
        """Which page of `read` the span's page `index` is."""
        place = span.places[index]
        return place if span.end == "front" else self.used("back") - 1 - place

    def _page(self, end: End, place: int) -> int:
        return place if end == "front" else self.pages - 1 - place
