"""The slim decoder without gradients, by compiled kernels: rounded where torch's operators round, and with few calls per layer.

What a step costs at small batches is calls, so the layers are looked up once (`_Layer`) and again only after weights have changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.models.packed import Attend, Shape
from paceline.native.calls import Kernels

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, as kernels read them."""

    number: int
    before: torch.Tensor
    qkv: Product
    norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Product
    after: torch.Tensor
    gate_up: Product
    down: Product


class Served:
    """Layers and last norm of a slim decoder."""

    def __init__(self, body: Any, shape: Shape, eps: float, kernels: Kernels) -> None:
        """body: `slim.Body`."""
        self._body, self._shape, self._eps, self._kernels = body, shape, eps, kernels
        self._holders: Sequence[nn.Module] = [module for module in body.modules() if module._parameters]
        self._key: list[tuple[int, int]] = []
        self._layers: list[_Layer] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Served:
        """That of the copied body; panels are made again."""
        return Served(copy.deepcopy(self._body, memo), self._shape, self._eps, self._kernels)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x [T, width] of looked-up tokens, which is written to; cos and sin as `kernels.rotate` -> hidden states [T, width]."""
        kernels, eps, (heads, kv_heads, d) = self._kernels, self._eps, (self._shape.heads, self._shape.kv_heads, self._shape.head_dim)
        added: torch.Tensor | None = None
        for layer in self._current():
            rows = layer.qkv(kernels.add_norm(x, added, layer.before, eps)).view(x.shape[0], -1, d)
            kernels.place(rows, layer.norms, eps, cos, sin, heads, kv_heads)
            attended = attend(layer.number, *torch.split(rows, [heads, kv_heads, kv_heads], dim=1))
            added = layer.out(attended.reshape(x.shape[0], -1))
            inner = layer.gate_up(kernels.add_norm(x, added, layer.after, eps))
            added = layer.down(kernels.gate(inner))
        return kernels.add_norm(x, added, self._body.norm.weight, eps)

    def _current(self) -> list[_Layer]:
        """The layers as their weights are now: as elsewhere, the address and the version counter of each tell whether one has changed."""
        found = [
            (tensor.data_ptr(), tensor._version) for holder in self._holders for tensor in holder._parameters.values() if tensor is not None
        ]
        if found != self._key:
            self._layers = []  # their memory serves the next ones
            self._layers, self._key = [self._layer(number, block) for number, block in enumerate(self._body.layers)], found
        return self._layers

    def _layer(self, number: int, block: Any) -> _Layer:
        attention, mlp, kernels = block.self_attn, block.mlp, self._kernels
        return _Layer(
            number=number,
            before=block.input_layernorm.weight,
            qkv=attention.qkv.served(kernels),
            norms=(attention.q_norm.weight, attention.k_norm.weight) if attention.q_norm is not None else None,
            out=attention.out.served(kernels),
            after=block.post_attention_layernorm.weight,
            gate_up=mlp.gate_up.served(kernels),
            down=mlp.down.served(kernels),
        )
