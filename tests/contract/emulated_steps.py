"""The emulated engine under the step-by-step contract: time passes between two halves of a step, exactly one token's worth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.core.costs import DecodeCost, LinearCost
from paceline.engines.emulated import EmulatedEngine, EngineCosts, Lengths
from paceline.ports.rollout import Failure
from paceline.types.records import Trajectory


class Steps(EmulatedEngine):
    """A `step` waits until every trajectory has one token more; nothing but decoding takes any time."""

    def __init__(self, *, instance: str, slots: int, kv_tokens: int, versions_held: int = 1, cut: bool = False, **others: Any) -> None:
        self.now = 0.0
        costs = EngineCosts(DecodeCost(1.0, 0.0), LinearCost(0.0, 0.0), 0.0, LinearCost(0.0, 0.0))
        super().__init__(
            instance=instance, slots=slots, kv_tokens=kv_tokens, versions_held=versions_held, costs=costs, lengths=Lengths(9, 0.5, (1000,) if cut else ()),
            solved=0.5, clock=lambda: self.now, sleep=lambda seconds: None,
        )  # fmt: skip

    def step(self) -> Sequence[Trajectory | Failure]:
        ended, before = list(super().step()), self._batch.count
        while self._batch.jobs and self._batch.count == before:
            self.now += 1.0
            ended += super().step()
        return ended


def publish(directory: Path, number: int) -> str:
    """What an emulated trainer publishes after so many updates."""
    path = directory / f"updates-{number}.safetensors"
    path.write_text(f'{{"applied": {number}}}')
    return str(path)
