"""What runs inside rollout and trainer workers: an engine or a trainer behind calls and ticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

from paceline.ports.pool import Nap
from paceline.ports.rollout import Cancels, Engine, EngineLoad, Failure, HoldsWeights, MovesState
from paceline.ports.training import Checkpoints, Publishes, Trainer
from paceline.types.progress import ProbeReport
from paceline.types.records import Trajectory
from paceline.types.weights import Unfinished, WeightsRef


class RolloutEngine(Engine, Cancels, HoldsWeights, MovesState, Protocol):
    """All that a rollout worker needs of its engine."""


class FullTrainer(Trainer, Publishes, Checkpoints, Protocol):
    """All that a trainer worker needs of its trainer."""


class RolloutBody:
    """Steps the engine while it has work, and times the steps; what ends is a report."""

    METHODS = frozenset({"submit", "abort", "info", "hand_over", "take_in"})

    def __init__(self, engine: RolloutEngine, clock: Callable[[], float] = perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._tokens = self._steps = 0
        self._seconds = 0.0

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call between two steps."""
        if method == "serve":
            return self._serve(*arguments)
        if method == "load_state":
            return self._load_state()
        assert method in self.METHODS, f"a rollout worker has no method {method}"
        return getattr(self._engine, method)(*arguments)

    def _load_state(self) -> EngineLoad:
        return replace(self._engine.load_state(), steps=self._steps, seconds=self._seconds)

    def _serve(
        self, ref: WeightsRef, location: str, unfinished: Unfinished, replaces: int | None, probe_ids: Sequence[int]
    ) -> tuple[str, ProbeReport]:
        """Load and probe in one: no token is sampled before the weights can be compared."""
        return self._engine.load(ref, location, unfinished, replaces), self._engine.probe(probe_ids, ref.version)

    def tick(self) -> Nap | Sequence[Trajectory | Failure] | None:
        """One engine step; None when it has nothing to do."""
        started = self._clock()
        ended = self._engine.step()
        seconds, load = self._clock() - started, self._engine.load_state()
        if load.tokens > self._tokens:
            self._tokens, self._steps, self._seconds = load.tokens, self._steps + 1, self._seconds + seconds
        if ended:
            return ended
        return () if load.running or load.waiting else None

    def close(self) -> None:
        """Nothing outlives the process."""


class PausingEngine(RolloutEngine, Protocol):
    """An engine that knows for how long it has nothing to say."""

    def pause(self) -> float | None:
        """Seconds until the next `step` can return something; None = only after a call."""


class PausingBody(RolloutBody):
    """Sleeps between two ends of trajectories."""

    def __init__(self, engine: PausingEngine) -> None:
        super().__init__(engine)
        self._pause = engine.pause

    def _load_state(self) -> EngineLoad:
        """Between two looks such an engine takes many steps, which it counts itself."""
        return self._engine.load_state()

    def tick(self) -> Nap | Sequence[Trajectory | Failure] | None:
        """What ended since, and when to ask again."""
        ended = self._engine.step()
        seconds = self._pause()
        return (ended or None) if seconds is None else Nap(seconds, ended)


class TrainerBody:
    """Answers calls; a trainer has no work of its own."""

    METHODS = frozenset({"accumulate", "step", "save", "restore", "export"})

    def __init__(self, trainer: FullTrainer) -> None:
        self._trainer = trainer

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call."""
        if method == "publish":
            return self._publish(*arguments)
        assert method in self.METHODS, f"a trainer worker has no method {method}"
        return getattr(self._trainer, method)(*arguments)

    def _publish(self, version: int, location: str, probe_ids: Sequence[int]) -> tuple[WeightsRef, ProbeReport]:
        """Write and probe in one: no step moves the weights in between."""
        return self._trainer.publish(version, location), self._trainer.probe(probe_ids)

    def tick(self) -> Sequence[Any] | None:
        """Nothing to do."""
        return None

    def close(self) -> None:
        """Nothing outlives the process."""
