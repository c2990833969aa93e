"""Random schedules in random worlds: every run ends in Stop, breaks no rule, and is the same again when replayed."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.bound import Pace
from paceline.core.codec import dumps, loads
from paceline.core.machine import Machine
from paceline.core.replay import audit, difference, replay
from paceline.core.rules import Rules
from paceline.core.schedule import Resume, Schedule
from paceline.sim import cases
from paceline.sim.driver import simulate
from paceline.sim.trials import trial
from paceline.sim.world import FakeInstance, Lengths, World

PRESETS = ("serial", "pipelined", "streaming", "multiversion")
FAST = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def chooser(draw):
    return cases.Chooser(lambda options: draw(st.sampled_from(options)))


@st.composite
def runs(draw, preset):
    pick = chooser(draw)
    schedule = cases.schedule(preset, pick)
    return schedule, cases.world(pick, schedule)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_run_ends_and_breaks_no_rule(preset):
    """Also: it keeps to frontier and slots, makes its updates, and its events replay to its commands."""

    @FAST
    @given(runs(preset))
    def go(case):
        assert trial(*case).wrong == ()

    go()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_that_is_killed_and_resumed_consumes_every_prompt_exactly_once(preset):
    @settings(FAST, max_examples=60)
    @given(runs(preset), st.lists(st.integers(1, 40), min_size=1, max_size=3))
    def go(case, kills):
        assert trial(*case, kills).wrong == ()

    go()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_can_be_audited_and_replayed_from_its_written_records(preset):
    @settings(FAST, max_examples=20)
    @given(runs(preset))
    def go(case):
        schedule, world = case
        trace = simulate(schedule, world)
        records = [(now, loads(dumps(record))) for now, record in trace.records]
        assert records == trace.records
        events = [(now, r) for now, r in records if isinstance(r, e.Event)]
        assert difference(trace.commands, replay(schedule, Resume(), events)) is None
        assert audit(schedule, Resume(), records) == []
        cut = len(records) // 2
        assert audit(schedule, Resume(), records[:cut], whole=False) == [], "what a killed lineage leaves open is no violation"

    go()


@pytest.mark.parametrize(
    ("preset", "looser", "rule"), [("multiversion", "room", 8), ("multiversion", "blocked", 4), ("streaming", "blocked", 4)]
)
def test_a_machine_whose_bound_is_too_loose_is_caught(preset, looser, rule, monkeypatch):
    """The trials bite: admission beyond the bound deadlocks, training without waiting for old groups makes others too stale."""
    exact = Pace.room
    fault = {"room": lambda self, *a: exact(self, *a) + self.groups_per_update * self.updates_per_publish, "blocked": lambda *a: None}
    monkeypatch.setattr(Pace, looser, fault[looser])
    broken = set()
    for seed in range(400):
        pick = cases.Chooser(random.Random(seed).choice)
        schedule = replace(cases.schedule(preset, pick), overstale="pace", in_flight_groups=0)
        broken |= {v.rule for v in simulate(schedule, cases.world(pick, schedule)).violations}
        if rule in broken:
            return
    pytest.fail(f"violated were {broken} only")


@pytest.mark.parametrize("preset", PRESETS)
def test_an_answer_that_comes_twice_means_nothing_the_second_time(preset):
    fleet = (FakeInstance("i0", slots=3), FakeInstance("i1", speed=10.0, outages=((2.0, 4.0),)))
    extra = {"staleness": 1, "buffer_groups": 4, "at_publish": "keep"} if preset == "streaming" else {}
    extra |= {"version_window": 2} if preset == "multiversion" else {}
    start = "all" if preset == "serial" else "dispatch"
    schedule = Schedule(preset, 2, 4, 2, 1, 2, start, 6, evaluate_every=2, checkpoint_every=2, on_failure="drop_group", **extra)
    trace = simulate(schedule, World(fleet, failure=0.3, reward_failure=0.2, prompts=60))
    machine, rules = Machine(schedule), Rules(schedule)
    for now, event in trace.events:
        for record in (event, *machine.step(event, now)):
            assert rules.feed(record, now) is None
        if hasattr(event, "command"):
            assert machine.step(event, now) == [], event
            assert rules.feed(event, now) is None
    assert {type(event) for _, event in trace.events} >= {e.TrajectoryFailed, e.CommandFailed, e.Evaluated, e.CheckpointDone}
    assert rules.close() == []


def test_a_difference_names_the_first_command_that_parts():
    trace = simulate(Schedule("serial", 1, 1, 1, 1, 1, "all", 1), World())
    commands = trace.commands
    assert difference(commands, commands) is None
    altered = [*commands[:3], c.Warn(99, "not said"), *commands[4:]]
    assert difference(commands, altered) == f"command 3: recorded {commands[3]}, replayed {altered[3]}"
    assert difference(commands, commands[:-1]) == f"command {len(commands) - 1}: recorded {commands[-1]}, replayed nothing"


CORNERS = {
    "one group, one sample, one instance with one slot": ({"group_size": 1}, (FakeInstance("i0", slots=1),)),
    "U = R": ({"groups_per_round": 3, "groups_per_update": 3, "groups_per_dispatch": 3}, (FakeInstance("i0"),)),
    "D = 1": ({"groups_per_round": 3, "groups_per_update": 3, "groups_per_dispatch": 1}, (FakeInstance("i0"),)),
    "two updates a publish": (
        {"groups_per_round": 4, "groups_per_update": 2, "groups_per_dispatch": 2, "updates_per_publish": 2},
        (FakeInstance("i0"),),
    ),
    "an instance 20 times slower": (
        {"groups_per_round": 3, "groups_per_update": 3},
        (FakeInstance("i0", speed=100.0), FakeInstance("i1", speed=5.0)),
    ),
    "a group larger than all slots": ({"group_size": 5}, (FakeInstance("i0", slots=2),)),
}
EXTREMES = {
    "serial": ({},),
    "pipelined": ({"frontier": 1}, {"frontier": 1, "refill": "group"}, {"frontier": "auto"}, {"in_order": True}),
    "streaming": (
        {"staleness": 0},
        {"staleness": 0, "overstale": "drop"},
        {"staleness": 1, "granularity": "group"},
        {"in_flight_groups": -1},
    ),
    "multiversion": ({"version_window": 1}, {"version_window": 3}, {"version_window": 2, "in_flight_groups": -1}, {"start_when": "all"}),
}


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize(("preset", "extreme"), [(p, x) for p, xs in EXTREMES.items() for x in xs], ids=str)
def test_corner_values_hold(corner, preset, extreme):
    changes, instances = CORNERS[corner]
    base = Schedule(preset, 2, 1, 1, 1, 1, "all" if preset == "serial" else "dispatch", 4, on_failure="drop_group")
    schedule = replace(base, **changes)
    schedule = replace(schedule, **{k: schedule.groups_per_update if v == -1 else v for k, v in extreme.items()})
    if preset == "streaming":
        schedule = replace(schedule, buffer_groups=schedule.groups_per_update, at_publish="keep")
    if schedule.granularity == "group" and schedule.group_size > instances[0].slots:
        pytest.skip("refused: a group that is submitted whole needs as many slots")
    for world in (
        World(instances, lengths=Lengths("long_tail", 100, 2000)),
        World(instances, prompts=3, failure=0.2, no_signal=0.3),
        World(tuple(replace(i, outages=((2.0, 4.0), (6.0, 9.0))) for i in instances), late=0.5),
    ):
        assert trial(schedule, world).wrong == ()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_is_the_same_again(preset):
    schedule = Schedule(preset, 2, 2, 2, 1, 1, "all" if preset == "serial" else "dispatch", 4, on_failure="drop_group")
    world = World((FakeInstance("i0"), FakeInstance("i1", speed=5.0, outages=((2.0, 4.0),))), failure=0.1, late=0.5, no_signal=0.3)
    first, second = simulate(schedule, world), simulate(schedule, world)
    assert first.records == second.records
    assert {type(r) for _, r in first.records} >= {e.Started, e.InstanceLost, c.Publish, c.Dispatch, c.Stop}
    other = simulate(schedule, replace(world, seed=1))
    assert first.records != other.records
