"""A machine against an adversary: answers in any legal order, twice, late; losses, stop requests, kills and resumes at any moment."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.rules import Rules
from paceline.core.rules.facts import RUNNING
from paceline.core.schedule import Resume
from paceline.sim import cases
from paceline.types.weights import InstanceInfo

SETTINGS = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Adversary(RuleBasedStateMachine):
    """Holds no model of its own: what is open, and what an answer may say, stands in the rules' book."""

    preset = "serial"

    @initialize(data=st.data())
    def begin(self, data):
        pick = cases.Chooser(lambda options: data.draw(st.sampled_from(options)))
        self.schedule = cases.schedule(self.preset, pick)
        least = self.schedule.group_size if self.schedule.granularity == "group" else 1
        self.slots = max(least, pick.of(1, 2, 8))
        self.held = pick.of(1, 1, 2)
        self.prompts = pick.of(None, 0, 1, 7, 30)
        self.now = 0.0
        self.given: list[e.Event] = []
        self.checkpoints: list[c.Checkpoint] = []
        self.start(Resume())

    def start(self, resume):
        self.machine = Machine(self.schedule, resume)
        self.rules = Rules(self.schedule, resume)
        self.checkpoints = [p for p in self.checkpoints if p.update <= resume.update]
        self.given.clear()
        self.feed(e.Started())
        self.feed(e.InstanceUp(self.info("i0")))

    def info(self, name):
        return InstanceInfo(name, self.slots, 0, self.held, True)

    def feed(self, event):
        self.given.append(event)
        records = [event, *self.machine.step(event, self.now)]
        for record in records:
            violation = self.rules.feed(record, self.now)
            assert violation is None, f"{violation}\n{self.schedule}"
        self.checkpoints.extend(r for r in records if type(r) is c.Checkpoint)

    @property
    def book(self):
        return self.rules.book

    @property
    def stopped(self):
        return self.book.stop is not None

    def answer(self, command, luck):
        """A legal answer to an open command; `luck` in 0..9, and 0 to 1 is bad."""
        simple = {
            c.Park: lambda: e.TrajectoryParked(command.id, command.group, command.sample, command.attempt, command.instance, 3),
            c.Publish: lambda: e.Published(command.id, command.version, f"f{command.version}"),
            c.Abort: lambda: e.Aborted(command.id),
            c.Evaluate: lambda: e.CommandFailed(command.id, "no answer") if luck < 2 else e.Evaluated(command.id),
            c.Checkpoint: lambda: e.CheckpointDone(command.id, command.update),
        }
        if (make := simple.get(type(command))) is not None:
            self.feed(make())
        else:
            getattr(self, f"answer_{type(command).__name__}")(command, luck)

    def answer_RequestPrompts(self, command, luck):
        start = self.book.next_index
        left = command.count if self.prompts is None else max(0, self.prompts - start)
        count = min(command.count, left)
        if count:
            self.feed(e.PromptsArrived(command.id, tuple(range(start, start + count))))
        if (count < command.count or start + count == self.prompts) and not self.stopped:
            self.feed(e.DataEnded(command.id))

    def answer_Admit(self, admit, luck):
        group = self.book.groups.get(admit.group)
        sample = group.samples.get(admit.sample) if group else None
        where = sample.instance if sample and sample.command == admit.id else admit.instance
        who = (admit.id, admit.group, admit.sample, admit.attempt, where)
        if luck < 2:
            self.feed(e.TrajectoryFailed(*who, "broken"))
            return
        instance = self.book.instances.get(where)
        newest = max(instance.versions) if instance and self.preset == "streaming" else admit.version
        self.feed(e.TrajectoryFinished(*who, 10, admit.version, max(newest, admit.version)))

    def answer_Materialize(self, command, luck):
        if luck == 0:
            self.feed(e.CommandFailed(command.id, "the reward raised"))
            return
        few = len(command.samples) < min(2, self.schedule.group_size)
        self.feed(e.GroupMaterialized(command.id, command.group, luck > 3, len(command.samples), drop=few or luck == 1))

    def answer_Dispatch(self, command, luck):
        self.feed(e.DispatchConsumed(command.id))
        if command.step:
            self.feed(e.UpdateFinished(command.id, command.update, applied=luck > 1))

    def answer_LoadWeights(self, command, luck):
        if luck == 0:
            self.feed(e.CommandFailed(command.id, "the transfer broke"))
            return
        self.feed(e.WeightsLive(command.id, command.instance, command.version, f"f{command.version}", 0.0, 1e-3))

    def answer_Migrate(self, command, luck):
        if luck < 2:
            self.feed(e.CommandFailed(command.id, "the link broke"))
            return
        lost = command.source not in self.book.instances
        if command.target not in self.book.instances:
            self.feed(e.CommandFailed(command.id, "the target is gone"))
            return
        moved = [k for k in command.trajectories if lost or self.runs_on(k, command.source)]
        self.feed(e.Migrated(command.id, tuple(moved[: len(moved) if luck > 3 else 1])))

    def runs_on(self, key, instance):
        group = self.book.groups.get(key[0])
        sample = group.samples.get(key[1]) if group else None
        return sample is not None and sample.state == RUNNING and sample.instance == instance

    def tick(self, seconds=0.1):
        self.now += seconds

    @precondition(lambda self: not self.stopped)
    @rule(which=st.integers(0, 10**6), luck=st.integers(0, 9))
    def answer_any(self, which, luck):
        self.tick()
        if self.book.open:
            self.answer(list(self.book.open.values())[which % len(self.book.open)], luck)

    @precondition(lambda self: not self.stopped)
    @rule(luck=st.integers(0, 9), times=st.integers(1, 12))
    def answer_the_oldest(self, luck, times):
        for _ in range(times):
            self.tick(0.01)
            if self.book.open and not self.stopped:
                self.answer(next(iter(self.book.open.values())), luck)

    @precondition(lambda self: not self.stopped)
    @rule(which=st.integers(0, 10**6))
    def answer_again(self, which):
        """Anything that was said once is said again: an answer to a command that is no longer open means nothing."""
        event = self.given[which % len(self.given)]
        if getattr(event, "command", None) is not None and event.command not in self.book.open:
            self.feed(event)

    @precondition(lambda self: not self.stopped)
    @rule(name=st.sampled_from(["i0", "i1", "i2"]))
    def come(self, name):
        self.tick()
        if name not in self.book.instances:
            self.feed(e.InstanceUp(self.info(name)))

    @precondition(lambda self: not self.stopped)
    @rule(name=st.sampled_from(["i0", "i1", "i2"]))
    def lose(self, name):
        self.tick()
        if name in self.book.instances:
            self.feed(e.InstanceLost(name, "gone"))

    @precondition(lambda self: not self.stopped)
    @rule(name=st.sampled_from(["i0", "i1"]), used=st.integers(0, 100), seconds=st.sampled_from([0.0, 1.0, 10.0]))
    def pass_time(self, name, used, seconds):
        self.tick(seconds)
        if name in self.book.instances:
            self.feed(e.InstanceReport(name, used, 50.0, 1, 0))
            self.feed(e.InstanceIdle(name))
        self.feed(e.Timer())

    @precondition(lambda self: not self.stopped)
    @rule(how=st.sampled_from(["checkpoint", "checkpoint", "now"]), really=st.integers(0, 5))
    def ask_to_stop(self, how, really):
        if really == 0:
            self.feed(e.StopRequested(how, "asked to"))

    @precondition(lambda self: self.stopped)
    @rule(which=st.integers(0, 10**6))
    def talk_after_the_end(self, which):
        assert self.machine.step(self.given[which % len(self.given)], self.now) == []

    @precondition(lambda self: bool(self.checkpoints))
    @rule(which=st.integers(0, 10**6))
    def kill_and_resume(self, which):
        self.start(self.checkpoints[which % len(self.checkpoints)].resume)

    @invariant()
    def no_instance_runs_more_than_its_slots(self):
        if not hasattr(self, "rules"):
            return
        admits = [o for o in self.book.open.values() if type(o) is c.Admit and o.id not in self.book.aborting]
        where = [self.book.groups[a.group].samples[a.sample].instance for a in admits if a.group in self.book.groups]
        for name, instance in self.book.instances.items():
            assert where.count(name) <= instance.info.slots

    def teardown(self):
        """From wherever the adversary left it, a fair world brings the run to its end."""
        if not hasattr(self, "rules"):
            return
        for _ in range(20_000):
            if self.stopped:
                break
            self.tick()
            if not self.book.instances:
                self.feed(e.InstanceUp(self.info("i0")))
            elif self.book.open:
                self.answer(next(iter(self.book.open.values())), 9)
            else:
                self.feed(e.Timer())
                assert self.book.open or self.stopped, f"stalled: {self.machine.waits(self.now)}\n{self.schedule}"
        assert self.stopped, f"did not end: {self.machine.waits(self.now)}\n{self.schedule}"
        assert self.rules.close() == []


@pytest.mark.parametrize("preset", ["serial", "pipelined", "streaming", "multiversion"])
def test_no_order_of_events_breaks_a_rule_or_stalls_the_run(preset):
    machine = type(f"Adversary_{preset}", (Adversary,), {"preset": preset})
    run_state_machine_as_test(machine, settings=SETTINGS)
