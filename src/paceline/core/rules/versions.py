"""Rules 3, 4 and 5: which version a token is from, how old it may be, and whose log-probs it carries."""

from __future__ import annotations

from typing import ClassVar

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules.facts import RUNNING, Instance
from paceline.core.rules.fold import Check, Rule


class Pinned(Rule):
    """3. serial, pipelined, multiversion: all tokens of a group carry one version; a round has one; an evaluation sees one."""

    number: ClassVar[int] = 3

    def checks(self) -> dict[type, Check]:
        """Admissions, finished trajectories, weights under an evaluation."""
        always: dict[type, Check] = {c.LoadWeights: self._load}
        if self.schedule.preset == "streaming":
            return always
        return always | {c.Admit: self._admit, e.TrajectoryFinished: self._finished}

    def _admit(self, command: c.Admit, now: float) -> str | None:
        if self.schedule.preset != "multiversion":
            if command.version != self.book.newest:
                return f"group {command.group} was admitted under version {command.version} in the round of version {self.book.newest}"
            if self.book.waits_for(c.Evaluate):
                return f"group {command.group} was admitted while version {self.book.newest} is evaluated"
        group = self.book.groups.get(command.group)
        if group is not None and group.alive and group.version != command.version:
            name = f"group {command.group} runs under version {group.version}"
            return f"{name}, its sample {command.sample} was admitted under {command.version}"
        return None

    def _finished(self, event: e.TrajectoryFinished, now: float) -> str | None:
        if (sample := self.book.running(event)) is None:
            return None
        name = f"trajectory ({event.group}, {event.sample})"
        if not event.version_min == event.version_max == sample.version:
            return f"{name} has tokens of versions {event.version_min} to {event.version_max}, it is pinned to {sample.version}"
        return None

    def _load(self, command: c.LoadWeights, now: float) -> str | None:
        instance = self.book.instances.get(command.instance)
        if instance is None or not instance.versions:
            return None
        if self.book.waits_for(c.Evaluate):
            return f"instance {command.instance} changed to version {command.version} during an evaluation"
        return None


class Bounded(Rule):
    """4. Staleness at consumption, recomputed from Publish commands and token versions, is what Dispatch says and within the bound."""

    number: ClassVar[int] = 4

    def checks(self) -> dict[type, Check]:
        """Consumption only: it is never estimated earlier."""
        return {c.Dispatch: self._dispatch}

    def _dispatch(self, command: c.Dispatch, now: float) -> str | None:
        if len(command.staleness) != len(command.groups) or len(command.staleness_updates) != len(command.groups):
            return f"update {command.update} does not record the staleness of its groups {command.groups}"
        for i, index in enumerate(command.groups):
            group = self.book.groups.get(index)
            if group is None or (low := group.low()) < 0:
                continue
            versions, updates = self.book.newest - low, self.book.stepped - self.book.contains.get(low, 0)
            if versions > self.schedule.bound:
                where = f"version {low} of {self.book.newest}"
                return f"group {index} was consumed {versions} versions stale ({where}), bound {self.schedule.bound}"
            if (command.staleness[i], command.staleness_updates[i]) != (versions, updates):
                said = f"{command.staleness[i]} versions, {command.staleness_updates[i]} updates"
                return f"group {index} was recorded as stale by {said}; it is {versions} and {updates}"
        return None


class BehaviourLogprobs(Rule):
    """5. A token's log-prob is that of the version that sampled it: only versions verified on the instance can have sampled."""

    number: ClassVar[int] = 5

    def checks(self) -> dict[type, Check]:
        """Where work meets weights."""
        return {
            c.Admit: self._admit,
            c.LoadWeights: self._load,
            c.Migrate: self._migrate,
            e.TrajectoryFinished: self._finished,
        }

    def _admit(self, command: c.Admit, now: float) -> str | None:
        instance = self.book.instances.get(command.instance)
        name = f"trajectory ({command.group}, {command.sample})"
        if instance is None:
            return f"{name} was admitted to {command.instance}, which is not there"
        if command.version not in instance.versions:
            return f"{name} was admitted under version {command.version} to {command.instance}, which serves {instance.versions}"
        if self._overwrites(instance, command.version):
            return f"{name} was admitted under version {command.version} to {command.instance}, which is loading other weights"
        return None

    def _overwrites(self, instance: Instance, version: int) -> bool:
        """Whether weights on their way will take the place of `version`; streaming's tokens say which they are from."""
        return self.schedule.preset != "streaming" and version in instance.departing

    def _load(self, command: c.LoadWeights, now: float) -> str | None:
        instance = self.book.instances.get(command.instance)
        if instance is None:
            return f"version {command.version} was sent to {command.instance}, which is not there"
        kept = ({*instance.versions} | instance.arriving) - {command.version, command.replaces}
        if len(kept) >= instance.info.versions_held:
            return f"version {command.version} was sent to {command.instance}, which is full with versions {sorted(kept)}"
        return None if command.replaces is None else self._under_work(command, instance)

    def _under_work(self, command: c.LoadWeights, instance: Instance) -> str | None:
        """Weights make way under running trajectories in streaming only, and only as its schedule says."""
        streaming = self.schedule.preset == "streaming"
        if streaming and command.unfinished == self.schedule.at_publish:
            return None
        busy = sorted((a.group, a.sample) for a in self.book.admitted(instance) if streaming or a.version == command.replaces)
        if busy:
            return f"version {command.version} replaces {command.replaces} on {command.instance} under trajectories {busy[:8]}"
        return None

    def _migrate(self, command: c.Migrate, now: float) -> str | None:
        target = self.book.instances.get(command.target)
        if target is None or command.version not in target.versions or self._overwrites(target, command.version):
            what = f"trajectories {command.trajectories[:8]} of version {command.version}"
            return f"{what} were moved to {command.target}, which does not serve it"
        for trajectory in command.trajectories:
            if (message := self._move(command, trajectory)) is not None:
                return message
        return None

    def _move(self, command: c.Migrate, trajectory: tuple[int, int]) -> str | None:
        sample = self.book.sample(*trajectory)
        if sample is None or sample.state != RUNNING or sample.instance != command.source:
            return f"trajectory {trajectory} was moved from {command.source}, where it does not run"
        if self.schedule.preset != "streaming" and sample.version != command.version:
            return f"trajectory {trajectory} of version {sample.version} was moved as version {command.version}"
        return None

    def _finished(self, event: e.TrajectoryFinished, now: float) -> str | None:
        sample = self.book.running(event)
        instance = self.book.instances.get(sample.instance) if sample else None
        if sample is None or instance is None:
            return None
        newest = max(instance.versions, default=-1)
        if sample.version <= event.version_min <= event.version_max <= newest:
            return None
        return (
            f"trajectory ({event.group}, {event.sample}) has tokens of versions {event.version_min} to {event.version_max}; "
            f"it started under {sample.version} and the newest verified on {sample.instance} is {newest}"
        )
