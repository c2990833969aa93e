"""Everything that can happen to a run, as frozen values. `command` is the id of the command that an event answers.

Times never stand in an event: `Machine.step(event, now)` gets the time beside it, in seconds on any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.types.weights import InstanceInfo


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a run or of a resumed lineage; nothing is decided before it."""


@dataclass(frozen=True, slots=True)
class PromptsArrived:
    """Answers RequestPrompts. `indices` are positions in the data order, ascending; they become the group ids."""

    command: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataEnded:
    """Answers RequestPrompts: after any PromptsArrived for the same command, no prompt will ever come again."""

    command: int


@dataclass(frozen=True, slots=True)
class TrajectoryFinished:
    """Answers Admit. `tokens` counts sampled tokens; the versions are the smallest and largest of any token."""

    command: int
    group: int
    sample: int
    attempt: int
    instance: str
    tokens: int
    version_min: int
    version_max: int
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class TrajectoryFailed:
    """Answers Admit: this attempt ended without a trajectory."""

    command: int
    group: int
    sample: int
    attempt: int
    instance: str
    error: str


@dataclass(frozen=True, slots=True)
class TrajectoryParked:
    """Answers Park: the trajectory left its slot; `tokens` were sampled so far and its state is kept."""

    command: int
    group: int
    sample: int
    attempt: int
    instance: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TrajectoryPreempted:
    """The engine ran out of KV memory and put the trajectory back in its own queue; it still owns it."""

    group: int
    sample: int
    attempt: int
    instance: str


@dataclass(frozen=True, slots=True)
class GroupMaterialized:
    """Answers Materialize. `signal` False = all raw outcomes equal. `samples` are those that remain (all, unless a policy lost some)."""

    command: int
    group: int
    signal: bool
    samples: int
    reason: str = ""
    drop: bool = False
    """The group may not train whatever the filter says (too long, fewer than two survivors); `reason` says why."""


@dataclass(frozen=True, slots=True)
class DispatchConsumed:
    """Answers Dispatch: forward and backward of its groups are done."""

    command: int


@dataclass(frozen=True, slots=True)
class UpdateFinished:
    """Answers a Dispatch with `step`: the optimizer step is done, or was skipped (`applied` False)."""

    command: int
    update: int
    applied: bool = True


@dataclass(frozen=True, slots=True)
class Published:
    """Answers Publish: the version's tensors lie in the weight store."""

    command: int
    version: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class WeightsLive:
    """Answers LoadWeights. `fingerprint` is what arrived, `probe_error` how far its probe is from the trainer's by the measure that comes
    nearest to its bound, or furthest beyond it; `probe_bound` is that bound."""

    command: int
    instance: str
    version: int
    fingerprint: str
    probe_error: float
    probe_bound: float


@dataclass(frozen=True, slots=True)
class Migrated:
    """Answers Migrate: these (group, sample) now run on the target; the others stayed where they were or had finished."""

    command: int
    moved: tuple[tuple[int, int], ...]
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Aborted:
    """Answers Abort: the trajectory holds no slot any more."""

    command: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Answers Evaluate."""

    command: int


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """Answers Checkpoint: it is complete on disk."""

    command: int
    update: int


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """Answers any command that has no failure event of its own."""

    command: int
    error: str


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """An instance joined (first time, or again after a loss). It holds no weights until a LoadWeights is answered."""

    info: InstanceInfo


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """An instance ended or stopped answering; every trajectory on it is gone."""

    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceIdle:
    """An instance has nothing left to decode."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """Periodic state of an instance: KV tokens in use, trajectories waiting, and what it did since the report before."""

    instance: str
    kv_used: int
    tokens_per_second: float
    """While it decoded; 0 = it did not."""
    running: float
    """Trajectories that decoded together, on average over the steps: a step took running / tokens_per_second."""
    waiting: int


@dataclass(frozen=True, slots=True)
class Timer:
    """Time passed: deadlines and periodic decisions are looked at."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """`checkpoint`: finish what the trainer does, checkpoint, leave. `now`: leave."""

    how: Literal["checkpoint", "now"]
    reason: str


Event = (
    Started
    | PromptsArrived
    | DataEnded
    | TrajectoryFinished
    | TrajectoryFailed
    | TrajectoryParked
    | TrajectoryPreempted
    | GroupMaterialized
    | DispatchConsumed
    | UpdateFinished
    | Published
    | WeightsLive
    | Migrated
    | Aborted
    | Evaluated
    | CheckpointDone
    | CommandFailed
    | InstanceUp
    | InstanceLost
    | InstanceIdle
    | InstanceReport
    | Timer
    | StopRequested
)
