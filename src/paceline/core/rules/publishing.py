"""Rule 7: what a version is, when it may come, how long it is kept, and that engines compute with it."""

from __future__ import annotations

from typing import ClassVar

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules.fold import Check, Rule


class PublishOnce(Rule):
    """7. A new version follows the consumption of a round, or exactly updates_per_publish updates; live versions stay in the store;
    what an instance received and what it computes are compared with the trainer's."""

    number: ClassVar[int] = 7

    def checks(self) -> dict[type, Check]:
        """The life of a version."""
        return {
            c.Publish: self._publish,
            c.LoadWeights: self._load,
            c.Retire: self._retire,
            e.Published: self._published,
            e.WeightsLive: self._live,
        }

    def _publish(self, command: c.Publish, now: float) -> str | None:
        book = self.book
        if command.updates != book.finished:
            return f"version {command.version} claims {command.updates} updates, {book.finished} finished"
        if book.newest < 0 or command.version in book.contains:
            return None
        if command.version != book.newest + 1:
            return f"version {command.version} was published after version {book.newest}"
        since = command.updates - book.contains.get(book.newest, 0)
        if since < 1:
            return f"version {command.version} holds no update that version {book.newest} does not"
        return None if self._last() else self._rhythm(command, since)

    def _last(self) -> bool:
        """The last publish before a stop takes what there is."""
        book = self.book
        return bool(book.stopping) or book.finished >= self.schedule.total_updates or (book.data_ended and not book.promising())

    def _rhythm(self, command: c.Publish, since: int) -> str | None:
        if self.schedule.preset in ("serial", "pipelined"):
            rest = [i for i, g in self.book.groups.items() if not g.trained]
            return f"version {command.version} was published before groups {rest[:8]} of the round were consumed" if rest else None
        period = self.schedule.updates_per_publish
        return None if since == period else f"version {command.version} was published after {since} updates, {period} make a version"

    def _load(self, command: c.LoadWeights, now: float) -> str | None:
        stored = command.version in self.book.fingerprints
        return None if stored else f"version {command.version} was sent to {command.instance}, but the store does not hold it"

    def _retire(self, command: c.Retire, now: float) -> str | None:
        if command.version == self.book.newest:
            return f"version {command.version} was retired, it is the newest"
        if self.schedule.preset != "streaming" and (users := self.book.users.get(command.version, 0)):
            return f"version {command.version} was retired while {users} trajectories still need it"
        for name, instance in self.book.instances.items():
            if command.version in instance.versions:
                return f"version {command.version} was retired while {name} serves it"
            if command.version in instance.arriving:
                return f"version {command.version} was retired while {name} loads it"
        return None

    def _published(self, event: e.Published, now: float) -> str | None:
        command = self.book.answers(event, c.Publish)
        if command is None or event.version == command.version:
            return None
        return f"version {event.version} was stored where {command.version} was published"

    def _live(self, event: e.WeightsLive, now: float) -> str | None:
        command = self.book.answers(event, c.LoadWeights)
        if command is None:
            return None
        where = f"version {command.version} on {command.instance}"
        if event.version != command.version:
            return f"{where}: version {event.version} arrived"
        expected = self.book.fingerprints.get(command.version)
        if event.fingerprint != expected:
            return f"{where}: the tensors that arrived are {event.fingerprint}, published were {expected}"
        if not event.probe_error <= event.probe_bound:
            return f"{where}: its probe differs from the trainer's by {event.probe_error}, bound {event.probe_bound}"
        return None
