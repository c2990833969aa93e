"""What runs inside rollout and trainer workers: an engine or a trainer behind calls and ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.ports.rollout import Cancels, Engine, Failure, HoldsWeights, MovesState
from paceline.ports.training import Checkpoints, Publishes, Trainer
from paceline.types.records import Trajectory


class RolloutEngine(Engine, Cancels, HoldsWeights, MovesState, Protocol):
    """All that a rollout worker needs of its engine."""


class FullTrainer(Trainer, Publishes, Checkpoints, Protocol):
    """All that a trainer worker needs of its trainer."""


class RolloutBody:
    """Steps the engine while it has work; what ends is a report."""

    METHODS = frozenset({"submit", "abort", "load", "probe", "info", "load_state", "hand_over", "take_in"})

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call between two steps."""
        assert method in self.METHODS, f"a rollout worker has no method {method}"
        return getattr(self._engine, method)(*arguments)

    def tick(self) -> Sequence[Trajectory | Failure] | None:
        """One engine step; None when it has nothing to do."""
        ended = self._engine.step()
        if ended:
            return ended
        load = self._engine.load_state()
        return () if load.running or load.waiting else None

    def close(self) -> None:
        """Nothing outlives the process."""


class TrainerBody:
    """Answers calls; a trainer has no work of its own."""

    METHODS = frozenset({"accumulate", "step", "publish", "probe", "save", "restore", "export"})

    def __init__(self, trainer: FullTrainer) -> None:
        self._trainer = trainer

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call."""
        assert method in self.METHODS, f"a trainer worker has no method {method}"
        return getattr(self._trainer, method)(*arguments)

    def tick(self) -> Sequence[Any] | None:
        """Nothing to do."""
        return None

    def close(self) -> None:
        """Nothing outlives the process."""
