"""The slim decoder without gradients, by compiled kernels: rounded where torch's operators round, and with few calls per layer.

What a step costs at small batches is calls, so the layers are looked up once (`_Layer`) and again only after weights have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.models.kernels import lookup
from paceline.models.packed import Attend
from paceline.native.calls import DTYPES, Kernels
from paceline.types.errors import ModelError

if TYPE_CHECKING:
    from paceline.models.slim import SlimDecoder

Product = Callable[[torch.Tensor], torch.Tensor]
_ANGLES = 64
"""Positions whose angles are made together, always as many: then the bits of a position's do not depend on others."""


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


class ServedDecoder:
    """`PackedModel` over the weights of a slim decoder, which stays as it is and may serve others beside."""

    def __init__(self, decoder: SlimDecoder, kernels: Kernels) -> None:
        """ModelError where device or dtype are not the kernels'."""
        self.shape, self.compute = decoder.shape, decoder.compute
        self._decoder, self._kernels = decoder, kernels
        self._holders: Sequence[nn.Module] = [module for module in decoder.modules() if module._parameters]
        self._key: list[tuple[int, int]] = []
        self._layers: list[_Layer] = []
        self._cos = self._sin = torch.empty(0, 1, self.shape.head_dim)
        self._check()
        self.alike = all(kernels.multiplies(tensor) for tensor in decoder.parameters() if tensor.dim() == 2)
        """Whether the bits of a row depend on that row alone, however many run together."""

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """As `PackedModel`."""
        layers = self._current()
        kernels, eps, body = self._kernels, self._decoder.spec.eps, self._decoder.model
        heads, kv_heads, d = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        cos, sin = self._angles(positions)
        x = lookup(ids, body.embed_tokens.weight, self._decoder.spec.padding_id, self.compute)
        added: torch.Tensor | None = None
        for layer in layers:
            rows = layer.qkv(kernels.add_norm(x, added, layer.before, eps)).view(x.shape[0], -1, d)
            kernels.place(rows, layer.norms, eps, cos, sin, heads, kv_heads)
            attended = attend(layer.number, *torch.split(rows, [heads, kv_heads, kv_heads], dim=1))
            added = layer.out(attended.reshape(x.shape[0], -1).contiguous())
            inner = layer.gate_up(kernels.add_norm(x, added, layer.after, eps))
            added = layer.down(kernels.gate(inner))
        return kernels.add_norm(x, added, body.norm.weight, eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `PackedModel`."""
        return self._decoder.head.served(self._kernels)(hidden.contiguous())

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """As `PackedModel`."""
        return self._decoder.named_parameters()

    def load_tensors(self, path: Path) -> str:
        """As `PackedModel`."""
        return self._decoder.load_tensors(path)

    def _current(self) -> list[_Layer]:
        """The layers as their weights are now: as elsewhere, the address and the version counter of each tell whether one has changed."""
        found = [
            (tensor.data_ptr(), tensor._version) for holder in self._holders for tensor in holder._parameters.values() if tensor is not None
        ]
        if found != self._key:
            self._check()
            self._layers = []  # their memory serves the next ones
            self._layers = [self._layer(number, block) for number, block in enumerate(self._decoder.model.layers)]
            self._key = found
        return self._layers

    def _check(self) -> None:
        """Kernels get addresses: what lies there must be what they take it for."""
        for name, tensor in self._decoder.named_parameters():
            fits = tensor.device.type == "cpu" and tensor.dtype == self.compute and self.compute in DTYPES and tensor.is_contiguous()
            if not fits or tensor.is_inference() or tensor.requires_grad:
                raise ModelError(
                    f"{name}: compiled kernels read frozen weights of a CPU in the dtype that is computed in, bfloat16 or float32; "
                    f"this is {tensor.dtype} on {tensor.device}, computed in {self.compute}"
                )

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

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `SlimDecoder.angles`, from a table that grows."""
        while (known := len(self._cos)) <= int(positions.max()):
            cos, sin = self._decoder.angles(torch.arange(known, known + _ANGLES))
            self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
