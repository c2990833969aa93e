"""The fold: time passes in a scene, and what it was spent on is summed per update, per publish period and over the lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account.causes import present
from paceline.core.account.members import READY
from paceline.core.account.scene import Scene
from paceline.core.account.tally import Tally, Window, increase
from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.schedule import Resume, Schedule


@dataclass(frozen=True, slots=True)
class Row:
    """A stretch that has ended. Times in seconds, on the clock of the records."""

    axis: Literal["update", "publish"]
    step: int
    """The update that finished, or the version that is published now."""
    now: float
    tally: Tally
    """Since the row before on this axis."""
    window: Window
    """`update`: the present window so far. `publish`: the one that has ended."""
    trained: float
    """When the window's last update so far finished; windows are measured up to here."""
    decoded: float
    """Seconds in which trajectories decoded, since the row before on this axis in which one finished."""


class Account:
    """Folds one lineage. Costs O(1) per record, and O(groups) at a publish where groups may get over-stale."""

    def __init__(self, schedule: Schedule, resume: Resume | None = None) -> None:
        self.scene = Scene(schedule, resume or Resume())
        self.now = 0.0
        self._began = False
        self.window = Window()
        self._rows = {"update": Tally(), "publish": Tally()}
        self._fruitless = {"update": 0.0, "publish": 0.0}
        """Seconds in which trajectories decoded, since the last row in which one finished."""
        self._whole = Tally()
        """All publish periods that have ended."""
        self._trained = 0.0
        self._updated = False
        """Whether an update finished since the newest publish."""

    @property
    def total(self) -> Tally:
        """Everything so far."""
        tally = Tally()
        tally.add(self._whole)
        tally.add(self._rows["publish"])
        return tally

    def feed(self, record: Event | Command, now: float) -> Row | None:
        """Fold one record, made at `now` seconds, in; the stretch that it ends, if it ends one. Time begins with the first record."""
        if self._began and now > self.now:
            self._pass(now - self.now)
        self.now, self._began = now, True
        row = None
        if (note := _NOTES.get(type(record))) is not None:
            row = note(self, record)
        before = self.scene.overstale
        self.scene.take(record)
        self._count("overstale", self.scene.overstale - before)
        return row

    def _pass(self, seconds: float) -> None:
        """Time passes as things stand."""
        moment = present(self.scene)
        self._pass_window(moment.trainer, seconds)
        for tally in self._rows.values():
            tally.spend(seconds, moment)

    def _pass_window(self, state: str, seconds: float) -> None:
        window, scene = self.window, self.scene
        if window.start is None:
            return
        if state == "train":
            window.train += seconds
        elif state == "evaluation" or (state in ("publish", "checkpoint") and scene.states[READY] >= scene.wanted):
            window.left_out += seconds

    # What is counted; each sees the scene before it takes the record

    def _admit(self, command: c.Admit) -> None:
        if self.window.start is None:
            self.window.start = self.now

    def _dispatch(self, command: c.Dispatch) -> None:
        if self.window.first_dispatch is None:
            self.window.first_dispatch = self.window.seconds(self.now)
        for tally in self._rows.values():
            for versions, updates in zip(command.staleness, command.staleness_updates, strict=True):
                increase(tally.staleness, versions, 1)
                increase(tally.staleness_updates, updates, 1)

    def _finished(self, event: e.TrajectoryFinished) -> None:
        if event.command in self.scene.admits:
            self._count("tokens", event.tokens)
            self._count("trajectories")

    def _migrated(self, event: e.Migrated) -> None:
        if event.command in self.scene.open[c.Migrate]:
            self._count("migrated", len(event.moved))
            self._count("prefilled", event.prefilled_tokens)

    def _attempt_failed(self, event: e.TrajectoryFailed) -> None:
        if event.command in self.scene.admits:
            self._count("failed_attempts")

    def _command_failed(self, event: e.CommandFailed) -> None:
        if event.command in self.scene.admits:
            self._count("failed_attempts")
        elif event.command in self.scene.open[c.Materialize]:
            self._count("failed_rewards")

    def _terminal(self, command: c.Terminal) -> None:
        if command.state != "trained":
            self._count(command.state)

    def _count(self, name: str, by: int = 1) -> None:
        for tally in self._rows.values():
            setattr(tally, name, getattr(tally, name) + by)

    def _finished_update(self, event: e.UpdateFinished) -> Row | None:
        if event.command not in self.scene.open[c.Dispatch]:
            return None
        self._trained, self._updated = self.now, True
        return self._row("update", event.update)

    def _publish(self, command: c.Publish) -> Row | None:
        row = self._row("publish", command.version) if self._updated else None
        if row is not None:
            self._whole.add(row.tally)
        ended, self._updated = self.window, False
        # Rollout does not begin anew where there are no rounds: a period begins where the training of the one before ended.
        self.window = Window(None if self.scene.traits.rounds or ended.start is None else self.now)
        return row

    def _row(self, axis: Literal["update", "publish"], step: int) -> Row:
        tally, self._rows[axis] = self._rows[axis], Tally()
        decoded = self._fruitless[axis] + tally.busy.get("rollout", 0.0)
        self._fruitless[axis] = 0.0 if tally.trajectories else decoded
        return Row(axis, step, self.now, tally, replace(self.window), self._trained, decoded)


def account(schedule: Schedule, resume: Resume, records: Iterable[tuple[float, Event | Command]]) -> tuple[Account, list[Row]]:
    """A lineage from its records: the account at its end, and every row."""
    fold = Account(schedule, resume)
    rows = [row for now, record in records if (row := fold.feed(record, now)) is not None]
    return fold, rows


_NOTES: dict[type, Callable[[Account, Any], Row | None]] = {
    c.Admit: Account._admit,
    c.Dispatch: Account._dispatch,
    c.Publish: Account._publish,
    c.Terminal: Account._terminal,
    e.TrajectoryFinished: Account._finished,
    e.TrajectoryFailed: Account._attempt_failed,
    e.CommandFailed: Account._command_failed,
    e.Migrated: Account._migrated,
    e.UpdateFinished: Account._finished_update,
}
