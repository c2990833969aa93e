"""What a trainer computes with given tokens, for an engine's weights to be compared with, and how much of it rounding takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.algo.logprobs import Scorer, token_logprobs
from paceline.models.attend import causal, compiled_for
from paceline.models.packed import Attend, PackedModel, Tunable
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
    """How far log-probs were from those of another order of sums, and which."""

    ids: tuple[int, ...]
    logprobs: torch.Tensor
    mean: float


class Probing:
    """Scores tokens by a model's present weights: as an engine reads a prompt, by the same functions."""

    def __init__(self, model: PackedModel, device: torch.device, chunk: int, kernels: Kernels | None) -> None:
        """chunk: rows of logits at a time."""
        self._model, self._device, self._chunk, self._kernels = model, device, chunk, kernels
        self._measured: _Rounding | None = None

    @property
    def by(self) -> str:
        """As `ProbeReport.by`."""
        kernels, compute, shape = self._kernels, self._model.compute, self._model.shape
        if kernels is None or not isinstance(self._model, Tunable) or not compiled_for(compute, shape.head_dim):
            return ""
        matrices = [weight for _, weight in self._model.named_parameters() if weight.dim() == 2 and len(weight) != shape.vocabulary]
        alike = all(kernels.trains((len(weight), weight.shape[1]), weight.dtype, compute) for weight in matrices)
        return kernels.name if alike else ""

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Of ids[1:] at temperature 1 in the model's compute dtype, [n - 1]."""
        return self._logprobs(ids, causal([len(ids)], self._model.shape.scale, self._kernels))

    def rounding(self, ids: Sequence[int], logprobs: torch.Tensor) -> float:
        """Mean distance of `logprobs` of ids[1:] from those that another attention gives, nats: both are exact but for the order and the
        rounding of their sums. 0 for a model that computes in float32 or wider.

        It changes with the weights, and much more slowly: measured anew only once the log-probs have moved by STILL.
        """
        known = self._measured
        if torch.promote_types(self._model.compute, torch.float32) == self._model.compute:
            return 0.0
        if known is None or known.ids != tuple(ids) or not float((logprobs - known.logprobs).abs().mean()) <= STILL:
            scale = self._model.shape.scale
            if self._kernels is None:
                other = block_attend([Block(len(ids), ())], scale, self._device, library=False)
            else:
                other = causal([len(ids)], scale)
            known = self._measured = _Rounding(tuple(ids), logprobs, float((logprobs - self._logprobs(ids, other)).abs().mean()))
        return known.mean

    @torch.no_grad()
    def _logprobs(self, ids: Sequence[int], attend: Attend) -> torch.Tensor:
        tokens = torch.tensor(list(ids), device=self._device)
        hidden = self._model.hidden(tokens, torch.arange(len(ids), device=self._device), attend)
        return token_logprobs(hidden[:-1], tokens[1:], self._model.logits, chunk=self._chunk, scorer=scorer(self._model)).logp
