"""What the book holds: groups with their samples, and instances."""

from __future__ import annotations

from paceline.core import commands as c
from paceline.core import events as e
from paceline.types.weights import InstanceInfo

RUNNING, PARKED, FINISHED, ENDED = "running", "parked", "finished", "ended"


class Sample:
    """The newest attempt of one trajectory. `low` and `high` are the versions of its tokens once it finished."""

    __slots__ = ("attempt", "command", "group", "high", "instance", "low", "state", "version")

    def __init__(self, admit: c.Admit, group: Group) -> None:
        self.group = group
        self.attempt = admit.attempt
        self.command = admit.id
        self.instance = admit.instance
        self.version = admit.version
        self.state = RUNNING
        self.low = self.high = -1


class Group:
    """A prompt that arrived and is not terminal."""

    __slots__ = ("alive", "dispatched", "failures", "outcome", "samples", "scored", "trained", "version")

    def __init__(self) -> None:
        self.samples: dict[int, Sample] = {}
        self.alive = 0
        """Samples whose newest attempt has not ended without a result."""
        self.version = -1
        """Version under which the first of them was admitted."""
        self.scored: tuple[int, ...] | None = None
        """Samples of the newest Materialize."""
        self.outcome: e.GroupMaterialized | None = None
        self.failures = 0
        """Failed attempts and failed materializations."""
        self.dispatched = 0
        """The update that consumed the group, 0 = none yet."""
        self.trained = False
        """That update finished."""

    def having(self, *states: str) -> set[int]:
        """Samples in one of these states, by their place in the group."""
        return {index for index, sample in self.samples.items() if sample.state in states}

    def low(self) -> int:
        """Smallest version of any token of the scored samples; a group not yet scored counts what has finished."""
        finished = (self.samples[s] for s in self.scored if s in self.samples) if self.scored else self.samples.values()
        return min((s.low for s in finished if s.state == FINISHED), default=-1)


class Instance:
    """A live instance: the versions that were verified on it, and the open commands that end with it."""

    __slots__ = ("info", "loading", "open", "versions")

    def __init__(self, info: InstanceInfo) -> None:
        self.info = info
        self.versions: list[int] = []
        self.loading: dict[int, tuple[int, int | None]] = {}
        """Open LoadWeights: command -> (version, version that makes way)."""
        self.open: set[int] = set()

    @property
    def arriving(self) -> set[int]:
        """Versions that are being loaded."""
        return {version for version, _ in self.loading.values()}

    @property
    def departing(self) -> set[int | None]:
        """Versions that those make way for."""
        return {old for _, old in self.loading.values()}
