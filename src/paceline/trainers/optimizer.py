"""AdamW over master weights: one scaling of the raw gradient sums, then clipping, then the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from paceline.config.schema import TrainerConfig
from paceline.types.errors import CheckpointError

_MOMENTS = ("exp_avg", "exp_avg_sq")


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
        self._clip_norm = config.clip_norm
        matrices = [p for p in self._parameters.values() if p.ndim >= 2]
        vectors = [p for p in self._parameters.values() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW([g for g in groups if g["params"]], betas=config.betas, eps=config.eps, fused=True)

    def norm(self, denominator: float) -> float:
        """Euclidean norm of the whole gradient after division by `denominator`; NaN or infinite if any entry is."""
        # Rows first: one long sum of squares in float32 stops growing at some size, and is the work of one thread.
        rows = [torch.linalg.vector_norm(p.grad, dim=-1).flatten() for p in self._parameters.values() if p.grad is not None]
        return float(torch.linalg.vector_norm(torch.cat(rows), dtype=torch.float64)) / denominator if rows else 0.0

    def step(self, rate: float, denominator: float, norm: float) -> None:
        """Divide the raw sums by `denominator`, clip the result (whose norm is `norm`) to clip_norm, step at `rate`, clear gradients.

        A rate of 0 leaves weights and moments bit for bit as they are.
        """
        if rate > 0:
            factor = min(1.0, self._clip_norm / norm) if norm > 0 else 1.0
            for parameter in self._parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.mul_(factor / denominator)
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
            for parameter in self._parameters.values():
                # The fused kernel writes without counting versions, by which models know that copies made of a weight are stale.
                torch.autograd.graph.increment_version(parameter)
        self.clear()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def moments(self) -> dict[str, torch.Tensor]:
        """The whole state by `weight/kind`; empty before the first step."""
        state = self._adam.state
        return {
            f"{name}/{kind}": state[parameter][kind]
            for name, parameter in self._parameters.items()
            if parameter in state
            for kind in (*_MOMENTS, "step")
        }

    def restore(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Take a state that `moments` gave, or none at all; CheckpointError if it belongs to other weights."""
        if moments:
            self._require_fit(moments)
        self._adam.state.clear()
        for name, parameter in self._parameters.items() if moments else ():
            kinds = {kind: moments[f"{name}/{kind}"] for kind in (*_MOMENTS, "step")}
            self._adam.state[parameter] = {kind: tensor.clone().to(parameter.device) for kind, tensor in kinds.items()}

    def _require_fit(self, moments: Mapping[str, torch.Tensor]) -> None:
        expected = {f"{name}/{kind}": p.shape for name, p in self._parameters.items() for kind in _MOMENTS}
        found = {name: tensor.shape for name, tensor in moments.items() if not name.endswith("/step")}
        if found != expected:
            odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            raise CheckpointError(f"optimizer state does not fit the weights: {len(odd)} differ, e.g. {odd[0]!r}")
