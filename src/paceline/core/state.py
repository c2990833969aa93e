"""What all parts of the machine share: the schedule, the records, and the position of the trainer."""

from __future__ import annotations

from paceline.core.bound import Pace
from paceline.core.fleet import Fleet
from paceline.core.groups import Groups
from paceline.core.outbox import Outbox
from paceline.core.presets import traits
from paceline.core.records import Group
from paceline.core.schedule import Resume, Schedule
from paceline.core.versions import Versions


class Machinery:
    """Shared state. Parts own their decisions; what two of them read stands here."""

    def __init__(self, schedule: Schedule, resume: Resume) -> None:
        self.schedule = schedule
        self.traits = traits(schedule)
        self.pace = Pace(schedule.bound, schedule.groups_per_update, schedule.updates_per_publish)
        self.out = Outbox(schedule.deadlines)
        self.versions = Versions(resume.version, schedule.bound)
        self.groups = Groups(schedule.group_size, schedule.in_order, self.traits.pinned, self.traits.paced, self.versions)
        self.fleet = Fleet(self.traits.pinned, self.versions)
        self.update = resume.update
        """Updates issued."""
        self.issued = 0
        """Updates issued since the newest publish: s."""
        self.accumulated: list[Group] = []
        """Groups given to the current update, in order; a step empties it when the update is finished."""
        self.stepping = False
        """The step of the current update is commanded: `accumulated` belongs to an update that is issued."""
        self.leaving: str | None = None
        """Why the run is being left after what the trainer does now; None = it goes on."""
        self.error: str | None = None
        """Why it is left with an error."""

    @property
    def given(self) -> int:
        """Groups given to an update that is not issued yet."""
        return 0 if self.stepping else len(self.accumulated)

    @property
    def needed(self) -> int:
        """Groups that the updates still to be issued can consume, beyond those given."""
        return (self.schedule.total_updates - self.update) * self.schedule.groups_per_update - self.given

    def fail_run(self, error: str) -> None:
        """Leave the run with an error, after a checkpoint. The first one is told: others may follow from it."""
        self.leaving = self.error = self.error or error
