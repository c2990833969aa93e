"""Everything the machine can ask for, as frozen values. `id` is unique and ascending in a run; events name it.

The runtime and the simulator perform commands; they never decide. Two runs are the same when their commands are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.frontier import Forecast
from paceline.core.schedule import Resume
from paceline.types.weights import Unfinished

TrajectoryKey = tuple[int, int]
"""(group, sample)."""


@dataclass(frozen=True, slots=True)
class RequestPrompts:
    """Ask the data source for the next `count` prompts. Answer: PromptsArrived, then DataEnded if it has no more."""

    id: int
    count: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Start a trajectory on an instance under a version. Answer: TrajectoryFinished or TrajectoryFailed."""

    id: int
    group: int
    sample: int
    attempt: int
    instance: str
    version: int


@dataclass(frozen=True, slots=True)
class Park:
    """Take a trajectory out of its slot and keep its state. Answer: TrajectoryParked."""

    id: int
    group: int
    sample: int
    attempt: int
    instance: str


@dataclass(frozen=True, slots=True)
class Materialize:
    """Compute rewards and the raw outcomes of a serving-complete group. Answer: GroupMaterialized or CommandFailed."""

    id: int
    group: int
    samples: tuple[int, ...]
    """Samples that finished, ascending; all of them unless a failure policy gave some up."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Give groups to the trainer: they are consumed now. Answer: DispatchConsumed, then UpdateFinished when `step`.

    A step may come with no group of its own: when the last ones of a round fell out after the others had gone to the trainer.
    """

    id: int
    groups: tuple[int, ...]
    step: bool
    update: int
    """1-based update that these groups belong to."""
    update_groups: tuple[int, ...]
    """Groups of the whole update so far, this dispatch included; with `step` their trajectories are the denominator."""
    staleness: tuple[int, ...] = ()
    """Staleness of each group of `groups` in versions, at this command."""
    staleness_updates: tuple[int, ...] = ()
    """The same in updates."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Put the trainer's weights into the store as `version`. Answer: Published."""

    id: int
    version: int
    updates: int
    """Updates contained in the version."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Make an instance serve `version`. `unfinished` says what happens to work under its present weights. Answer: WeightsLive."""

    id: int
    instance: str
    version: int
    unfinished: Unfinished = "none"
    replaces: int | None = None
    """Version that makes way on an instance that holds as many as it can; None = there is room beside."""


@dataclass(frozen=True, slots=True)
class Retire:
    """No trajectory needs `version` any more: its weights may leave the store. No answer."""

    id: int
    version: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move trajectories with their KV cache between instances of one version. Answer: Migrated."""

    id: int
    trajectories: tuple[TrajectoryKey, ...]
    source: str
    target: str
    version: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End a trajectory without a result. Answer: Aborted."""

    id: int
    group: int
    sample: int
    attempt: int
    instance: str
    why: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """A group reached its terminal state; its payloads may be released. No answer."""

    id: int
    group: int
    state: Literal["trained", "filtered", "failed"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score the held-out problems under one version. Answer: Evaluated or CommandFailed."""

    id: int
    version: int
    update: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write trainer state and what `Resume` needs. Answer: CheckpointDone or CommandFailed."""

    id: int
    update: int
    version: int
    """Version that a resume publishes: the newest one, or the next if updates came since (the run is left within a round)."""
    pending: tuple[int, ...]
    """Data-order indices requested and not terminal: a resume generates them again, before any new one."""
    next_index: int
    """First data-order index never requested."""

    @property
    def resume(self) -> Resume:
        """Where a lineage that restores this checkpoint starts."""
        return Resume(self.update, self.version, self.pending, self.next_index)


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the user about a wait that passed its deadline, or about something counted. No answer."""

    id: int
    message: str


@dataclass(frozen=True, slots=True)
class SetFrontier:
    """The automatic frontier of the round that begins: recorded, since no other command shows it. No answer, nothing to do."""

    id: int
    round: int
    """1-based, counted within the lineage."""
    groups: int | None
    """F: at most so many groups' worth of trajectories are in flight; None = unlimited."""
    forecast: Forecast | None
    """What F was chosen by; None while nothing is measured yet."""

    @property
    def words(self) -> str:
        """The decision as a sentence."""
        chosen = "unlimited" if self.groups is None else f"F = {self.groups}"
        return f"frontier of round {self.round}: {chosen}, {self.forecast or 'nothing is measured yet'}"


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over; nothing follows. `ok` False: `reason` is an error that ends the process with a non-zero code."""

    id: int
    reason: str
    ok: bool = True


Command = (
    RequestPrompts
    | Admit
    | Park
    | Materialize
    | Dispatch
    | Publish
    | LoadWeights
    | Retire
    | Migrate
    | Abort
    | Terminal
    | Evaluate
    | Checkpoint
    | Warn
    | SetFrontier
    | Stop
)

ANSWERED: dict[type[Any], str] = {
    Admit: "admit",
    Materialize: "materialize",
    Dispatch: "dispatch",
    Publish: "publish",
    LoadWeights: "load",
    Evaluate: "evaluate",
    Checkpoint: "checkpoint",
    RequestPrompts: "prompts",
    Migrate: "migrate",
    Abort: "abort",
}
"""Commands whose answer is waited for, and the kind under which `Schedule.deadlines` bounds that wait."""
FLEET, GROUPS = "instances", "groups"
"""Kinds of waits that no single command stands for: for any instance at all, and the trainer's for groups."""
