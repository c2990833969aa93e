"""How commands are performed in virtual time, each seen from a machine that follows a script."""

from dataclasses import replace

import pytest

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume, Schedule
from paceline.sim.driver import Simulation, simulate
from paceline.sim.world import FakeInstance, Lengths, World

SCHEDULE = Schedule("serial", 1, 2, 2, 2, 1, "all", 2)
FIXED = Lengths("fixed", 100)


class Script:
    """Answers the first event of each named type with its commands; a callable gets the event."""

    def __init__(self, **lines):
        self.lines = lines

    def step(self, event, now):
        said = self.lines.pop(type(event).__name__, ())
        return list(said(event) if callable(said) else said)

    def waits(self, now):
        return ["the end of the script"]


def play(world, schedule=SCHEDULE, **lines):
    simulation = Simulation(schedule, world)
    simulation.machine = Script(**lines)
    return simulation.run()


def times(trace, kind):
    return [(round(now, 6), r) for now, r in trace.records if type(r) is kind]


def admit(number, group=0, instance="i0", attempt=0, version=0):
    return c.Admit(number, group, 0, attempt, instance, version)


def test_a_trajectory_takes_its_tokens_over_the_speed_of_its_instance():
    world = World((FakeInstance("i0", speed=50.0, comes=1.0),), lengths=FIXED)
    trace = play(world, InstanceUp=[admit(1)])
    assert times(trace, e.TrajectoryFinished) == [(3.0, e.TrajectoryFinished(1, 0, 0, 0, "i0", 100, 0, 0))]
    assert times(trace, e.InstanceIdle) == [(3.0, e.InstanceIdle("i0"))]


def test_a_moved_trajectory_goes_on_at_the_speed_of_its_target_and_finishes_once():
    world = World((FakeInstance("slow", speed=10.0), FakeInstance("fast", speed=100.0, comes=2.0)), lengths=FIXED, migrate_seconds=1.0)

    def on_up(event):
        return [admit(1, instance="slow")] if event.info.instance == "slow" else []

    simulation = Simulation(SCHEDULE, world)
    simulation.machine = machine = Script(InstanceUp=on_up)
    simulation._at(4.0, lambda: machine.lines.update(Timer=[c.Migrate(2, ((0, 0),), "slow", "fast", 0)]) or e.Timer())
    trace = simulation.run()
    assert times(trace, e.Migrated) == [(5.0, e.Migrated(2, ((0, 0),)))]
    # 50 tokens in 5 s on the slow one, 50 in 0.5 s on the fast one.
    assert [now for now, _ in times(trace, e.TrajectoryFinished)] == [5.5]


def test_a_move_from_a_lost_instance_fails_and_the_trajectory_is_gone():
    world = World((FakeInstance("i0", outages=((0.5, 9.0),)), FakeInstance("i1")), lengths=FIXED, migrate_seconds=1.0)
    trace = play(world, Started=[], InstanceUp=[admit(1), c.Migrate(2, ((0, 0),), "i0", "i1", 0)])
    assert [r.command for _, r in times(trace, e.CommandFailed)] == [2]
    assert times(trace, e.TrajectoryFinished) == []
    assert [now for now, _ in times(trace, e.InstanceLost)] == [0.5]
    assert [now for now, _ in times(trace, e.InstanceUp)] == [0.0, 0.0, 9.0]


def test_a_late_answer_of_a_lost_instance_comes_after_the_loss():
    world = World((FakeInstance("i0", outages=((0.5, 9.0),)),), lengths=FIXED, late=1.0)
    trace = play(world, InstanceUp=[admit(1)])
    assert [now for now, _ in times(trace, e.TrajectoryFinished)] == [1.5]


def test_weights_that_come_under_running_work_give_its_last_tokens_their_version():
    world = World((FakeInstance("i0"),), lengths=FIXED, load_seconds=0.25)
    trace = play(world, InstanceUp=[admit(1, version=3), c.LoadWeights(2, "i0", 4, "keep")])
    ((_, live),) = times(trace, e.WeightsLive)
    assert (live.version, live.fingerprint) == (4, "weights of version 4")
    ((_, finished),) = times(trace, e.TrajectoryFinished)
    assert (finished.version_min, finished.version_max) == (3, 4)


def test_parked_work_goes_on_where_it_stopped():
    world = World((FakeInstance("i0", slots=2),), lengths=FIXED)
    simulation = Simulation(SCHEDULE, world)
    simulation.machine = machine = Script(InstanceUp=[admit(1)], TrajectoryParked=[])
    simulation._at(0.4, lambda: machine.lines.update(Timer=[c.Park(2, 0, 0, 0, "i0")]) or e.Timer())
    simulation._at(3.0, lambda: machine.lines.update(Timer=[admit(3)]) or e.Timer())
    trace = simulation.run()
    assert times(trace, e.TrajectoryParked) == [(0.4, e.TrajectoryParked(2, 0, 0, 0, "i0", 40))]
    assert [(now, r.command) for now, r in times(trace, e.TrajectoryFinished)] == [(3.6, 3)]


def test_an_aborted_trajectory_never_finishes():
    trace = play(World(lengths=FIXED), InstanceUp=[admit(1), c.Abort(2, 0, 0, 0, "i0", "test")])
    assert times(trace, e.Aborted) == [(0.0, e.Aborted(2))]
    assert times(trace, e.TrajectoryFinished) == []


def test_the_trainer_does_one_thing_at_a_time():
    world = World(group_seconds=1.0, update_seconds=0.5)
    trace = play(world, Started=[c.Dispatch(1, (0, 1), False, 1, (0, 1)), c.Dispatch(2, (2,), True, 1, (0, 1, 2))])
    assert [(now, r.command) for now, r in times(trace, e.DispatchConsumed)] == [(2.0, 1), (3.0, 2)]
    assert times(trace, e.UpdateFinished) == [(3.5, e.UpdateFinished(2, 1))]


@pytest.mark.parametrize(("early", "expected"), [(False, [(0, 1), (2,)]), (True, [(0, 1), (2,)])])
def test_the_data_end_where_the_world_says(early, expected):
    world = World(prompts=3, end_early=early)
    trace = play(world, Started=[c.RequestPrompts(1, 2)], PromptsArrived=[c.RequestPrompts(2, 2)])
    assert [r.indices for _, r in times(trace, e.PromptsArrived)] == expected
    assert [r.command for _, r in times(trace, e.DataEnded)] == [2]
    exact = play(replace(world, prompts=2), Started=[c.RequestPrompts(1, 2)])
    assert len(times(exact, e.DataEnded)) == early


def test_rewards_fail_drop_and_lose_samples_as_the_world_says():
    line = {"Started": [c.Materialize(1, 5, (0, 1))]}
    pair = replace(SCHEDULE, group_size=2, on_failure="drop_sample")
    assert [r for _, r in times(play(World(), pair, **line), e.GroupMaterialized)] == [e.GroupMaterialized(1, 5, True, 2)]
    assert [r.signal for _, r in times(play(World(no_signal=1.0), pair, **line), e.GroupMaterialized)] == [False]
    assert [r.drop for _, r in times(play(World(dropped=1.0), pair, **line), e.GroupMaterialized)] == [True]
    ((_, lost),) = times(play(World(lost_rewards=1.0), pair, **line), e.GroupMaterialized)
    assert (lost.samples, lost.drop) == (1, True)
    assert len(times(play(World(reward_failure=1.0), pair, **line), e.CommandFailed)) == 1
    assert [now for now, _ in times(play(World(slow_reward=1.0), pair, **line), e.GroupMaterialized)] == [5.0]


def test_failing_weights_restart_the_instance():
    trace = play(World(load_failure=1.0), InstanceUp=[c.LoadWeights(1, "i0", 0)])
    assert [r.command for _, r in times(trace, e.CommandFailed)] == [1]
    assert [now for now, _ in times(trace, e.InstanceUp)] == [0.0, 1.1]


@pytest.mark.parametrize("world", [World(), World(timer=0.5, report=0.7)])
def test_a_stall_says_what_is_waited_for(world):
    trace = play(world)
    assert trace.stop is None
    assert trace.stalled == "the end of the script"
    assert len(trace.events) < 40


def test_a_killed_run_just_ends():
    trace = simulate(SCHEDULE, World(lengths=FIXED, kill_at=1.0))
    assert (trace.stop, trace.stalled, trace.violations) == (None, "", [])
    assert max(now for now, _ in trace.records) < 1.0
    assert trace.resume() is None


def test_a_serial_run_takes_the_sum_of_its_phases():
    """Weights are published and loaded; per round: decoding, reward, two groups, step, publish, load; one checkpoint at the end."""
    world = World(lengths=FIXED, prompt_seconds=0.0, load_seconds=0.1, publish_seconds=0.1)
    trace = simulate(SCHEDULE, world)
    assert trace.violations == []
    assert trace.stop is not None
    assert trace.stop.ok
    round_ = 1.0 + 0.1 + 2 * 0.2 + 0.05
    assert trace.end == pytest.approx(0.1 + 0.1 + round_ + 0.1 + 0.1 + round_ + 0.1 + 0.5)
    assert trace.most_running == {"i0": 2}
    assert trace.resume() == Resume(update=2, version=2, pending=(), next_index=4)
