"""What the records of a lineage say: groups with their samples, instances, open commands, versions. How they come to say it: `book`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume, Schedule
from paceline.types.weights import InstanceInfo

RUNNING, PARKED, FINISHED, ENDED = "running", "parked", "finished", "ended"
NAMED = 8
"""Groups that a message names at most."""


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


class Facts:
    """What the records of one lineage say so far: all that a rule may read."""

    def __init__(self, schedule: Schedule, resume: Resume) -> None:
        self.schedule = schedule
        self.next_index = resume.next_index
        """The data-order index that must arrive next."""
        self.groups = {index: Group() for index in resume.pending}
        """Groups that arrived, or were pending at the checkpoint, and are not terminal."""
        self.instances: dict[str, Instance] = {}
        self.open: dict[int, Any] = {}
        """Commands that still wait for an answer, by id."""
        self.since: dict[type, dict[int, float]] = defaultdict(dict)
        """By type: when each of them was commanded, oldest first."""
        self.now = 0.0
        self.users: dict[int, int] = {}
        """Trajectories that run or are parked under a version; in streaming they take what their instance serves."""
        self.admits: dict[tuple[int, int, int], int] = {}
        """Open Admits by (group, sample, attempt); they outlive their group's terminal state until they are answered."""
        self.moving: dict[int, tuple[Instance | None, dict[c.TrajectoryKey, int]]] = {}
        """By open Migrate: its target as it is up now, and the Admit of each trajectory that was to move."""
        self.aborting: set[int] = set()
        """Open Admits that an Abort was commanded for."""
        self.newest = -1
        """Newest version whose Publish was commanded."""
        self.contains: dict[int, int] = {}
        """Updates in each version that a group may still be consumed with."""
        self.fingerprints: dict[int, str] = {}
        """Of versions in the store, not retired."""
        self.stepped = self.finished = resume.update
        """Updates commanded (Dispatch with step) and finished."""
        self.evaluates = False
        """An evaluation is due and has not begun: rounds admit nothing until it is over."""
        every = schedule.evaluate_every
        self.evaluate_at = every * (resume.update // every + 1) if every and resume.update else 0
        """Updates at which the next one is due, at the first version that has so many."""
        self.accumulated: tuple[int, ...] = ()
        """Groups consumed for the update that has not stepped."""
        self.frontier = schedule.frontier if isinstance(schedule.frontier, int) else None
        """Groups' worth of trajectories that may be in flight; None = unlimited."""
        self.data_ended = False
        self.stopping = ""
        self.unsaved: list[int] = []
        """The first NAMED groups that became terminal since the last Checkpoint."""
        self.stop: c.Stop | None = None

    def answers(self, event: Any, kind: type) -> Any:
        """The open command of type `kind` that `event` answers, or None: late and unknown answers mean nothing."""
        command = self.open.get(event.command)
        return command if type(command) is kind else None

    def running(self, answer: e.TrajectoryFinished | e.TrajectoryFailed) -> Sample | None:
        """The running sample whose present attempt `answer` ends, or None when it is late."""
        if self.admits.get((answer.group, answer.sample, answer.attempt)) != answer.command:
            return None
        sample = self.sample(answer.group, answer.sample)
        return sample if sample and sample.command == answer.command else None

    def sample(self, group: int, index: int) -> Sample | None:
        """A sample that was admitted, of a group that is not terminal."""
        known = self.groups.get(group)
        return known.samples.get(index) if known else None

    def meant(self, command: c.Park | c.Abort) -> Sample | None:
        """The sample whose present attempt a command is about."""
        sample = self.sample(command.group, command.sample)
        return sample if sample and sample.attempt == command.attempt else None

    def admitted(self, instance: Instance) -> Iterator[c.Admit]:
        """Open Admits that end with an instance and that no Abort was commanded for."""
        for number in instance.open:
            command = self.open.get(number)
            if type(command) is c.Admit and number not in self.aborting:
                yield command

    def overstale(self, group: Group) -> bool:
        """Whether a token of the group is older than the bound allows."""
        return 0 <= group.low() < self.newest - self.schedule.bound

    def waits_for(self, kind: type) -> bool:
        """Whether a command of type `kind` is open."""
        return bool(self.since[kind])

    def wants_groups(self) -> bool:
        """Whether the trainer waits for groups: it is free, updates remain, and nothing that is waited for itself keeps groups back."""
        if any(map(self.waits_for, (c.Dispatch, c.Publish, c.Checkpoint))):
            return False
        rounds = self.schedule.preset in ("serial", "pipelined")
        held = rounds and (self.evaluates or self.waits_for(c.Evaluate))
        return bool(self.groups) and self.stepped < self.schedule.total_updates and not held

    def promising(self) -> list[int]:
        """Groups that may still train and are not consumed yet."""
        return [i for i, g in self.groups.items() if not g.dispatched and (g.outcome is None or self.trainable(g.outcome))]

    def wanted(self) -> list[int]:
        """Groups that may still train and are not trainable yet, over-stale ones that are generated anew included."""
        return [i for i in self.promising() if self.groups[i].outcome is None or self.overstale(self.groups[i])]

    def trainable(self, outcome: e.GroupMaterialized) -> bool:
        """Whether the group filter lets a materialized group train."""
        return not outcome.drop and (outcome.signal or self.schedule.no_signal == "keep")
