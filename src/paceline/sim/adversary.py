"""An adversary against the machine: answers in any legal order, late, twice or badly; losses, restarts, stops, kills at any moment.

Unlike a simulated run it has no world and no plausible timing. It holds no model of its own either: what is open, and what an answer may
say, stands in the rules' book. Whatever it did, a fair world must then bring the run to its end, from there and from every checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.presets import traits
from paceline.core.rules import Rules
from paceline.core.rules.book import Book
from paceline.core.rules.facts import RUNNING
from paceline.core.schedule import Preset, Resume
from paceline.sim import cases
from paceline.sim.trials import left_behind
from paceline.types.weights import InstanceInfo

NAMES = ("i0", "i1", "i2")
FATAL = (c.RequestPrompts, c.Dispatch, c.Publish, c.Checkpoint)
"""Commands whose failure ends the run."""
MOST = 20_000
"""Events in which a fair world must bring any run of `cases.schedule` to its end."""


class Wrong(Exception):
    """A rule is broken, a promise is not kept, or the run stalls."""


@dataclass(frozen=True, slots=True)
class Game:
    """What a game found. `wrong` is "" when all is well; `moves` are the adversary's, `records` all events and commands by kind."""

    wrong: str
    moves: int
    records: Counter[str]
    lineages: int


def play(preset: Preset, pick: cases.Chooser, moves: int) -> Game:
    """`moves` moves against a schedule of the preset, then a fair world from there and from every checkpoint that was written."""
    adversary = Adversary(preset, pick)
    wrong = ""
    try:
        adversary.begin()
        for _ in range(moves):
            adversary.move()
        adversary.settle()
    except Wrong as error:
        last = "\n".join(map(str, adversary.log[-40:]))
        wrong = f"{error}\n{adversary.schedule}\n{last}"
    return Game(wrong, adversary.moves, adversary.records, adversary.lineages)


class Adversary:
    """One game; `play` is the way in."""

    def __init__(self, preset: Preset, pick: cases.Chooser) -> None:
        self.pick = pick
        self.schedule = replace(cases.schedule(preset, pick), total_updates=pick.of(1, 3, 8, 20))
        self.prompts = pick.of(None, None, None, None, 0, 1, 7, 30)
        """Length of the data order; None = endless."""
        self.slow = {kind for kind in (c.Materialize, c.Evaluate, c.LoadWeights, c.Migrate, c.Abort) if pick.of(True, False, False)}
        """Commands that wait longest for their answers."""
        self.tail = pick.of(0, 2, 3, 5)
        """Every so many groups there is one that takes longest; 0 = none."""
        self.stops = pick.of(0, 0, 1)
        self.now = 0.0
        self.moves = self.lineages = 0
        self.records: Counter[str] = Counter()
        self.log: list[Any] = []
        self.said: list[e.Event] = []
        """Every event of this lineage."""
        self.owed: list[Any] = []
        """Commands of this lineage that are answered no longer: their instance was lost, or they were aborted."""
        self.later: list[e.Event] = []
        """What is still to be said of the end of the data."""
        self.cause = False
        """Whether anything was said in this lineage for which a run may stop with an error."""
        self.ended: list[int] = []
        """Groups that are terminal on the surviving lineage."""
        self.consumed = -1
        """Latest group, in order of submission, that was consumed."""
        self.checkpoints: list[tuple[c.Checkpoint, list[int]]] = []
        """Each with the groups that were terminal before it."""
        self.worst = pick.of(0, 1, 3, 6)
        """Luck is never worse than this."""
        self.repertoire = [move for move in _ANSWERING for _ in range(pick.of(1, 3, 6))]
        """Moves as often as they are likely: some games are all losses, others have none."""
        self.repertoire += [move for move in _OTHERS for _ in range(pick.of(0, 1, 1, 3))]
        self.repertoire += [move for move in _DISRUPTING for _ in range(pick.of(0, 0, 1, 2))]

    @property
    def book(self) -> Book:
        """What the records of this lineage say."""
        return self.rules.book

    @property
    def stopped(self) -> bool:
        """Whether this lineage is over."""
        return self.book.stop is not None

    # Moves

    def begin(self) -> None:
        """The first lineage; sometimes it is asked to stop before it has started."""
        self.start(Resume(), [])
        for name in NAMES[: self.pick.upto(0, 3)]:
            if not self.stopped:
                self.feed(e.InstanceUp(self.info(name)))

    def start(self, resume: Resume, ended: list[int]) -> None:
        """A lineage from `resume`: what came after it is void."""
        self.lineages += 1
        self.machine = Machine(self.schedule, resume)
        self.rules = Rules(self.schedule, resume)
        self.ended = list(ended)
        self.consumed, self.cause = -1, False
        self.said, self.owed, self.later = [], [], []
        self.log.append(resume)
        if self.stops and self.pick.of(*[False] * 9, True):
            self.feed(e.StopRequested("checkpoint", "before the start"))
        else:
            self.feed(e.Started())

    def move(self) -> None:
        """One move."""
        self.moves += 1
        if self.stopped:
            self.talk_after_the_end()
            self.kill()
        else:
            self.now += 0.1
            self.pick.of(*self.repertoire)(self)

    def answer_any(self) -> None:
        """Any open command is answered, well or badly."""
        if self.book.open:
            self.answer(self.pick.of(*self.book.open.values()), self.luck())

    def answer_the_oldest(self) -> None:
        """Some of the oldest open commands are answered alike, but for those that are slow in this game."""
        luck = self.luck()
        for _ in range(self.pick.of(1, 4, 12, 40)):
            command = next((o for o in self.book.open.values() if not self.waits_long(o)), None)
            if command is None or self.stopped:
                return
            self.now += 0.01
            self.answer(command, luck)

    def waits_long(self, command: Any) -> bool:
        """Whether a command is one of those that are slow in this game."""
        if type(command) is c.Admit and self.tail and command.group % self.tail == 0:
            return True
        return type(command) in self.slow

    def luck(self) -> int:
        """How well a command is answered, 0..9."""
        return self.pick.upto(self.worst, 9)

    def say_again(self) -> None:
        """An answer that was given comes once more."""
        event: Any = self.pick.of(*self.said)
        if getattr(event, "command", None) is not None and event.command not in self.book.open:
            self.feed(event)

    def answer_late(self) -> None:
        """An answer that nobody waits for any more."""
        if self.owed:
            self.answer(self.pick.of(*self.owed), self.luck())

    def say_later(self) -> None:
        """The end of the data, told after other things have happened."""
        if self.later:
            self.feed(self.later.pop())

    def come(self) -> None:
        """An instance comes up."""
        name = self.pick.of(*NAMES)
        if name not in self.book.instances:
            self.feed(e.InstanceUp(self.info(name)))

    def restart(self) -> None:
        """An instance comes up again before its loss was noticed."""
        if self.book.instances:
            self.feed(e.InstanceUp(self.info(self.pick.of(*self.book.instances))))

    def lose(self) -> None:
        """An instance is lost; sometimes that is told twice."""
        name = self.pick.of(*NAMES)
        self.feed(e.InstanceLost(name, "gone"))

    def interfere(self) -> None:
        """An instance that a move, a load or an abort is under way on is lost or comes up again."""
        moves = [name for o in self.book.open.values() if type(o) is c.Migrate for name in (o.source, o.target)]
        others = [o.instance for o in self.book.open.values() if type(o) in (c.LoadWeights, c.Abort)]
        if names := moves or others:
            name = self.pick.of(*names)
            lost: e.Event = e.InstanceLost(name, "gone in the middle of something")
            self.feed(self.pick.of(lost, e.InstanceUp(self.info(name))))

    def report(self) -> None:
        """An instance tells how full and how fast it is, or that it is idle."""
        if self.book.instances:
            name = self.pick.of(*self.book.instances)
            used, running = self.pick.of(0, 40, 49, 51, 80, 91, 100), self.pick.upto(0, 3)
            idle: e.Event = e.InstanceIdle(name)
            self.feed(self.pick.of(e.InstanceReport(name, used, 50.0 * running, running, 0), idle))

    def wait(self) -> None:
        """Time passes."""
        self.now += self.pick.of(0.0, 1.0, 10.0)
        self.feed(e.Timer())

    def stop(self) -> None:
        """A user asks to stop."""
        if self.stops and self.pick.of(False, False, True):
            self.feed(e.StopRequested(self.pick.of("checkpoint", "checkpoint", "now"), "asked to"))

    def kill(self) -> None:
        """The controller is killed; a resume starts from any checkpoint there is."""
        if self.checkpoints:
            checkpoint, ended = self.pick.of(*self.checkpoints)
            self.checkpoints = [(p, done) for p, done in self.checkpoints if len(done) <= len(ended)]
            self.start(checkpoint.resume, ended)

    def talk_after_the_end(self) -> None:
        """A machine that has stopped says nothing any more."""
        if self.machine.step(self.pick.of(*self.said), self.now):
            raise Wrong("commands after Stop")

    # Answers

    def answer(self, command: Any, luck: int) -> None:
        """A legal answer; `luck` 0..9, and 0 and 1 are bad."""
        rarely = isinstance(command, FATAL) and luck == 0 and self.pick.of(*[True] * 7, False)
        if luck == 0 and not rarely:
            self.feed(e.CommandFailed(command.id, "it could not be done"))
        elif (make := _PLAIN.get(type(command))) is not None:
            self.feed(make(command))
        else:
            _ANSWERS[type(command)](self, command, luck)

    def answer_prompts(self, command: c.RequestPrompts, luck: int) -> None:
        """What there is, and the end of the data in every way that says so."""
        start = self.book.next_index
        count = command.count if self.prompts is None else max(0, min(command.count, self.prompts - start))
        short = count < command.count
        if count or (short and luck % 2):
            self.feed(e.PromptsArrived(command.id, tuple(range(start, start + count))))
            if short and luck % 3 == 0:  # fewer than asked for say it alone
                return
        if short or (luck % 2 and start + count == self.prompts):
            self.say_end(e.DataEnded(command.id), luck)

    def say_end(self, event: e.DataEnded, luck: int) -> None:
        """Now, or when more has happened if the request itself is answered."""
        if luck in (4, 5) and event.command not in self.book.open:
            self.later.append(event)
        elif not self.stopped:
            self.feed(event)

    def answer_admit(self, admit: c.Admit, luck: int) -> None:
        """It ends where it runs, or already where it is on its way to."""
        where = self.place(admit, arrived=luck % 2 == 1)
        who = (admit.id, admit.group, admit.sample, admit.attempt, where)
        if luck == 1:
            self.feed(e.TrajectoryFailed(*who, "broken"))
            return
        instance = self.book.instances.get(where)
        newest = admit.version
        if instance is not None and not traits(self.schedule).pinned:
            newest = max([admit.version, *instance.versions])
        self.feed(e.TrajectoryFinished(*who, 10, self.pick.of(admit.version, newest), newest))

    def place(self, admit: c.Admit, arrived: bool) -> str:
        """Where a trajectory runs; `arrived`: on the target, if it is on its way to one."""
        key = (admit.group, admit.sample)
        sample = self.book.sample(*key)
        if sample is None or sample.command != admit.id:
            return admit.instance
        moves = [o for o in self.book.open.values() if type(o) is c.Migrate and key in o.trajectories]
        return str(moves[0].target) if moves and arrived else sample.instance

    def answer_materialize(self, command: c.Materialize, luck: int) -> None:
        """With or without a signal, dropped, or a survivor short."""
        least = min(2, self.schedule.group_size)
        samples = len(command.samples) - (luck == 2 and self.schedule.on_failure == "drop_sample")
        self.feed(e.GroupMaterialized(command.id, command.group, luck > 3, samples, drop=samples < least or luck == 1))

    def answer_dispatch(self, command: c.Dispatch, luck: int) -> None:
        """Consumed; with a step also updated, at once or not yet."""
        self.feed(e.DispatchConsumed(command.id))
        if command.step and luck != 5:
            self.feed(e.UpdateFinished(command.id, command.update, applied=luck > 1))

    def answer_migrate(self, command: c.Migrate, luck: int) -> None:
        """All, some or none have moved, the target lost meanwhile or not."""
        if luck == 1:
            self.feed(e.CommandFailed(command.id, "the link broke"))
            return
        lost = command.source not in self.book.instances
        moved = [k for k in command.trajectories if lost or self.runs_on(k, command)]
        self.feed(e.Migrated(command.id, tuple(moved[: len(moved) if luck > 3 else 1])))

    def runs_on(self, key: c.TrajectoryKey, command: c.Migrate) -> bool:
        """Whether a trajectory still runs, in the attempt that was to move."""
        sample = self.book.sample(*key)
        _, admits = self.book.moving.get(command.id, (None, {}))
        return sample is not None and sample.state == RUNNING and sample.command == admits.get(key)

    # The game

    def info(self, name: str) -> InstanceInfo:
        """Capabilities that the schedule can use; they may differ each time an instance comes up."""
        least = self.schedule.group_size if self.schedule.granularity == "group" else 1
        return InstanceInfo(
            name, max(least, self.pick.of(1, 2, 8)), self.pick.of(0, 100), self.pick.of(1, 1, 2, 3), self.pick.of(True, True, True, False)
        )

    def feed(self, event: e.Event) -> None:
        """Tell the machine, and judge what it says."""
        before = dict(self.book.open)
        self.said.append(event)
        filtered = type(event) is e.GroupMaterialized and not self.book.trainable(event)
        self.cause |= filtered or type(event) in (e.TrajectoryFailed, e.CommandFailed)
        answered = getattr(event, "command", None)
        for record in (event, *self.machine.step(event, self.now)):
            self.records[type(record).__name__] += 1
            self.log.append(record)
            self.judge(record)
        self.owed += [command for number, command in before.items() if number not in self.book.open and number != answered]
        for message in self.broken_promises():
            raise Wrong(message)

    def judge(self, record: Any) -> None:
        """One record: the rules, then what must hold at it besides."""
        if self.starts(record) and 0 < self.schedule.buffer_groups <= self.trainable():
            raise Wrong(f"group {record.group} started while the buffer was full")
        if (violation := self.rules.feed(record, self.now)) is not None:
            raise Wrong(str(violation))
        if (note := _NOTES.get(type(record))) is not None:
            note(self, record)

    def note_terminal(self, command: c.Terminal) -> None:
        """A group has ended."""
        self.ended.append(command.group)

    def note_checkpoint(self, command: c.Checkpoint) -> None:
        """A kill may resume from here, even before it is said to be done."""
        self.checkpoints.append((command, list(self.ended)))

    def note_dispatch(self, command: c.Dispatch) -> None:
        """In deterministic mode groups are consumed in order of submission."""
        groups = [self.consumed, *command.groups]
        if self.schedule.in_order and sorted(groups) != groups:
            raise Wrong(f"groups {command.groups} were consumed after group {self.consumed}")
        self.consumed = groups[-1]

    def note_publish(self, command: c.Publish) -> None:
        """With pacing no publish leaves a group behind by more than the bound, unless the run is about to end."""
        leaving = self.book.stopping or self.book.stepped >= self.schedule.total_updates
        if self.schedule.overstale == "pace" and not leaving:
            for message in left_behind(self.book):
                raise Wrong(message)

    def starts(self, record: Any) -> bool:
        """Whether a record begins a group, or begins it anew."""
        group = self.book.groups.get(record.group) if type(record) is c.Admit else None
        return group is not None and (not group.samples or group.scored is not None)

    def trainable(self) -> int:
        """Groups in the buffer."""
        ready = (g for g in self.book.groups.values() if not g.dispatched)
        return sum(g.outcome is not None and self.book.trainable(g.outcome) and not self.book.overstale(g) for g in ready)

    def broken_promises(self) -> Iterator[str]:
        """What must hold between two events, beside the rules."""
        admits = [o for o in self.book.open.values() if type(o) is c.Admit and o.id not in self.book.aborting]
        yield from self.overfull(admits)
        most = self.book.frontier
        if most is not None and len(admits) > most * self.schedule.group_size:
            yield f"{len(admits)} trajectories in flight, F = {most} groups of {self.schedule.group_size}"
        if not self.stopped:
            open_ = set(self.book.open) - self.book.aborting
            waits = {wait.command for wait in self.machine.waits(self.now) if wait.command is not None}
            if waits != open_:
                yield f"the machine waits for commands {sorted(waits - open_)} too many and {sorted(open_ - waits)} too few"

    def overfull(self, admits: list[c.Admit]) -> Iterator[str]:
        """Instances that run more than they have slots for."""
        samples = [s for a in admits if (s := self.book.sample(a.group, a.sample)) is not None]
        runs = Counter(s.instance for s in samples)
        for name, instance in self.book.instances.items():
            if runs[name] > instance.info.slots:
                yield f"{name} runs {runs[name]} trajectories in {instance.info.slots} slots"

    def settle(self) -> None:
        """A fair world from here to the end, and the same from some of the checkpoints."""
        self.finish()
        self.stops = 0
        for _ in range(min(2, len(self.checkpoints))):
            self.kill()
            self.finish()

    def finish(self) -> None:
        """Answer everything, and well, until the run stops; what is slow only when nothing else is open."""
        fleet = NAMES[: self.pick.upto(1, 3)]
        for _ in range(MOST):
            if self.stopped:
                return self.close()
            self.now += 0.1
            if (name := next((n for n in fleet if n not in self.book.instances), None)) is not None:
                self.feed(e.InstanceUp(self.info(name)))
            elif self.book.open:
                ordered = self.book.open.values()
                self.answer(next((o for o in ordered if not self.waits_long(o)), next(iter(ordered))), 9)
            else:
                self.feed(e.Timer())
                if not self.book.open and not self.stopped:
                    raise Wrong(f"stalled: {self.machine.waits(self.now)}")
        raise Wrong(f"did not end: {self.machine.waits(self.now)}")

    def close(self) -> None:
        """The end of a lineage: nothing is left open, and every prompt is accounted for once."""
        for violation in self.rules.close():
            raise Wrong(str(violation))
        stop = self.book.stop
        assert stop is not None
        if not stop.ok and not self.cause:
            raise Wrong(f"stopped with an error for no cause: {stop.reason}")
        if not stop.ok or self.book.stopping:
            return
        if self.book.stepped < self.schedule.total_updates and (not self.book.data_ended or self.book.groups):
            raise Wrong(f"stopped after {self.book.stepped} of {self.schedule.total_updates} updates: {stop.reason}")
        times = Counter([*self.ended, *self.book.groups])
        if set(times) != set(range(self.book.next_index)) or set(times.values()) > {1}:
            raise Wrong(f"prompts before {self.book.next_index} are accounted for {dict(times)} times")


_ANSWERING = (Adversary.answer_any, Adversary.answer_the_oldest, Adversary.answer_the_oldest)
_OTHERS = (Adversary.say_again, Adversary.answer_late, Adversary.say_later, Adversary.come, Adversary.report, Adversary.wait)
_DISRUPTING = (Adversary.interfere, Adversary.lose, Adversary.restart, Adversary.stop, Adversary.kill)
_PLAIN: dict[type, Callable[[Any], e.Event]] = {
    c.Publish: lambda o: e.Published(o.id, o.version, f"f{o.version}"),
    c.Abort: lambda o: e.Aborted(o.id),
    c.Evaluate: lambda o: e.Evaluated(o.id),
    c.Checkpoint: lambda o: e.CheckpointDone(o.id, o.update),
    c.LoadWeights: lambda o: e.WeightsLive(o.id, o.instance, o.version, f"f{o.version}", 0.0, 1e-3),
}
_ANSWERS: dict[type, Callable[[Adversary, Any, int], None]] = {
    c.RequestPrompts: Adversary.answer_prompts,
    c.Admit: Adversary.answer_admit,
    c.Materialize: Adversary.answer_materialize,
    c.Dispatch: Adversary.answer_dispatch,
    c.Migrate: Adversary.answer_migrate,
}
_NOTES: dict[type, Callable[[Adversary, Any], None]] = {
    c.Terminal: Adversary.note_terminal,
    c.Checkpoint: Adversary.note_checkpoint,
    c.Dispatch: Adversary.note_dispatch,
    c.Publish: Adversary.note_publish,
}
