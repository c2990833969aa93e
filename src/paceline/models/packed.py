"""The seam between models and those who run them: linear layers over packed rows, attention supplied by the caller.

A packed model never knows batches, padding or caches. It runs T rows of tokens through its layers and, at each
attention, calls `attend(layer, q, k, v)`. The engine's attend reads and writes a KV cache, the trainer's attends
per response over (shared prompt, own tokens); both run the same linear kernels, so both share numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from paceline.native.calls import Kernels

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [T, heads, d], k [T, kv_heads, d], v [T, kv_heads, d]) -> [T, heads, d]; q and k are rotated, not yet scaled:
the attention multiplies scores by `Shape.scale`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder that caches, budgets and kernels need."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    max_positions: int
    scale: float
    parameters: int
    """Weights, tied ones counted once."""


class PackedModel(Protocol):
    """A causal decoder over packed rows."""

    shape: Shape
    compute: torch.dtype
    """Of activations and products; may be another one from call to call where the stored weights are not of it."""

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """ids [T] int64, positions [T] int64 -> final hidden states after the last norm [T, width], compute dtype."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, width] -> [N, vocabulary] in float32 (float64 for a float64 model)."""

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Parameters under their Hugging Face names, tied ones once."""

    def load_tensors(self, path: Path) -> str:
        """Copy a safetensors file into the weights in place, every packed copy included; return `fingerprint` of what lies in them."""


@runtime_checkable
class Tunable(Protocol):
    """A model that can train with less memory or in less time."""

    def tune(self, *, layers_again: bool, compiled: bool, kernels: Kernels | None) -> None:
        """layers_again: keep each layer's input only, and compute the layer again in the backward pass; no bit changes. compiled: run it
        through torch.compile; ModelError where this machine cannot. kernels: take these on the CPU. Both change results by rounding."""

    def scores(
        self, hidden: torch.Tensor, ids: torch.Tensor, temperature: float, *, entropy: bool, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As `algo.logprobs.Scorer`."""


class Served(PackedModel, Protocol):
    """The same weights by compiled kernels. Results differ by rounding."""

    alike: bool
    """Whether the bits of a row depend on that row alone, however many run together."""


@runtime_checkable
class Serving(Protocol):
    """A model that can also run by compiled kernels."""

    def served(self, kernels: Kernels) -> Served:
        """A view of its weights; ModelError where device or dtype are not the kernels'."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with what surrounds it on disk."""

    model: PackedModel
    directory: Path
    """Hugging Face directory it was loaded from."""
    eos_ids: tuple[int, ...]
    """Every end-of-sequence id named by config.json, generation_config.json and the tokenizer."""
    pad_id: int
