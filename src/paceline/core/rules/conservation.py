"""Rules 1, 2 and 6: nothing is lost, doubled, torn or given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules.facts import ENDED, FINISHED, PARKED, RUNNING, Group, Sample
from paceline.core.rules.fold import Check, Rule


class ExactlyOnce(Rule):
    """1. Every admitted trajectory reaches exactly one terminal state, every prompt of the data order is consumed once.

    Across lineages it holds by induction: each checkpoint names exactly what a resume must take again, and a lineage starts there.
    """

    number: ClassVar[int] = 1

    def checks(self) -> dict[type, Check]:
        """Prompts, admissions, consumption, terminal states, checkpoints."""
        return {
            e.PromptsArrived: self._arrived,
            c.Admit: self._admit,
            c.Dispatch: self._dispatch,
            c.Terminal: self._terminal,
            c.Checkpoint: self._checkpoint,
        }

    def _arrived(self, event: e.PromptsArrived, now: float) -> str | None:
        request = self.book.answers(event, c.RequestPrompts)
        if request is None:
            return None
        if len(event.indices) > request.count:
            return f"{request.count} prompts were requested, {len(event.indices)} arrived"
        expected = tuple(range(self.book.next_index, self.book.next_index + len(event.indices)))
        return None if event.indices == expected else f"prompts {event.indices} arrived, {expected} were next in the data order"

    def _admit(self, command: c.Admit, now: float) -> str | None:
        group = self.book.groups.get(command.group)
        name = f"trajectory ({command.group}, {command.sample}) attempt {command.attempt}"
        if group is None:
            return f"{name} was admitted, but group {command.group} has not arrived or is terminal"
        if group.dispatched:
            return f"{name} was admitted after its group was consumed"
        if not 0 <= command.sample < self.schedule.group_size:
            return f"{name} was admitted: a group has {self.schedule.group_size} samples"
        allowed = self._attempts(group, group.samples.get(command.sample))
        return None if command.attempt in allowed else f"{name} was admitted, but its next attempt is one of {allowed}"

    def _attempts(self, group: Group, sample: Sample | None) -> tuple[int, ...]:
        """Attempts that may be admitted next. State of a parked trajectory may be gone, then it starts anew."""
        if group.scored is not None:
            if self.schedule.overstale != "retry" or not self.book.overstale(group):
                return ()
        elif sample is not None and sample.state in (RUNNING, FINISHED):
            return ()
        if sample is None:
            return (0,)
        return (sample.attempt, sample.attempt + 1) if sample.state == PARKED else (sample.attempt + 1,)

    def _dispatch(self, command: c.Dispatch, now: float) -> str | None:
        for index in command.groups:
            group = self.book.groups.get(index)
            if group is None:
                return f"group {index} was consumed, but it has not arrived or is terminal"
            if group.dispatched:
                return f"group {index} was consumed twice: for updates {group.dispatched} and {command.update}"
        if self.book.waits_for(c.Checkpoint):
            return f"groups {command.groups} were consumed while a checkpoint is written"
        return None

    def _terminal(self, command: c.Terminal, now: float) -> str | None:
        group = self.book.groups.get(command.group)
        if group is None:
            return f"group {command.group} became {command.state}, but it has not arrived or is terminal"
        if command.state == "trained":
            return None if group.trained else f"group {command.group} became trained before the update that consumed it finished"
        return f"group {command.group} became {command.state} after update {group.dispatched} consumed it" if group.dispatched else None

    def _checkpoint(self, command: c.Checkpoint, now: float) -> str | None:
        book = self.book
        live = set(book.groups) | set(range(book.next_index, command.next_index))
        if command.next_index < book.next_index or set(command.pending) != live or len(command.pending) != len(live):
            lost, twice = sorted(live - set(command.pending)), sorted(set(command.pending) - live)
            return (
                f"the checkpoint at update {command.update} would lose groups {lost} and repeat {twice} (next index "
                f"{command.next_index}, first index that never arrived {book.next_index})"
            )
        if command.update != book.finished:
            return f"the checkpoint claims update {command.update}, {book.finished} finished"
        return None

    def close(self) -> Iterator[str]:
        """A run that stopped well has everything terminal in its last checkpoint (or had nothing since the one it started from)."""
        book = self.book
        if book.unsaved and book.stop is not None and book.stop.ok and book.stopping != "now":
            yield f"the run stopped well, but groups {book.unsaved} became terminal after its last checkpoint"


class WholeGroups(Rule):
    """2. A group trains with all its trajectories or not at all, except under `drop_sample`; updates are U groups, short only at an end."""

    number: ClassVar[int] = 2

    def checks(self) -> dict[type, Check]:
        """Materialization and consumption."""
        return {c.Materialize: self._materialize, e.GroupMaterialized: self._materialized, c.Dispatch: self._dispatch}

    def _materialize(self, command: c.Materialize, now: float) -> str | None:
        group = self.book.groups.get(command.group)
        if group is None:
            return f"group {command.group} was materialized, but it has not arrived or is terminal"
        if group.scored is not None:
            return f"group {command.group} was materialized twice"
        finished = tuple(sorted(group.having(FINISHED)))
        if command.samples != finished:
            return f"group {command.group} was materialized with samples {command.samples}, finished are {finished}"
        size = self.schedule.group_size
        if len(finished) == size:
            return None
        if self.schedule.on_failure != "drop_sample":
            return f"group {command.group} was materialized with {len(finished)} of {size} samples under {self.schedule.on_failure!r}"
        waiting = sorted(set(range(size)) - group.having(FINISHED, ENDED))
        return f"group {command.group} was materialized before its samples {waiting} ended" if waiting else None

    def _materialized(self, event: e.GroupMaterialized, now: float) -> str | None:
        command = self.book.answers(event, c.Materialize)
        if command is None or event.samples <= len(command.samples):
            return None
        return f"group {command.group} came back with {event.samples} samples of {len(command.samples)}"

    def _dispatch(self, command: c.Dispatch, now: float) -> str | None:
        for index in command.groups:
            if (message := self._whole(index)) is not None:
                return message
        return self._order(command) or self._amount(command) or (self._short(command) if command.step else None)

    def _whole(self, index: int) -> str | None:
        group = self.book.groups.get(index)
        if group is None or group.outcome is None:
            return f"group {index} was consumed before it was trainable"
        if not self.book.trainable(group.outcome):
            return f"group {index} was consumed although it was filtered: {group.outcome.reason or 'no signal'}"
        size, survivors = self.schedule.group_size, group.outcome.samples
        if survivors < size and (self.schedule.on_failure != "drop_sample" or survivors < 2):
            return f"group {index} was consumed with {survivors} of {size} samples under {self.schedule.on_failure!r}"
        return None

    def _order(self, command: c.Dispatch) -> str | None:
        """One update after the other, one dispatch at a time, nothing of an update forgotten."""
        book = self.book
        if command.update != book.stepped + 1:
            return f"groups {command.groups} were consumed for update {command.update}, {book.stepped + 1} is next"
        if book.waits_for(c.Dispatch):
            return f"groups {command.groups} were consumed while another dispatch is with the trainer"
        if command.update_groups != book.accumulated + command.groups:
            return f"update {command.update} says it holds {command.update_groups}, it holds {book.accumulated + command.groups}"
        return None

    def _amount(self, command: c.Dispatch) -> str | None:
        """At most D groups in a dispatch and U in an update, which steps when it is full."""
        schedule = self.schedule
        if len(command.groups) > schedule.groups_per_dispatch:
            return f"{len(command.groups)} groups in one dispatch, D = {schedule.groups_per_dispatch}"
        # Without groups: the step of an update whose last candidates were filtered after it accumulated the others.
        if not command.update_groups or not (command.groups or command.step):
            return f"a dispatch for update {command.update} gives the trainer nothing"
        if len(command.update_groups) > schedule.groups_per_update:
            return f"update {command.update} holds {len(command.update_groups)} groups, U = {schedule.groups_per_update}"
        if len(command.update_groups) == schedule.groups_per_update and not command.step:
            return f"update {command.update} holds all of its U = {schedule.groups_per_update} groups and does not step"
        return None

    def _short(self, command: c.Dispatch) -> str | None:
        """A short update is right only when no group can join it: at the end of the round or of the data."""
        if len(command.update_groups) == self.schedule.groups_per_update:
            return None
        rest = [i for i in self.book.promising() if i not in command.groups]
        count = f"update {command.update} stepped with {len(command.update_groups)} of {self.schedule.groups_per_update} groups"
        if rest:
            return f"{count} although groups {rest[:8]} could still join"
        if self.book.data_ended:
            return None
        if self.book.waits_for(c.RequestPrompts):
            return f"{count} although prompts are still to arrive"
        if self.schedule.preset in ("streaming", "multiversion"):
            return f"{count} although the data has not ended"
        return None


class NothingAbandoned(Rule):
    """6. No response is given up for being long or old: a filtered or failed group has its reason in evidence.

    Only `streaming` with `overstale = drop` may filter a group for its age.
    """

    number: ClassVar[int] = 6

    def checks(self) -> dict[type, Check]:
        """Aborts and terminal states."""
        return {c.Abort: self._abort, c.Terminal: self._terminal}

    def _abort(self, command: c.Abort, now: float) -> str | None:
        group = self.book.groups.get(command.group)
        if group is None or group.failures or self._ending() or self._restarts():
            return None
        sample = self.book.meant(command)
        if sample is None or sample.state == ENDED:
            # An attempt that was given up with its instance, and arrived elsewhere all the same.
            return None
        return f"trajectory ({command.group}, {command.sample}) was abandoned: {command.why or 'no reason'}"

    def _ending(self) -> bool:
        book = self.book
        return bool(book.stopping) or book.stepped >= self.schedule.total_updates or book.stop is not None

    def _restarts(self) -> bool:
        """Streaming may end a trajectory to start it again: over-stale under `retry`, or its state cannot be kept."""
        return self.schedule.preset == "streaming" and self.schedule.overstale != "pace"

    def _terminal(self, command: c.Terminal, now: float) -> str | None:
        group = self.book.groups.get(command.group)
        if group is None or command.state == "trained":
            return None
        name = f"group {command.group} became {command.state} ({command.why or 'no reason'})"
        if command.state == "failed":
            return None if group.failures else f"{name}, but nothing of it failed"
        return None if self._may_filter(group) else f"{name}, but neither its filter nor its age says so"

    def _may_filter(self, group: Group) -> bool:
        if group.outcome is not None and not self.book.trainable(group.outcome):
            return True
        return self.schedule.preset == "streaming" and self.schedule.overstale == "drop" and self.book.overstale(group)
