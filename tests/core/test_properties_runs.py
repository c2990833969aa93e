"""Random schedules in random worlds: every run ends in Stop, breaks no rule, and is the same again when replayed."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.codec import dumps, loads
from paceline.core.replay import audit, difference, replay
from paceline.core.rules.book import Book
from paceline.core.rules.facts import ENDED, FINISHED
from paceline.core.schedule import Resume, Schedule
from paceline.sim import cases
from paceline.sim.driver import simulate
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


def check(schedule, world, resume=None):
    """What must be true of every run, whatever the schedule and the world."""
    trace = simulate(schedule, world, resume)
    assert trace.violations == [], [str(v) for v in trace.violations]
    assert trace.stalled == ""
    if trace.stop is not None:
        assert trace.stop.ok or cases.may_fail(schedule, world), trace.stop
        if trace.stop.ok and world.prompts is None and world.stop is None:
            steps = [r for r in trace.commands if type(r) is c.Dispatch and r.step]
            assert steps[-1].update == schedule.total_updates
    limits(schedule, trace, resume)
    slots = {i.name: i.slots for i in world.instances}
    assert all(most <= slots[name] for name, most in trace.most_running.items())
    return trace


def limits(schedule, trace, resume):
    """What the schedule promises beside the rules: the frontier, and that no group is left behind by more than the bound."""
    book = Book(schedule, resume or Resume())
    for _, record in trace.records:
        book.take(record)
        if type(record) is c.Admit and isinstance(schedule.frontier, int):
            assert book.counts[c.Admit] - len(book.aborting) <= schedule.frontier * schedule.group_size, record
        if type(record) is c.Publish and schedule.overstale == "pace" and not book.stopping and book.stepped < schedule.total_updates:
            for index, group in book.groups.items():
                started = [s.low if s.state == FINISHED else s.version for s in group.samples.values() if s.state != ENDED]
                assert group.dispatched or min(started, default=book.newest) >= book.newest - schedule.bound, (index, record)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_run_ends_and_breaks_no_rule(preset):
    @FAST
    @given(runs(preset))
    def go(case):
        check(*case)

    go()


@pytest.mark.parametrize("preset", PRESETS)
def test_replaying_the_events_of_a_run_gives_its_commands(preset):
    @settings(FAST, max_examples=25)
    @given(runs(preset))
    def go(case):
        schedule, world = case
        trace = simulate(schedule, world)
        records = [(now, loads(dumps(record))) for now, record in trace.records]
        events = [(now, r) for now, r in records if type(r).__name__ in {type(x).__name__ for _, x in trace.events}]
        assert difference(trace.commands, replay(schedule, Resume(), events)) is None
        assert audit(schedule, Resume(), records) == []

    go()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_that_is_killed_and_resumed_consumes_every_prompt_exactly_once(preset):
    """Rule 1 across lineages, counted without the rules: terminal groups on the surviving lineage, against the data order."""

    @settings(FAST, max_examples=40)
    @given(runs(preset), st.lists(st.integers(1, 30), max_size=3))
    def go(case, kills):
        schedule, world = case
        world, ends, resume = replace(world, stop=None, prompts=23), Counter(), Resume()
        for kill in [*kills, None]:
            trace = check(schedule, replace(world, kill_at=math.inf if kill is None else float(kill)), resume)
            last = trace.resume()
            if kill is not None and trace.stop is None and last is None:
                continue
            ends.update(survivors(trace, last))
            resume = last or resume
            if trace.stop is not None:
                break
        if trace.stop is not None and trace.stop.ok:
            assert set(ends.values()) <= {1}
            assert set(ends) | set(resume.pending) == set(range(resume.next_index))
            assert not set(ends) & set(resume.pending)

    go()


def survivors(trace, resume):
    """Groups that became terminal before the checkpoint that the next lineage starts from."""
    ended, saved = [], []
    for _, record in trace.records:
        if type(record) is c.Terminal:
            ended.append(record.group)
        if type(record) is c.Checkpoint and Resume(record.update, record.version, record.pending, record.next_index) == resume:
            saved = list(ended)
    return saved


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
        check(schedule, world)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_is_the_same_again(preset):
    schedule = Schedule(preset, 2, 2, 2, 1, 1, "all" if preset == "serial" else "dispatch", 4, on_failure="drop_group")
    world = World((FakeInstance("i0"), FakeInstance("i1", speed=5.0, outages=((2.0, 4.0),))), failure=0.1, late=0.5, no_signal=0.3)
    first, second = simulate(schedule, world), simulate(schedule, world)
    assert first.records == second.records
    assert {type(r) for _, r in first.records} >= {e.Started, e.InstanceLost, c.Publish, c.Dispatch, c.Stop}
    other = simulate(schedule, replace(world, seed=1))
    assert first.records != other.records
