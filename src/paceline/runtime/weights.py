"""Weights from the trainer to the instances: performs Publish, LoadWeights and Retire, and compares both ends (rule 7).

Version 0 takes the same path as every later one. What arrives is checksummed where it is computed with, and the instance scores the
probe tokens through its serving path; both are compared with the trainer's in WeightsLive, and the rules judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.core.commands import LoadWeights, Publish, Retire
from paceline.core.events import Event, Published, WeightsLive
from paceline.ports.data import Task
from paceline.ports.weights import WeightStore
from paceline.runtime.calls import Seat
from paceline.runtime.rollout import RolloutFleet
from paceline.types.errors import EngineError, PacelineError, TrainerError, WorkerLost
from paceline.types.progress import ProbeReport
from paceline.types.weights import WeightsRef

PROBE_TOKENS = 64
ROUNDINGS, OF_ONE = 2.5, 40.0
"""How many times the trainer's own rounding the two may be apart, on average and at one token: both round, each in its own order."""
MISSING = 0.75
"""An instance whose log-probs miss more than this share of the trainer's change since the version before computes with old weights."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the log-probs of the probe's tokens may differ between trainer and instance, nats."""

    largest: float
    """Of any token. Where it is more, OF_ONE times what the trainer's log-probs lose by rounding, on average."""
    mean: float
    """Mean over the tokens of the absolute difference. Where it is more, ROUNDINGS times that loss."""
    alike: float
    """Mean over the tokens of the prompt where the same kernels computed it on both sides: but for the softmax its bits are the same."""
    moved: float
    """Mean absolute change of the trainer's log-probs above which the instance's must have changed too: smaller ones may be rounded off."""


BOUNDS: Mapping[str, Bounds] = {
    "float64": Bounds(1e-9, 1e-10, 1e-10, 1e-10),
    "float32": Bounds(1e-4, 3e-5, 3e-5, 1e-5),
    "bfloat16": Bounds(1.0, 0.02, 1e-4, 1e-3),
}
"""By compute dtype."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure of how far an instance's probe is from the trainer's."""

    what: str
    value: float
    bound: float

    @property
    def fits(self) -> bool:
        """Whether it is within the bound; NaN never is."""
        return self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Stored:
    """A version in the store, and what the trainer computes with it."""

    ref: WeightsRef
    location: str
    probe: ProbeReport


@dataclass(frozen=True, slots=True)
class Probes:
    """The probe of one version, in the trainer and on an instance."""

    trainer: ProbeReport
    engine: ProbeReport


class Weights:
    """Versions in the store, from their publish until they are retired, and on the instances."""

    def __init__(
        self, store: WeightStore, trainer: Seat, fleet: RolloutFleet, probe_ids: Sequence[int], dtype: str,
        post: Callable[[Event], None], notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._trainer = trainer
        self._fleet = fleet
        self._probe_ids = tuple(probe_ids)
        self._bounds = BOUNDS[dtype]
        self._post = post
        self._notice = notice
        self._stored: dict[int, Stored] = {}
        self._live: dict[str, dict[int, Probes]] = {}
        """Instance -> the versions it serves, each as it was probed there."""

    async def publish(self, command: Publish) -> None:
        """Have the trainer write its weights into the store."""
        location = self._store.prepare(command.version)
        ref: WeightsRef
        probe: ProbeReport
        ref, probe = await self._trainer.call("publish", command.version, location, self._probe_ids)
        if not np.isfinite(probe.logprobs).all():
            raise TrainerError(f"the weights of version {command.version} give log-probs that are not finite: training has diverged")
        self._stored[command.version] = Stored(ref, self._store.commit(ref), probe)
        self._post(Published(command.id, command.version, ref.fingerprint))

    async def load(self, command: LoadWeights) -> None:
        """Have an instance serve a version. A lost instance is no failure of this command: its loss is an event of its own.

        Ends of trajectories wait meanwhile: none may carry tokens of weights that have yet to be compared. An instance that refuses
        weights, or gives no probe to compare, is of no use as it is: it is ended, which starts it again, a bounded number of times.
        """
        stored = self._stored[command.version]
        replaced = self._live.setdefault(command.instance, {}).pop(command.replaces, None) if command.replaces is not None else None
        seat = self._fleet.seat(command.instance)
        with self._fleet.holding(command.instance):
            try:
                how = (command.unfinished, command.replaces, self._probe_ids)
                fingerprint, probe = await seat.call("serve", stored.ref, stored.location, *how)
                self._compare(command, fingerprint, Probes(stored.probe, probe), replaced)
            except WorkerLost:
                return
            except PacelineError as error:
                seat.kill(error)
                raise

    def _compare(self, command: LoadWeights, fingerprint: str, probes: Probes, replaced: Probes | None) -> None:
        found = compare(probes, replaced, self._bounds)
        self._live.setdefault(command.instance, {})[command.version] = probes
        if not found.fits:
            self._notice(f"version {command.version} on {command.instance}: {found.what} is {found.value:.3g}, bound {found.bound:.3g}")
        self._post(WeightsLive(command.id, command.instance, command.version, fingerprint, found.value, found.bound))

    def serving(self, version: int) -> list[str]:
        """Instances that serve a version, in order of their names."""
        return sorted(name for name, live in self._live.items() if version in live)

    def retire(self, command: Retire) -> None:
        """Forget a version that nothing needs."""
        self._stored.pop(command.version, None)
        self._store.retire(command.version)

    def lost(self, instance: str) -> None:
        """An instance is gone, and its weights with it."""
        self._live.pop(instance, None)


def compare(now: Probes, before: Probes | None, bounds: Bounds) -> Difference:
    """Of all measures the one furthest beyond its bound, or nearest to it. `before`: of the version whose place this one took.

    The same kernels give a prompt the same bits on both sides: any copy that lags behind shows. Otherwise rounding differs between the
    two from token to token, so in bfloat16 neither a token nor the mean shows a small change of the weights. But a copy that did not
    change gives the very log-probs it gave before, however small the change was that it missed.
    """
    if len(now.trainer.logprobs) != len(now.engine.logprobs):
        raise EngineError(
            f"the probe has {len(now.trainer.logprobs)} log-probs in the trainer and {len(now.engine.logprobs)} in the engine"
        )
    gaps = _gaps(now.trainer, now.engine)
    if not np.isfinite(gaps).all():
        return Difference("a log-prob difference of the probe", float("inf"), bounds.largest)
    lost = now.trainer.rounding
    found = [
        Difference("the largest log-prob difference of the probe", float(gaps.max()), max(bounds.largest, OF_ONE * lost)),
        Difference("the mean log-prob difference of the probe", float(gaps.mean()), max(bounds.mean, ROUNDINGS * lost)),
    ]
    if now.trainer.by and now.trainer.by == now.engine.by:
        prompt = gaps[: now.engine.prefilled]
        found.append(
            Difference("the mean log-prob difference of the probe's prompt, by the same kernels,", float(prompt.mean()), bounds.alike)
        )
    if before is not None and (moved := float(_gaps(now.trainer, before.trainer).mean())) > bounds.moved:
        missing = 1 - float(_gaps(now.engine, before.engine).mean()) / moved
        found.append(Difference("the share of the trainer's change since the version before that the probe misses", missing, MISSING))
    return max(found, key=lambda difference: difference.value / difference.bound)


def _gaps(a: ProbeReport, b: ProbeReport) -> npt.NDArray[np.float64]:
    return np.abs(np.asarray(a.logprobs, dtype=np.float64) - np.asarray(b.logprobs, dtype=np.float64))


def probe_tokens(task: Task) -> tuple[int, ...]:
    """Fixed probe tokens: the first PROBE_TOKENS of the task's first prompts, so that they are text of the run's own kind."""
    tokens: list[int] = []
    for position in range(len(task)):
        tokens += task.prompt(position).ids.tolist()
        if len(tokens) >= PROBE_TOKENS:
            break
    return tuple(tokens[:PROBE_TOKENS])
