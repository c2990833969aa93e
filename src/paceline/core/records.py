"""The things that decisions are about: instances, groups, and the samples of a group. Records; the counting is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paceline.types.weights import InstanceInfo

State = Literal["fresh", "open", "served", "ready", "taken", "gone"]
"""requested; a sample was admitted; serving-complete; trainable; with the trainer; terminal."""


class Instance:
    """One instance that is up."""

    __slots__ = ("free", "held", "hot", "index", "info", "jobs", "lanes", "loading", "name", "replaces", "target")

    def __init__(self, info: InstanceInfo, index: int) -> None:
        self.info = info
        self.name = info.instance
        self.index = index
        self.free = info.slots
        self.held: dict[int, int] = {}
        """Versions it serves, each with the slots in use under it (reservations of migrations included)."""
        self.jobs: dict[Sample, None] = {}
        """Trajectories on it, in order of admission."""
        self.target: tuple[int, ...] = ()
        """Versions it is meant to serve, ascending."""
        self.loading: int | None = None
        self.replaces: int | None = None
        """Version that the one being loaded takes the place of."""
        self.lanes: tuple[int, ...] = ()
        """Lanes whose work it takes now."""
        self.hot = False
        """Its KV memory is nearly full: it takes no more work until that is over."""

    @property
    def idle(self) -> bool:
        """Whether every slot is free."""
        return self.free == self.info.slots

    def staying(self, version: int) -> Iterator[Sample]:
        """Trajectories of a version in order of admission, without those on their way out (which stand behind all others)."""
        for sample in self.jobs:
            if sample.moving or sample.group.state == "gone":
                return
            if sample.version == version:
                yield sample

    def last(self, sample: Sample) -> None:
        """Let a trajectory that is on its way out stand behind all others."""
        del self.jobs[sample]
        self.jobs[sample] = None


class Sample:
    """One trajectory: its attempt, and where that runs."""

    __slots__ = ("attempt", "command", "failures", "group", "index", "instance", "moving", "version")

    def __init__(self, group: Group, index: int) -> None:
        self.group = group
        self.index = index
        self.attempt = 0
        self.failures = 0
        self.command = 0
        """Id of the open Admit, or of the Abort that ends it; 0 = it holds no slot."""
        self.instance: Instance | None = None
        self.version = 0
        """Weights that its instance runs it under."""
        self.moving = False
        """Whether it is being migrated."""


class Group:
    """The samples of one prompt."""

    __slots__ = (
        "finished",
        "home",
        "id",
        "lane",
        "lost",
        "oldest",
        "order",
        "promised",
        "queued",
        "refills",
        "running",
        "samples",
        "size",
        "state",
        "version",
        "waiting",
    )

    def __init__(self, index: int, order: int, size: int, refills: int, promised: bool) -> None:
        self.id = index
        self.order = order
        """Position in the order of submission."""
        self.refills = refills
        """Replacements that its place in the round has used up."""
        self.promised = promised
        """It must not get older than the bound (`core.bound`)."""
        self.state: State = "fresh"
        self.size = size
        self.samples: list[Sample] = []
        """Made when the group starts, so that the arrival of many prompts stays cheap."""
        self.restart()

    def start(self) -> None:
        """The first sample is about to be admitted."""
        self.state = "open"
        if not self.samples:
            self.samples = [Sample(self, i) for i in range(self.size)]

    def restart(self) -> None:
        """Back to the beginning: every sample waits, none runs or has finished."""
        self.waiting = list(range(self.size - 1, -1, -1))
        """Samples to admit; the next one is last."""
        self.running = 0
        """Samples that hold a slot."""
        self.lost = 0
        """Samples given up."""
        self.finished: list[int] = []
        self.version = -1
        """Smallest version of any token so far; -1 before the start."""
        self.oldest = -1
        """Smallest version of any finished sample's token."""
        self.lane = 0
        self.home: Instance | None = None
        """Instance that took its last sample."""
        self.queued = False
        """Whether it stands in the heap of started groups with waiting samples."""
