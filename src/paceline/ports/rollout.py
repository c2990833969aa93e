"""What a rollout worker runs: an engine that decodes, holds weights, and maybe moves state. Synchronous; one thread calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.types.progress import ProbeReport
from paceline.types.records import Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, WeightsRef


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that ended without a trajectory (group, sample, attempt), and why."""

    group: int
    sample: int
    attempt: int
    error: str
    purpose: Purpose = "train"


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """State of an engine: KV tokens held, trajectories decoding and waiting, tokens sampled since the start."""

    kv_used: int
    running: int
    waiting: int
    tokens: int


class Engine(Protocol):
    """Continuous batching: requests join while others decode."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. An impossible one (prompt + max_tokens over the capacity) comes back from `step` as a Failure."""

    def step(self) -> Sequence[Trajectory | Failure]:
        """Advance every running trajectory by at least one token; return what ended. Returns at once, empty, when idle."""

    def load_state(self) -> EngineLoad:
        """The engine's present load."""


class Cancels(Protocol):
    """An engine that can give work up."""

    def abort(self, group: int, sample: int, purpose: Purpose = "train") -> bool:
        """Forget a trajectory of this purpose; False if it is not there (finished, never submitted)."""


class HoldsWeights(Protocol):
    """An engine whose weights can be replaced in place."""

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""

    def load(self, ref: WeightsRef, location: str) -> str:
        """Replace the weights by those stored at `location` (a safetensors file); return the checksum of what arrived.
        Work in flight must be finished or dropped first: raises EngineError otherwise."""

    def probe(self, ids: Sequence[int]) -> ProbeReport:
        """Score fixed tokens through the serving path (prefill and decode, packed copies included)."""
