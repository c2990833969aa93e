"""What a rollout worker runs: an engine that decodes, holds weights, and maybe moves state. Synchronous; one thread calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.types.progress import ProbeReport
from paceline.types.records import Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, Unfinished, WeightsRef


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
    steps: int = 0
    """Steps that sampled tokens, since the start. Counted by the worker, like their seconds, unless the engine takes many per `step`."""
    seconds: float = 0.0
    """What these steps took."""


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

    def abort(self, group: int, sample: int, purpose: Purpose = "train", attempt: int | None = None) -> bool:
        """Forget a trajectory of this purpose, one attempt of it or all; False if it is not there (finished, never submitted)."""


class HoldsWeights(Protocol):
    """An engine whose weights can be replaced in place. With `info().versions_held` above 1 it serves several versions side by side."""

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Serve the weights stored at `location` (a safetensors file); return the checksum of what arrived.

        They take the place of version `replaces`, or an empty place beside the others when None (the weights an engine starts with hold
        no place). Work under `replaces` goes on under the new version, token by token, with its KV cache kept or rebuilt as
        `unfinished` says; `none` promises that there is no such work: raises EngineError otherwise. Work under other versions goes on.
        """

    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """Score fixed tokens through the serving path (prefill and decode, packed copies included) under a version that the engine
        holds; None = the one loaded last."""


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What an engine took over from another one."""

    trajectories: tuple[tuple[int, int], ...]
    """(group, sample) of every trajectory that now runs here."""
    prefilled_tokens: int
    """Tokens that had to run through the model to rebuild KV; 0 when the KV cache travelled along."""


class MovesState(Protocol):
    """An engine that hands trajectories over in the middle (`info().exports_kv`): tokens, columns and KV cache, the prompt's included."""

    def hand_over(self, trajectories: Sequence[tuple[int, int]], location: str) -> tuple[tuple[int, int], ...]:
        """Take training trajectories (group, sample) out of this engine and write their state to a file at `location`.

        Returns those that were here and left; one that has finished already, or was never here, is left out. Raises StateFileError, with
        nothing left, where the file cannot be written.
        """

    def take_in(self, location: str) -> TakenIn:
        """Go on with the trajectories that `hand_over` wrote to `location`, under their own version, which this engine holds. They sample
        the tokens that they would have sampled where they were. Raises EngineError, with nothing taken, for another version or a
        trajectory that is here already in the same attempt, StateFileError for a file that cannot be read. Those that find no free slot
        or page wait for one with their state.
        """
