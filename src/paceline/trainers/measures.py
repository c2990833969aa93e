"""Metrics that add up: over micro-batches to a dispatch, over dispatches to an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from paceline.algo.correction import effective_share


@dataclass(slots=True)
class Measures:
    """Weighted means by name; names that end in /min or /max keep the extreme; `seconds` add up."""

    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    extremes: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    fresh: list[np.ndarray] = field(default_factory=list)
    """|behaviour - learner| log-probs of trajectories sampled from exactly the present weights, nats."""
    moved: list[np.ndarray] = field(default_factory=list)
    """The same of those with tokens from earlier weights, where a difference is real."""

    def add(self, metrics: Mapping[str, float], weight: float) -> None:
        """Count means over `weight` tokens (or groups)."""
        for name, value in metrics.items():
            if name.endswith(("/min", "/max")):
                choose = min if name.endswith("/min") else max
                self.extremes[name] = choose(self.extremes.get(name, value), value)
            else:
                self.sums[name] = self.sums.get(name, 0.0) + value * weight
                self.weights[name] = self.weights.get(name, 0.0) + weight

    def spend(self, name: str, seconds: float) -> None:
        """Add wall time under `seconds/name`."""
        self.seconds[f"seconds/{name}"] = self.seconds.get(f"seconds/{name}", 0.0) + seconds

    def merge(self, other: Measures) -> None:
        """Count everything that others measured too."""
        for name, value in other.sums.items():
            weight = other.weights[name]
            self.add({name: value / weight if weight else 0.0}, weight)
        self.add(other.extremes, 0)
        for name, seconds in other.seconds.items():
            self.spend(name.removeprefix("seconds/"), seconds)
        self.fresh += other.fresh
        self.moved += other.moved

    def values(self) -> dict[str, float]:
        """Everything by name; docs/design/trainer.md says what each means."""
        means = {name: value / self.weights[name] for name, value in self.sums.items() if self.weights[name]}
        square = means.pop("correction/weight_square/mean", None)
        if square is not None:
            means["correction/effective_share"] = effective_share(means["correction/weight/mean"], square)
        return means | self.extremes | self.seconds | self._gaps()

    def gap(self) -> float | None:
        """Mean absolute difference engine to trainer on fresh tokens, nats; None without any."""
        fresh = np.concatenate(self.fresh) if self.fresh else np.zeros(0)
        return float(fresh.mean()) if fresh.size else None

    def _gaps(self) -> dict[str, float]:
        fresh = np.concatenate([np.zeros(0), *self.fresh])
        every = np.concatenate([fresh, *self.moved])
        metrics = {"logprob_gap/tokens": float(fresh.size)}
        if fresh.size:
            metrics |= {
                "logprob_gap/mean": float(fresh.mean()),
                "logprob_gap/p99": float(np.quantile(fresh, 0.99)),
                "logprob_gap/max": float(fresh.max()),
            }
        if every.size:
            metrics |= {
                "sampling/sampling_logp_difference/mean": float(every.mean()),
                "sampling/sampling_logp_difference/max": float(every.max()),
            }
        return metrics
