"""What happens between updates: publishes, checkpoints, rounds, the end. All of it waits until the trainer is free."""

from __future__ import annotations

from paceline.core.admission import Admission
from paceline.core.commands import Checkpoint, Dispatch, Publish, SetFrontier, Stop
from paceline.core.frontier import Meter, choose
from paceline.core.intake import Intake
from paceline.core.loading import Loading
from paceline.core.placement import Placement
from paceline.core.schedule import AUTO, Resume, next_due
from paceline.core.state import Machinery
from paceline.core.training import Training

Content = tuple[int, int, tuple[int, ...], int]
"""Update, version, pending and next index: the fields of a Checkpoint."""


class Boundaries:
    """Produces Checkpoint and Stop, and says when to publish, to open a round and to dispatch."""

    def __init__(
        self,
        shared: Machinery,
        resume: Resume,
        intake: Intake,
        admission: Admission,
        training: Training,
        loading: Loading,
        placement: Placement,
    ) -> None:
        self._m = shared
        self._intake = intake
        self._admission = admission
        self._training = training
        self._loading = loading
        self._placement = placement
        self._every = shared.schedule.checkpoint_every
        self._next = next_due(self._every, shared.update)
        self._due = False
        self._saved: Content | None = None
        """What the last checkpoint holds; a resumed run starts from one."""
        if resume != Resume():
            self._saved = (resume.update, resume.version, tuple(sorted(resume.pending)), resume.next_index)
        self._drains = shared.schedule.at_publish == "drain" and not shared.traits.balanced
        self.meter = Meter()
        self.stopped = False

    @property
    def busy(self) -> bool:
        """Whether the trainer has something to do."""
        waiting = self._m.out.waiting
        return bool(waiting(Dispatch) or waiting(Publish) or waiting(Checkpoint))

    @property
    def over(self) -> bool:
        """No update will be issued any more."""
        return self._m.update >= self._m.schedule.total_updates or self._intake.exhausted

    def advance(self) -> None:
        """Give the trainer what is due now, if it is free; open the next round when one is over."""
        m = self._m
        if not self.busy:
            self._next_task()
        if m.traits.rounds and self._intake.settled and not m.issued and not self.over and m.leaving is None:
            self._open_round()

    def _next_task(self) -> None:
        m = self._m
        if m.leaving is not None:
            self._leave(m.leaving)
        elif self._training.publish_due(self.over):
            self._training.publish(m.versions.newest + 1)
        elif self._due:
            self._due = False
            self._checkpoint()
        elif self.over:
            self._finish()
        elif self._training.dispatch() and self._drains and m.issued == m.schedule.updates_per_publish:
            # A publish is due: what starts now would only delay the instances' next weights.
            self._placement.all_to(m.versions.newest + 1)

    def _finish(self) -> None:
        """No update follows: leave once the last version has been evaluated."""
        m = self._m
        if self._loading.evaluate_last():
            done = m.update >= m.schedule.total_updates
            self._leave(f"{m.update} updates are done" if done else f"the data ended after {m.update} updates")

    def _open_round(self) -> None:
        frontier = self._m.schedule.frontier
        self._intake.open_round()
        self._admission.frontier = self._choose_frontier() if frontier == AUTO else frontier

    def _choose_frontier(self) -> int | None:
        """The frontier of the round that begins, by the rounds before: unlimited while too little of them is known."""
        m, instances = self._m, self._m.fleet.instances
        self.meter.new_round()
        load = self.meter.load(m.schedule, sum(i.info.slots for i in instances.values()), len(instances))
        frontier, forecast = choose(load) if load is not None else (None, None)
        m.out.tell(SetFrontier(m.out.next_id(), self._intake.rounds, frontier, forecast))
        return frontier

    def published(self) -> None:
        """A version is available: is a checkpoint due here?"""
        if self._every and self._m.update >= self._next:
            self._due = True
            self._next = next_due(self._every, self._m.update)

    def _content(self) -> Content:
        m = self._m
        pending = tuple(sorted([*m.groups.live, *self._intake.unseen()]))
        return m.update, m.versions.newest + (1 if m.issued else 0), pending, self._intake.next_index

    def _checkpoint(self) -> None:
        content = self._saved = self._content()
        self._m.out.ask(Checkpoint(self._m.out.next_id(), *content))

    def _leave(self, reason: str) -> None:
        """A last checkpoint, unless the last one has it all; then stop."""
        if self._saved != self._content():
            self._checkpoint()
        else:
            self.stop(reason, ok=self._m.error is None)

    def stop(self, reason: str, ok: bool) -> None:
        """The run is over."""
        self.stopped = True
        self._m.leaving = reason
        self._m.out.tell(Stop(self._m.out.next_id(), reason, ok))
