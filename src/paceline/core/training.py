"""When groups go to the trainer, when it steps, and when a version is published."""

from __future__ import annotations

from paceline.core.commands import Dispatch, Publish, Terminal
from paceline.core.events import Published, UpdateFinished
from paceline.core.groups import Shelf
from paceline.core.intake import Intake
from paceline.core.serving import Serving
from paceline.core.state import Machinery


class Training:
    """Consumes trainable groups; produces Dispatch, Publish and the Terminal of what trained. It waits for nothing but groups."""

    def __init__(self, shared: Machinery, intake: Intake, serving: Serving) -> None:
        self._m = shared
        self._intake = intake
        self._serving = serving
        self.blocked_by: int | None = None
        """Version whose unfinished groups the next batch waits for; None = not blocked."""

    def dispatch(self) -> bool:
        """Give the trainer the next batch if the schedule allows it; True if a command was sent."""
        m = self._m
        self.blocked_by = None
        wanted = min(m.schedule.groups_per_dispatch, m.schedule.groups_per_update - len(m.accumulated))
        count = min(wanted, m.groups.ready)
        last = self._intake.last
        if not last and (count < wanted or m.groups.ready < self._threshold()):
            return False
        if not count and not m.accumulated:
            return False
        batch = m.groups.batch(count)
        self.blocked_by = self._blocked(batch)
        if self.blocked_by is not None:
            return False
        self._send(batch, final=last and count == m.groups.ready)
        return True

    def _blocked(self, batch: list[Shelf]) -> int | None:
        m = self._m
        promised = [version for may_age, version in batch if not may_age]
        return m.pace.blocked(m.groups.promised, promised, len(batch), m.versions.newest, m.issued, len(m.accumulated))

    def _threshold(self) -> int:
        """Trainable groups that must be there at the start of a publish period."""
        m = self._m
        if m.schedule.start_when == "all" and not m.issued and not m.accumulated:
            return min(m.schedule.groups_per_publish, m.needed)
        return 0

    def _send(self, batch: list[Shelf], final: bool) -> None:
        """Dispatch the first groups of these shelves; with a step when the update is full, or nothing follows."""
        m = self._m
        newest = m.versions.newest
        groups = []
        for shelf in batch:
            group = m.groups.pop(shelf)
            m.groups.take(group)
            groups.append(group)
        stale = tuple(newest - version for _, version in batch)
        behind = tuple(m.update - m.versions.contained(version) for _, version in batch)
        m.accumulated += groups
        step = final or len(m.accumulated) == m.schedule.groups_per_update
        ids, whole = tuple(g.id for g in groups), tuple(g.id for g in m.accumulated)
        m.out.ask(Dispatch(m.out.next_id(), ids, step, m.update + 1, whole, stale, behind))
        if step:
            m.stepping = True
            m.update += 1
            m.issued += 1

    def consumed(self, command: int) -> None:
        """A dispatch went through forward and backward; a step is waited for further."""
        dispatch = self._m.out.find(Dispatch, command)
        if dispatch is not None and not dispatch.step:
            self._m.out.close(Dispatch, command)

    def updated(self, event: UpdateFinished) -> bool:
        """An update is done, or was skipped: its groups are terminal. False for an unknown command."""
        m = self._m
        dispatch = m.out.close(Dispatch, event.command)
        if dispatch is None:
            return False
        assert dispatch.step, f"{event!r} answers a dispatch without a step"
        assert dispatch.update == event.update, f"{event!r} cannot answer {dispatch!r}"
        for group in m.accumulated:
            m.groups.end(group)
            m.out.tell(Terminal(m.out.next_id(), group.id, "trained"))
        m.accumulated = []
        m.stepping = False
        return True

    def publish_due(self, over: bool) -> bool:
        """Whether updates came that the present point of the schedule publishes; `over`: none will follow."""
        m = self._m
        if not m.issued:
            return False
        return over or (self._intake.settled if m.traits.rounds else m.issued >= m.schedule.updates_per_publish)

    def publish(self, version: int) -> None:
        """Command the publish of the present weights."""
        m = self._m
        m.versions.publish(version, m.update)
        m.issued = 0
        m.out.ask(Publish(m.out.next_id(), version, m.update))
        self.drop_overstale()

    def published(self, event: Published) -> bool:
        """A version lies in the store. False for an unknown command."""
        command = self._m.out.close(Publish, event.command)
        if command is None:
            return False
        assert command.version == event.version, f"{event!r} cannot answer {command!r}"
        self._m.versions.arrive(event.version)
        return True

    def drop_overstale(self) -> None:
        """Trainable groups that got older than the bound, where they may, are generated again or dropped, as the schedule says."""
        m = self._m
        while (shelf := m.groups.overstale(m.versions.newest, m.schedule.bound)) is not None:
            group = m.groups.pop(shelf)
            if m.schedule.overstale == "retry":
                m.groups.again(group)
            else:
                self._serving.end(group, "filtered", f"stale: version {group.version} at version {m.versions.newest}")
