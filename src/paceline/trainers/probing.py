"""What a trainer computes with given tokens, for an engine's weights to be compared with, and how much of it rounding takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.algo.logprobs import Scorer, token_logprobs
from paceline.models.packed import PackedModel, Tunable
from paceline.native.calls import Kernels
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block

STILL = 0.25
"""Nats: while the log-probs have moved by less, on average, their rounding is taken for what it was."""


def scorer(model: PackedModel) -> Scorer | None:
    """What a model has for log-probs, beside its logits."""
    return model.scores if isinstance(model, Tunable) else None


@dataclass(frozen=True, slots=True)
class _Rounding:
    """How far log-probs were from those in float32, and which."""

    ids: tuple[int, ...]
    logprobs: torch.Tensor
    mean: float


class Probing:
    """Scores tokens by a model's present weights, packed as in an update."""

    def __init__(self, model: PackedModel, device: torch.device, chunk: int, kernels: Kernels | None) -> None:
        """chunk: rows of logits at a time."""
        self._model, self._device, self._chunk, self._kernels = model, device, chunk, kernels
        self._measured: _Rounding | None = None

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Of ids[1:] at temperature 1 in the model's present compute dtype, [n - 1]."""
        tokens = torch.tensor(list(ids), device=self._device)
        attend = block_attend([Block(len(ids), ())], self._model.shape.scale, self._device, kernels=self._kernels)
        hidden = self._model.hidden(tokens, torch.arange(len(ids), device=self._device), attend)
        return token_logprobs(hidden[:-1], tokens[1:], self._model.logits, chunk=self._chunk, scorer=scorer(self._model)).logp

    def rounding(self, ids: Sequence[int], logprobs: torch.Tensor) -> float:
        """Mean distance of `logprobs` of ids[1:] from those in float32, nats; 0 for a model that computes in that or wider.

        It changes with the weights, and much more slowly: measured anew only once the log-probs have moved by STILL, for it takes longer
        than the log-probs themselves.
        """
        serving, known = self._model.compute, self._measured
        wide = torch.promote_types(serving, torch.float32)
        if wide == serving:
            return 0.0
        if known is None or known.ids != tuple(ids) or not float((logprobs - known.logprobs).abs().mean()) <= STILL:
            try:
                self._model.compute = wide
                known = self._measured = _Rounding(tuple(ids), logprobs, float((logprobs - self.logprobs(ids)).abs().mean()))
            finally:
                self._model.compute = serving
        return known.mean
