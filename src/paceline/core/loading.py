"""Which weights an instance serves: loads when the rules allow them, and evaluations, during which nothing is loaded."""

from __future__ import annotations

from paceline.core.commands import Evaluate, LoadWeights
from paceline.core.events import WeightsLive
from paceline.core.records import Instance
from paceline.core.schedule import next_due
from paceline.core.state import Machinery
from paceline.types.weights import Unfinished


class Loading:
    """Consumes WeightsLive and Evaluated; produces LoadWeights and Evaluate."""

    def __init__(self, shared: Machinery) -> None:
        self._m = shared
        # A new run is evaluated at version 0, so that there is something to compare with.
        self._next = next_due(shared.schedule.evaluate_every, shared.update) if shared.update else 0
        self.due = False
        """An evaluation of the newest available version is wanted."""
        self.evaluated = -1
        """Version of the last evaluation."""
        self._load_of: dict[str, int] = {}

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation runs."""
        return self._m.out.waiting(Evaluate) > 0

    @property
    def quiet(self) -> bool:
        """Whether no evaluation is wanted or running."""
        return not self.due and not self.evaluating

    def published(self, final: bool) -> None:
        """A version is available: is it one to evaluate?"""
        every = self._m.schedule.evaluate_every
        if every and (self._m.update >= self._next or final):
            self.due = True
            self._next = next_due(every, self._m.update)

    def evaluate_last(self) -> bool:
        """The run is over: True once the newest version has been evaluated, or no evaluation is wanted at all."""
        if self._m.schedule.evaluate_every and self.evaluated != self._m.versions.available:
            self.due = self.due or not self.evaluating
        return self.quiet

    def evaluate(self) -> None:
        """Start the evaluation that is due once something serves the version and no instance is changing its weights."""
        m = self._m
        version = m.versions.available
        if self.due and not self.evaluating and version in m.fleet.holders and not m.out.waiting(LoadWeights):
            self.due = False
            self.evaluated = version
            m.out.ask(Evaluate(m.out.next_id(), version, m.versions.contained(version)))

    def _blocked(self) -> bool:
        return self.evaluating or (self.due and self._m.versions.available in self._m.fleet.holders)

    def load_all(self) -> None:
        """Load whatever may be loaded anywhere."""
        for instance in self._m.fleet.instances.values():
            self.load(instance)

    def load(self, instance: Instance) -> None:
        """Load the first version that the instance is meant to serve and does not, if there is a place for it."""
        m = self._m
        if instance.loading is not None or self._blocked() or m.leaving is not None:
            return
        version = self._missing(instance)
        if version is None:
            return
        replaces: int | None = None
        if len(instance.held) >= self._places(instance):
            replaces = self._replaceable(instance)
            if replaces is None:
                return
        m.fleet.begin_load(instance, version, replaces)
        command = self._load_of[instance.name] = m.out.next_id()
        m.out.ask(LoadWeights(command, instance.name, version, self._unfinished(instance, replaces), replaces))

    def _missing(self, instance: Instance) -> int | None:
        """The first version that an instance is meant to serve, does not, and could load."""
        for version in instance.target:
            if version not in instance.held and self._m.versions.stored(version):
                return version
        return None

    def _unfinished(self, instance: Instance, replaces: int | None) -> Unfinished:
        """What becomes of the work under the version that makes way."""
        at_publish = self._m.schedule.at_publish
        if replaces is None or not instance.held[replaces] or at_publish == "drain":
            return "none"
        return at_publish

    def _places(self, instance: Instance) -> int:
        return instance.info.versions_held if self._m.traits.balanced else 1

    def _replaceable(self, instance: Instance) -> int | None:
        """The oldest version that may go: not a target, and without work unless that goes on under the new weights."""
        carries = not self._m.traits.pinned and self._m.schedule.at_publish != "drain"
        fit = [v for v, used in instance.held.items() if v not in instance.target and (carries or not used)]
        return min(fit, default=None)

    def live(self, event: WeightsLive) -> Instance | None:
        """Weights arrived. The instance that serves them now; None for an answer that is too late."""
        command = self._m.out.close(LoadWeights, event.command)
        if command is None:
            return None
        assert (command.instance, command.version) == (event.instance, event.version), f"{event!r} cannot answer {command!r}"
        instance = self._m.fleet.instances[event.instance]
        del self._load_of[event.instance]
        self._m.fleet.live(instance)
        return instance

    def forget(self, instance: Instance) -> None:
        """An instance is gone: its load is waited for no longer."""
        command = self._load_of.pop(instance.name, None)
        if command is not None:
            self._m.out.close(LoadWeights, command)
