"""AdamW over master weights: one scaling of the raw gradient sums, then clipping, then the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from paceline.config.schema import TrainerConfig
from paceline.types.errors import CheckpointError

_MOMENTS = ("exp_avg", "exp_avg_sq")
BLOCK = 2**19
"""Numbers of a weight that are moved together: with gradient and moments a few megabytes."""


def learning_rate(config: TrainerConfig, update: int, total_updates: int) -> float:
    """Rate of the 1-based `update`; skipped updates count too.

    Warm-up: update / warmup_updates of the full rate, so that the first update already moves. Afterwards constant, or falling
    from 1 towards 0 over the rest (`linear`, `cosine`), the last update still above 0.
    """
    if update <= config.warmup_updates:
        return config.learning_rate * update / config.warmup_updates
    rest = max(total_updates - config.warmup_updates, 1)
    progress = min((update - 1 - config.warmup_updates) / rest, 1.0)
    factor = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[config.decay]
    return config.learning_rate * factor


class Optimizer:
    """Holds the moments of named master weights. Weight decay leaves vectors (norms, biases) alone."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], config: TrainerConfig) -> None:
        self._parameters = dict(parameters)
        self._config = config
        self._state: dict[str, dict[str, torch.Tensor]] = {}
        """Of each weight: its moments, and how often it was stepped. Empty before the first step."""

    def norm(self, denominator: float) -> float:
        """Euclidean norm of the whole gradient after division by `denominator`; NaN or infinite if any entry is."""
        rows = [torch.linalg.vector_norm(p.grad, dim=-1).flatten() for p in self._parameters.values() if p.grad is not None]
        # Rows first: one long sum in float32 stops growing at some size, and runs on one thread.
        return float(torch.linalg.vector_norm(torch.cat(rows), dtype=torch.float64)) / denominator if rows else 0.0

    @torch.no_grad()
    def step(self, rate: float, denominator: float, norm: float) -> None:
        """Divide the raw sums by `denominator`, clip the result (whose norm is `norm`) to clip_norm, step at `rate`, clear gradients.

        A rate of 0 leaves weights and moments bit for bit as they are. A weight without a gradient has one of zeros.
        """
        if rate > 0:
            scale = (min(1.0, self._config.clip_norm / norm) if norm > 0 else 1.0) / denominator
            for name, weight in self._parameters.items():
                self._move(weight, self._state.get(name) or self._begin(name, weight), rate, scale)
                # The fused kernel writes without counting versions, by which models know that copies made of a weight are stale.
                torch.autograd.graph.increment_version(weight)
        self.clear()

    def _begin(self, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        steps = torch.zeros((), dtype=torch.float32, device=weight.device)
        self._state[name] = state = {kind: torch.zeros_like(weight) for kind in _MOMENTS} | {"step": steps}
        return state

    def _move(self, weight: torch.Tensor, state: Mapping[str, torch.Tensor], rate: float, scale: float) -> None:
        """AdamW on one weight, block by block: a block's scaled gradient stays in the processor's cache, and the raw one is only read."""
        state["step"].add_(1)
        betas, decay = self._config.betas, self._config.weight_decay if weight.ndim >= 2 else 0.0
        gradient = weight.new_zeros(()).expand_as(weight) if weight.grad is None else weight.grad
        written = (tensor.view(-1).split(BLOCK) for tensor in (weight, *(state[kind] for kind in _MOMENTS)))
        for raw, values, first, second in zip(gradient.reshape(-1).split(BLOCK), *written, strict=True):
            torch._fused_adamw_(
                [values], [raw * scale], [first], [second], [], [state["step"]], lr=rate, beta1=betas[0], beta2=betas[1],
                weight_decay=decay, eps=self._config.eps, amsgrad=False, maximize=False,
            )  # fmt: skip

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def moments(self) -> dict[str, torch.Tensor]:
        """The whole state by `weight/kind`; empty before the first step."""
        return {f"{name}/{kind}": tensor for name, state in self._state.items() for kind, tensor in state.items()}

    def restore(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Take a state that `moments` gave, or none at all; CheckpointError if it belongs to other weights."""
        if moments:
            self._require_fit(moments)
        self._state = {}
        for name, weight in self._parameters.items() if moments else ():
            for kind, tensor in self._begin(name, weight).items():
                tensor.copy_(moments[f"{name}/{kind}"])

    def _require_fit(self, moments: Mapping[str, torch.Tensor]) -> None:
        expected = {f"{name}/{kind}": p.shape for name, p in self._parameters.items() for kind in _MOMENTS}
        found = {name: tensor.shape for name, tensor in moments.items() if not name.endswith("/step")}
        if found != expected:
            odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            raise CheckpointError(f"optimizer state does not fit the weights: {len(odd)} differ, e.g. {odd[0]!r}")
