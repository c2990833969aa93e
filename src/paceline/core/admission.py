"""What starts next, and where: started groups before new ones, in order of submission, within the schedule's limits."""

from __future__ import annotations

from paceline.core.commands import Admit
from paceline.core.records import Group, Instance
from paceline.core.state import Machinery

UNLIMITED = 1 << 60


class Admission:
    """Consumes free slots; produces Admit. All limits are numbers, so that no preset needs code of its own."""

    def __init__(self, shared: Machinery) -> None:
        s = shared.schedule
        self._m = shared
        self._by_group = s.refill == "group"
        self._chunk = s.group_size if s.granularity == "group" else 1
        """Free slots that an instance needs before a new group starts there."""
        self._buffer = s.buffer_groups or UNLIMITED
        """No new group starts while so many are trainable."""
        self.frontier: int | None = None
        """F in groups; None = unlimited."""
        self.closed = True
        """Nothing is admitted."""

    def fill_lane(self, lane: int) -> None:
        """Fill the free slots of one lane, as far as its work and the limits allow."""
        most = UNLIMITED if self.frontier is None else self.frontier * self._m.schedule.group_size
        while not self.closed and self._m.groups.flying < most:
            group = self._m.groups.next_waiting(lane) or self._next_fresh(lane)
            if group is None:
                return
            instance = self._m.fleet.pick(lane, group.home)
            if instance is None:
                return
            version = self._weights(instance, lane)
            if not self._may_enter(group, instance, version):
                return
            self._admit(group, instance, version, lane)

    def _next_fresh(self, lane: int) -> Group | None:
        groups = self._m.groups
        if not groups.fresh or lane != self._m.fleet.newest_lane() or groups.ready >= self._buffer:
            return None
        if self._by_group and self.frontier is not None and groups.open >= self.frontier:
            return None
        return groups.fresh[0]

    def _weights(self, instance: Instance, lane: int) -> int:
        return lane if self._m.traits.pinned else max(v for v in instance.held if v in instance.target)

    def _may_enter(self, group: Group, instance: Instance, version: int) -> bool:
        """Whether a sample of the group may get tokens of `version` here: room, and no staleness beyond the bound."""
        m = self._m
        newest = m.versions.newest
        if group.state != "fresh":
            # What a fleet serves never grows older, so a group that has started gets no token older than those it counts by.
            assert version >= group.version, f"group {group.id} of version {group.version} would get tokens of {version}"
            return True
        if instance.free < self._chunk:
            return False
        if not group.promised:
            return newest - version <= m.schedule.bound
        # With pacing, asking for the prompt left it a place under the newest version. One that is generated anew has none yet.
        last = newest if m.traits.paced else newest + 1
        return m.pace.fits(m.groups.promised, range(version, last), newest, m.issued, m.given)

    def _admit(self, group: Group, instance: Instance, version: int, lane: int) -> None:
        m = self._m
        if group.state == "fresh":
            m.groups.start(group, version, lane)
        sample = group.samples[group.waiting.pop()]
        if group.waiting:
            m.groups.queue(group)
        m.fleet.occupy(instance, version)
        m.groups.flying += 1
        group.home = instance
        group.running += 1
        instance.jobs[sample] = None
        sample.instance = instance
        sample.version = version
        command = sample.command = m.out.next_id()
        m.out.ask(Admit(command, group.id, sample.index, sample.attempt, instance.name, version))
