"""A trainer that takes its time and learns nothing: for load tests of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.costs import LinearCost
from paceline.ports.fakes.training import FakeTrainer
from paceline.types.progress import UpdateReport
from paceline.types.records import ScoredGroup
from paceline.types.weights import WeightsRef


@dataclass(frozen=True, slots=True)
class TrainerCosts:
    """How long a trainer takes, in seconds of its clock."""

    accumulate: LinearCost
    """Forward and backward, by tokens: a prompt once per group, and every sampled one."""
    step: float
    """An optimizer step."""
    publish: float
    """Writing a version."""


class EmulatedTrainer(FakeTrainer):
    """`Trainer`, `Publishes` and `Checkpoints` of the fake one, each as long as a cost model says."""

    def __init__(self, costs: TrainerCosts, sleep: Callable[[float], None], *, nonfinite_limit: int = 3) -> None:
        super().__init__(nonfinite_limit=nonfinite_limit)
        self._costs = costs
        self._sleep = sleep

    def accumulate(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Count whole groups, as long as their tokens take."""
        metrics = super().accumulate(groups)
        prompts = sum(len(group.prompt.ids) for group in groups)
        self._sleep(self._costs.accumulate.seconds(prompts + metrics["tokens"]))
        return metrics

    def step(self) -> UpdateReport:
        """Count an update."""
        self._sleep(self._costs.step)
        return super().step()

    def publish(self, version: int, location: str) -> WeightsRef:
        """Write a small file that stands for the weights."""
        self._sleep(self._costs.publish)
        return super().publish(version, location)
