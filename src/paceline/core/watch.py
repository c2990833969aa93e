"""Everything that is waited for, with owner, deadline and names: open commands, and two waits that no single command stands for."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.boundaries import Boundaries
from paceline.core.commands import FLEET, GROUPS
from paceline.core.intake import Intake
from paceline.core.loading import Loading
from paceline.core.outbox import Wait
from paceline.core.state import Machinery
from paceline.core.training import Training

NAMED = 8
"""Groups that a wait names at most."""


class Watch:
    """Notes since when nothing is up and since when the trainer wants groups; names what is overdue."""

    def __init__(self, shared: Machinery, intake: Intake, training: Training, loading: Loading, boundaries: Boundaries) -> None:
        self._m = shared
        self._intake = intake
        self._training = training
        self._loading = loading
        self._boundaries = boundaries
        self._since: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def look(self) -> None:
        """Notice waits that begin or end now."""
        m = self._m
        self._set(FLEET, not m.fleet.instances)
        wants = m.update < m.schedule.total_updates and bool(m.groups.live or self._intake.unseen())
        held = m.traits.rounds and not self._loading.quiet  # admission waits for the evaluation, which is a wait of its own
        self._set(GROUPS, wants and not held and not self._boundaries.busy)

    def _set(self, kind: str, active: bool) -> None:
        if active and kind not in self._since:
            now = self._since[kind] = self._m.out.now
            self._due[kind] = now + self._m.out.own_seconds[kind]
        elif not active:
            self._since.pop(kind, None)

    def waits(self) -> Iterator[Wait]:
        """All waits."""
        yield from self._m.out.waits()
        for kind, since in self._since.items():
            owner, what = self._words(kind)
            yield Wait(kind, owner, what, since, self._due[kind])

    def name_overdue(self) -> None:
        """Send a Warn for every wait whose deadline passed, and set its next deadline."""
        out = self._m.out
        out.name_overdue()
        for kind, since in self._since.items():
            if self._due[kind] <= out.now:
                self._due[kind] = out.now + out.own_seconds[kind]
                owner, what = self._words(kind)
                out.warn(f"{kind}: {owner} has owed {what} for {out.now - since:.1f} s")

    def _words(self, kind: str) -> tuple[str, str]:
        if kind == FLEET:
            return "the pool", "an instance (none is up)"
        names = list(self._wanted_groups())
        if not names:
            return "the data source", f"more groups to the trainer than the {self._m.groups.ready} that are trainable"
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return "rollout", f"groups {names[:NAMED]}{more} to the trainer"

    def _wanted_groups(self) -> Iterator[int]:
        oldest = self._training.blocked_by
        for group in self._m.groups.live.values():
            if group.state in ("fresh", "open", "served") and (oldest is None or (group.promised and 0 <= group.version <= oldest)):
                yield group.id
