"""The slim decoder without gradients, by compiled kernels: rounded where torch's operators round, and with few calls per layer.

What a step costs at small batches is calls, so a layer is two of them beside its attention, and the layers are looked up once and again
only after weights have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.models.kernels import Projection, lookup
from paceline.models.packed import Attend
from paceline.native.calls import DTYPES, Kernels
from paceline.native.layers import LayerWeights, Pass
from paceline.types.errors import ModelError

if TYPE_CHECKING:
    from paceline.models.slim import SlimDecoder

Product = Callable[[torch.Tensor], torch.Tensor]
_ANGLES = 64
"""Positions whose angles are made together, always as many: then the bits of a position's do not depend on others."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Weights of one layer whose products a library makes, at least one of them."""

    before: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor] | None
    qkv: Product
    out: Product
    after: torch.Tensor
    gate_up: Product
    down: Product


class _PassInParts:
    """As `native.layers.Pass`, step by step."""

    def __init__(
        self, kernels: Kernels, x: torch.Tensor, layer: _Parts, heads: tuple[int, int, int], cos: torch.Tensor, sin: torch.Tensor,
        eps: float,
    ) -> None:  # fmt: skip
        self._kernels, self._x, self._heads, self._cos, self._sin, self._eps = kernels, x, heads, cos, sin, eps
        self._added: torch.Tensor | None = None

    def enter(self, layer: _Parts) -> tuple[torch.Tensor, ...]:
        """As there."""
        heads, kv_heads, d = self._heads
        rows = layer.qkv(self._kernels.add_norm(self._x, self._added, layer.before, self._eps)).view(len(self._x), -1, d)
        self._kernels.place(rows, layer.norms, self._eps, self._cos, self._sin, heads, kv_heads)
        return torch.split(rows, [heads, kv_heads, kv_heads], dim=1)

    def leave(self, layer: _Parts, attended: torch.Tensor) -> None:
        """As there."""
        added = layer.out(attended.reshape(len(attended), -1).contiguous())
        inner = layer.gate_up(self._kernels.add_norm(self._x, added, layer.after, self._eps))
        self._added = layer.down(self._kernels.gate(inner))

    def end(self, weight: torch.Tensor) -> torch.Tensor:
        """As there."""
        return self._kernels.add_norm(self._x, self._added, weight, self._eps)


class ServedDecoder:
    """`PackedModel` over the weights of a slim decoder, which stays as it is and may serve others beside."""

    def __init__(self, decoder: SlimDecoder, kernels: Kernels) -> None:
        """ModelError where device or dtype are not the kernels'."""
        self.shape, self.compute = decoder.shape, decoder.compute
        self._decoder, self._kernels = decoder, kernels
        self._holders: Sequence[nn.Module] = [module for module in decoder.modules() if module._parameters]
        self._key: list[tuple[int, int]] = []
        self._layers: list[LayerWeights] | list[_Parts] = []
        self._cos = self._sin = torch.empty(0, 1, self.shape.head_dim)
        self._check()
        self.alike = all(kernels.multiplies(tensor) for tensor in decoder.parameters() if tensor.dim() == 2)
        """Whether the bits of a row depend on that row alone, however many run together."""

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """As `PackedModel`."""
        layers, body, eps = self._current(), self._decoder.model, self._decoder.spec.eps
        heads = (self.shape.heads, self.shape.kv_heads, self.shape.head_dim)
        x = lookup(ids, body.embed_tokens.weight, self._decoder.spec.padding_id, self.compute)
        run: Any = _PassInParts if isinstance(layers[0], _Parts) else Pass
        rows = run(self._kernels, x, layers[0], heads, *self._angles(positions), eps)
        for number, layer in enumerate(layers):
            rows.leave(layer, attend(number, *rows.enter(layer)))
        result: torch.Tensor = rows.end(body.norm.weight)
        return result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `PackedModel`."""
        return self._decoder.head.served(self._kernels)(hidden.contiguous())

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """As `PackedModel`."""
        return self._decoder.named_parameters()

    def load_tensors(self, path: Path) -> str:
        """As `PackedModel`."""
        return self._decoder.load_tensors(path)

    def _current(self) -> list[LayerWeights] | list[_Parts]:
        """The layers as their weights are now: as elsewhere, the address and the version counter of each tell whether one has changed."""
        found = [
            (tensor.data_ptr(), tensor._version) for holder in self._holders for tensor in holder._parameters.values() if tensor is not None
        ]
        if found != self._key:
            self._check()
            self._layers = []  # their memory serves the next ones
            self._layers = self._read()
            self._key = found
        return self._layers

    def _check(self) -> None:
        """Kernels get addresses: what lies there must be what they take it for."""
        for name, tensor in self._decoder.named_parameters():
            fits = tensor.device.type == "cpu" and tensor.dtype == self.compute and self.compute in DTYPES
            how = {"with gaps": not tensor.is_contiguous(), "of inference mode": tensor.is_inference(), "that trains": tensor.requires_grad}
            if not fits or any(how.values()):
                raise ModelError(
                    f"{name}: compiled kernels read frozen weights of a CPU, without gaps, in the dtype that is computed in, bfloat16 or "
                    f"float32; this is {tensor.dtype} on {tensor.device}{''.join(f', {what}' for what, so in how.items() if so)}, "
                    f"computed in {self.compute}"
                )

    def _read(self) -> list[LayerWeights] | list[_Parts]:
        """Whole layers by kernels, if these multiply by all matrices."""
        blocks: list[Any] = list(self._decoder.model.layers)
        panels = [[one.panels(self._kernels) for one in _matrices(block)] for block in blocks]
        if any(one is None for row in panels for one in row):
            return [_Parts(*_with_norms(block, [one.served(self._kernels) for one in _matrices(block)])) for block in blocks]
        return [LayerWeights(*_with_norms(block, row)) for block, row in zip(blocks, panels, strict=True)]

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `SlimDecoder.angles`, from a table that grows."""
        while (known := len(self._cos)) <= int(positions.max()):
            cos, sin = self._decoder.angles(torch.arange(known, known + _ANGLES))
            self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def _matrices(block: Any) -> tuple[Projection, Projection, Projection, Projection]:
    """Of a layer, in the order in which rows meet them."""
    return block.self_attn.qkv, block.self_attn.out, block.mlp.gate_up, block.mlp.down


def _with_norms(block: Any, matrices: Sequence[Any]) -> tuple[Any, ...]:
    """A layer's norms and matrices, as `LayerWeights` and `_Parts` take them."""
    qkv, out, gate_up, down = matrices
    attention = block.self_attn
    norms = (attention.q_norm.weight, attention.k_norm.weight) if attention.q_norm is not None else None
    return block.input_layernorm.weight, norms, qkv, out, block.post_attention_layernorm.weight, gate_up, down
