"""Weights from the trainer to the instances: performs Publish, LoadWeights and Retire, and compares both ends (rule 7).

Version 0 takes the same path as every later one. What arrives is checksummed where it is computed with, and the instance scores the
probe tokens through its serving path; both values go into WeightsLive beside the trainer's, and the rules judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.commands import LoadWeights, Publish, Retire
from paceline.core.events import Event, Published, WeightsLive
from paceline.ports.data import Task
from paceline.ports.weights import WeightStore
from paceline.runtime.calls import Seat
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.errors import EngineError, PacelineError, WorkerLost
from paceline.types.progress import ProbeReport
from paceline.types.weights import WeightsRef

PROBE_BOUND: Mapping[str, float] = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1.0}
"""Largest difference of a probe token's log-prob between trainer and instance, nats, by compute dtype."""
PROBE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """A version in the store, and what the trainer computes with it."""

    ref: WeightsRef
    location: str
    probe: ProbeReport


class Weights:
    """Versions in the store and on the instances."""

    def __init__(
        self, store: WeightStore, trainer: Seat, seat: Callable[[str], Seat], probe_ids: Sequence[int], dtype: str, watch: Stopwatch,
        post: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._trainer = trainer
        self._seat = seat
        self._probe_ids = tuple(probe_ids)
        self._bound = PROBE_BOUND[dtype]
        self._watch = watch
        self._post = post
        self._stored: dict[int, Stored] = {}
        self.serving: dict[str, int] = {}
        """Instance -> the version it serves."""

    async def publish(self, command: Publish) -> None:
        """Have the trainer write its weights into the store."""
        with self._watch.during("publish"):
            location = self._store.prepare(command.version)
            ref: WeightsRef = await self._trainer.call("publish", command.version, location)
            probe: ProbeReport = await self._trainer.call("probe", self._probe_ids)
            self._stored[command.version] = Stored(ref, self._store.commit(ref), probe)
        self._watch.new_round()
        self._post(Published(command.id, command.version, ref.fingerprint))

    async def load(self, command: LoadWeights) -> None:
        """Have an instance serve a version. A lost instance is no failure of this command: its loss is an event of its own.

        An instance that refuses weights is of no use as it is: it is ended, which starts it again, a bounded number of times.
        """
        stored = self._stored[command.version]
        seat = self._seat(command.instance)
        self.serving.pop(command.instance, None)
        with self._watch.during("publish"):
            try:
                fingerprint: str = await seat.call("load", stored.ref, stored.location)
                probe: ProbeReport = await seat.call("probe", self._probe_ids)
            except WorkerLost:
                return
            except PacelineError:
                seat.kill()
                raise
        self.serving[command.instance] = command.version
        error = probe_error(stored.probe, probe)
        self._post(WeightsLive(command.id, command.instance, command.version, fingerprint, error, self._bound))

    def retire(self, command: Retire) -> None:
        """Forget a version that nothing needs."""
        self._stored.pop(command.version, None)
        self._store.retire(command.version)

    def lost(self, instance: str) -> None:
        """An instance is gone, and its weights with it."""
        self.serving.pop(instance, None)


def probe_error(trainer: ProbeReport, engine: ProbeReport) -> float:
    """Largest absolute difference of the probe's log-probs, nats; infinite when one of them is not finite."""
    if len(trainer.logprobs) != len(engine.logprobs):
        raise EngineError(f"the probe has {len(trainer.logprobs)} log-probs in the trainer and {len(engine.logprobs)} in the engine")
    difference = np.abs(np.asarray(trainer.logprobs) - np.asarray(engine.logprobs))
    return float(difference.max()) if np.isfinite(difference).all() else float("inf")


def probe_tokens(task: Task) -> tuple[int, ...]:
    """Fixed probe tokens: the first PROBE_TOKENS of the task's first prompts, so that they are text of the run's own kind."""
    tokens: list[int] = []
    for position in range(len(task)):
        tokens += task.prompt(position).ids.tolist()
        if len(tokens) >= PROBE_TOKENS:
            break
    return tuple(tokens[:PROBE_TOKENS])
