"""Each rule against records made by hand: it accepts the good story and catches each way to break it."""

from dataclasses import replace

import pytest

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.rules import RULES, Rules
from paceline.core.schedule import Resume, Schedule
from paceline.types.weights import InstanceInfo

SERIAL = Schedule("serial", 2, 2, 2, 2, 1, "all", 1, deadlines=(("admit", 5.0), ("load", 5.0)))
STREAMING = Schedule("streaming", 2, 1, 1, 1, 1, "dispatch", 2, staleness=1, buffer_groups=2, at_publish="keep")
MULTIVERSION = Schedule("multiversion", 2, 1, 1, 1, 1, "dispatch", 2, version_window=2)


def up(name="i0"):
    return e.InstanceUp(InstanceInfo(name, 8))


def live(command, version, name="i0"):
    return e.WeightsLive(command, name, version, f"f{version}", 0.0, 1e-3)


def done(command, group, sample, low=0, high=None, attempt=0, name="i0"):
    return e.TrajectoryFinished(command, group, sample, attempt, name, 10, low, low if high is None else high)


def scored(command, group, signal=True, samples=2, drop=False):
    return e.GroupMaterialized(command, group, signal, samples, drop=drop)


def opening(count, *more):
    """Start, one instance with version 0, then `more`, and `count` prompts; commands 1 to 3."""
    return [
        e.Started(),
        c.Publish(1, 0, 0),
        e.Published(1, 0, "f0"),
        up(),
        c.LoadWeights(2, "i0", 0),
        live(2, 0),
        c.RequestPrompts(3, count),
        *more,
        e.PromptsArrived(3, tuple(range(count))),
    ]


def serial_story():
    """One round of two groups, one update, the end."""
    return [
        *opening(2),
        *(c.Admit(4 + 2 * g + s, g, s, 0, "i0", 0) for g in range(2) for s in range(2)),
        done(4, 0, 0),
        done(5, 0, 1),
        c.Materialize(8, 0, (0, 1)),
        scored(8, 0),
        done(6, 1, 0),
        done(7, 1, 1),
        c.Materialize(9, 1, (0, 1)),
        scored(9, 1),
        c.Dispatch(10, (0, 1), True, 1, (0, 1), (0, 0), (0, 0)),
        e.DispatchConsumed(10),
        e.UpdateFinished(10, 1),
        c.Terminal(11, 0, "trained"),
        c.Terminal(12, 1, "trained"),
        c.Publish(13, 1, 1),
        e.Published(13, 1, "f1"),
        c.LoadWeights(14, "i0", 1, replaces=0),
        live(14, 1),
        c.Retire(15, 0),
        c.Evaluate(16, 1, 1),
        e.Evaluated(16),
        c.Checkpoint(17, 1, 1, (), 2),
        e.CheckpointDone(17, 1),
        c.Stop(18, "done"),
    ]


def streaming_story():
    """Group 0 trains; group 1 is decoded across the publish, under versions 0 and 1, and trains one version stale."""
    return [
        *opening(2),
        *(c.Admit(4 + 2 * g + s, g, s, 0, "i0", 0) for g in range(2) for s in range(2)),
        done(4, 0, 0),
        done(5, 0, 1),
        c.Materialize(8, 0, (0, 1)),
        scored(8, 0),
        c.Dispatch(10, (0,), True, 1, (0,), (0,), (0,)),
        e.UpdateFinished(10, 1),
        c.Terminal(11, 0, "trained"),
        c.Publish(13, 1, 1),
        e.Published(13, 1, "f1"),
        c.LoadWeights(14, "i0", 1, "keep", 0),
        live(14, 1),
        done(6, 1, 0, 0, 1),
        done(7, 1, 1, 1, 1),
        c.Materialize(15, 1, (0, 1)),
        scored(15, 1),
        c.Dispatch(16, (1,), True, 2, (1,), (1,), (1,)),
        e.UpdateFinished(16, 2),
        c.Terminal(17, 1, "trained"),
        c.Publish(18, 2, 2),
        e.Published(18, 2, "f2"),
        c.Checkpoint(19, 2, 2, (), 2),
        e.CheckpointDone(19, 2),
        c.Stop(20, "done"),
    ]


def multiversion_story():
    """Two instances; group 1 stays on version 0 after version 1 came, moves within its version, and trains one version stale."""
    return [
        *opening(2, up("i1"), c.LoadWeights(30, "i1", 0), live(30, 0, "i1")),
        *(c.Admit(4 + 2 * g + s, g, s, 0, f"i{g}", 0) for g in range(2) for s in range(2)),
        done(4, 0, 0),
        done(5, 0, 1),
        c.Materialize(8, 0, (0, 1)),
        scored(8, 0),
        c.Dispatch(10, (0,), True, 1, (0,), (0,), (0,)),
        e.UpdateFinished(10, 1),
        c.Terminal(11, 0, "trained"),
        c.Publish(12, 1, 1),
        e.Published(12, 1, "f1"),
        c.Migrate(13, ((1, 0),), "i1", "i0", 0),
        e.Migrated(13, ((1, 0),)),
        c.Migrate(14, ((1, 1),), "i1", "i0", 0),
        e.Migrated(14, ((1, 1),)),
        c.LoadWeights(15, "i1", 1, replaces=0),
        live(15, 1, "i1"),
        done(6, 1, 0),
        done(7, 1, 1),
        c.Materialize(16, 1, (0, 1)),
        scored(16, 1),
        c.Dispatch(17, (1,), True, 2, (1,), (1,), (1,)),
        e.UpdateFinished(17, 2),
        c.Terminal(18, 1, "trained"),
        c.Publish(19, 2, 2),
        e.Published(19, 2, "f2"),
        c.Checkpoint(20, 2, 2, (), 2),
        e.CheckpointDone(20, 2),
        c.Stop(21, "done"),
    ]


def change(kind, at=0, **values):
    """Alter the `at`-th record of a kind."""

    def mutate(story):
        place = [i for i, r in enumerate(story) if type(r) is kind][at]
        story[place] = replace(story[place], **values)

    return mutate


def drop(kind, at=0):
    def mutate(story):
        del story[[i for i, r in enumerate(story) if type(r) is kind][at]]

    return mutate


def insert(before, *records, at=0):
    """Put records before the `at`-th record of a kind."""

    def mutate(story):
        place = [i for i, r in enumerate(story) if type(r) is before][at]
        story[place:place] = records

    return mutate


def all_of(*mutations):
    """Several alterations, in order."""

    def mutate(story):
        for each in mutations:
            each(story)

    return mutate


def swap(first, second):
    """Exchange the first records of two kinds."""

    def mutate(story):
        a, b = (next(i for i, r in enumerate(story) if type(r) is kind) for kind in (first, second))
        story[a], story[b] = story[b], story[a]

    return mutate


def fold(schedule, story, resume=None, only=tuple(RULES)):
    rules = Rules(schedule, resume, only)
    for i, record in enumerate(story):
        rules.feed(record, float(i) / 100)
    rules.close()
    return rules.found


STORIES = {"serial": (SERIAL, serial_story), "streaming": (STREAMING, streaming_story), "multiversion": (MULTIVERSION, multiversion_story)}


@pytest.mark.parametrize("name", STORIES)
def test_a_good_story_breaks_no_rule(name):
    schedule, story = STORIES[name]
    assert fold(schedule, story()) == []


BROKEN = [
    (1, "a prompt of the data order is skipped", "serial", change(e.PromptsArrived, indices=(0, 2))),
    (1, "a prompt arrives twice", "serial", change(e.PromptsArrived, indices=(0, 0))),
    (1, "more prompts arrive than were asked for", "serial", change(e.PromptsArrived, indices=(0, 1, 2))),
    (1, "a trajectory is admitted twice", "serial", insert(c.Materialize, c.Admit(40, 1, 0, 1, "i0", 0))),
    (1, "a finished trajectory is admitted again", "serial", insert(c.Dispatch, c.Admit(40, 1, 0, 1, "i0", 0))),
    (1, "an attempt is skipped", "serial", change(c.Admit, attempt=1)),
    (1, "a sample beyond the group is admitted", "serial", insert(c.Materialize, c.Admit(40, 1, 2, 0, "i0", 0))),
    (1, "a group that never arrived is admitted", "serial", insert(c.Materialize, c.Admit(40, 7, 0, 0, "i0", 0))),
    (1, "a group is terminal twice", "serial", insert(c.Publish, c.Terminal(40, 0, "trained"), at=1)),
    (1, "a consumed group is filtered", "serial", change(c.Terminal, state="filtered")),
    (1, "a group is trained before its update finished", "serial", swap(e.UpdateFinished, c.Terminal)),
    (1, "a terminal group is consumed", "streaming", change(c.Dispatch, 1, groups=(0,), update_groups=(0,))),
    (1, "a group is consumed twice", "serial", insert(e.UpdateFinished, c.Dispatch(40, (0,), True, 2, (0,), (0,), (0,)))),
    (1, "a trajectory of a consumed group is admitted", "serial", insert(e.UpdateFinished, c.Admit(40, 0, 0, 1, "i0", 0))),
    (1, "a group is consumed while a checkpoint is written", "streaming", insert(c.Dispatch, c.Checkpoint(40, 1, 1, (1,), 2), at=1)),
    (1, "a group never becomes terminal", "serial", drop(c.Terminal)),
    (1, "a checkpoint forgets a group", "streaming", insert(c.LoadWeights, c.Checkpoint(40, 1, 1, (), 2), e.CheckpointDone(40, 1), at=1)),
    (1, "a checkpoint repeats a group", "serial", change(c.Checkpoint, pending=(1,))),
    (1, "a checkpoint skips prompts", "serial", change(c.Checkpoint, next_index=3)),
    (1, "a checkpoint forgets an arrived prompt", "serial", change(c.Checkpoint, next_index=1)),
    (1, "a checkpoint claims an update too many", "serial", change(c.Checkpoint, update=2)),
    (1, "the run ends without a checkpoint", "serial", drop(c.Checkpoint)),
    (2, "a group is scored with a sample missing", "serial", change(c.Materialize, samples=(0,))),
    (2, "a group is scored before it is complete", "serial", swap(e.TrajectoryFinished, c.Materialize)),
    (2, "a group is scored twice", "serial", insert(c.Dispatch, c.Materialize(40, 0, (0, 1)))),
    (2, "a group is consumed before it is trainable", "serial", drop(e.GroupMaterialized)),
    (2, "a group that lost a sample is consumed", "serial", change(e.GroupMaterialized, samples=1)),
    (2, "a group comes back with a sample too many", "serial", change(e.GroupMaterialized, samples=3)),
    (2, "a filtered group is consumed", "serial", change(e.GroupMaterialized, drop=True)),
    (2, "an update steps short of a group of the round", "serial", change(c.Dispatch, groups=(0,), update_groups=(0,))),
    (2, "an update steps empty", "serial", change(c.Dispatch, groups=(), update_groups=())),
    (2, "an update forgets its groups", "serial", change(c.Dispatch, update_groups=(0,))),
    (2, "a full update does not step", "serial", change(c.Dispatch, step=False)),
    (2, "an update is skipped", "serial", change(c.Dispatch, update=2)),
    (2, "two dispatches are with the trainer", "streaming", drop(e.UpdateFinished)),
    (3, "a trajectory mixes versions", "multiversion", change(e.TrajectoryFinished, version_max=1)),
    (
        3,
        "a trajectory is of another version than it was admitted under",
        "serial",
        change(e.TrajectoryFinished, version_min=1, version_max=1),
    ),
    (3, "a group is admitted under two versions", "multiversion", change(c.Admit, 3, version=1)),
    (3, "a round is admitted under an old version", "serial", change(c.Admit, version=-1)),
    (3, "weights change during an evaluation", "serial", insert(e.Evaluated, c.LoadWeights(40, "i0", 1))),
    (3, "a round starts during an evaluation", "serial", insert(c.Materialize, c.Evaluate(40, 0, 0), c.Admit(41, 1, 1, 1, "i0", 0))),
    (4, "the recorded staleness is too small", "streaming", change(c.Dispatch, 1, staleness=(0,))),
    (4, "the recorded staleness in updates is too small", "streaming", change(c.Dispatch, 1, staleness_updates=(0,))),
    (4, "no staleness is recorded", "streaming", change(c.Dispatch, 1, staleness=())),
    (4, "a group is staler than recorded", "multiversion", insert(c.Dispatch, c.Publish(40, 2, 1), at=1)),
    (
        4,
        "a group is staler than the bound, and says so",
        "multiversion",
        all_of(insert(c.Dispatch, c.Publish(40, 2, 1), at=1), change(c.Dispatch, 1, staleness=(2,))),
    ),
    (5, "work is admitted before the weights are live", "serial", drop(e.WeightsLive)),
    (5, "work is admitted under weights that the instance does not serve", "serial", change(c.Admit, version=1)),
    (
        5,
        "weights go to an instance that is not there",
        "serial",
        all_of(change(c.LoadWeights, instance="i9"), change(e.WeightsLive, instance="i9")),
    ),
    (
        5,
        "work is admitted under weights that make way",
        "multiversion",
        insert(
            c.Publish,
            e.TrajectoryFailed(7, 1, 1, 0, "i0", "broken"),
            c.LoadWeights(40, "i0", 1, replaces=0),
            c.Admit(41, 1, 1, 1, "i0", 0),
            at=2,
        ),
    ),
    (5, "work is admitted to an instance that is not there", "serial", change(c.Admit, instance="i9")),
    (
        5,
        "weights are replaced under running work",
        "serial",
        insert(c.Materialize, c.LoadWeights(40, "i0", 0), c.LoadWeights(41, "i0", 1, replaces=0)),
    ),
    (5, "an instance gets more versions than it holds", "serial", change(c.LoadWeights, 1, replaces=None)),
    (5, "weights change under kept work that is said to be gone", "streaming", change(c.LoadWeights, 1, unfinished="none")),
    (5, "tokens are of a version that was never live", "streaming", change(e.TrajectoryFinished, 2, version_max=2)),
    (5, "tokens are older than the admission", "streaming", change(e.TrajectoryFinished, 2, version_min=-1)),
    (5, "work moves to an instance of another version", "multiversion", change(c.Migrate, version=1)),
    (5, "work moves from where it does not run", "multiversion", change(c.Migrate, source="i0")),
    (5, "work of another version moves", "multiversion", insert(e.Migrated, c.Migrate(40, ((0, 0),), "i1", "i0", 0))),
    (6, "a long trajectory is aborted", "multiversion", insert(e.Migrated, c.Abort(40, 1, 1, 0, "i1", "too long"))),
    (6, "an old group is filtered", "multiversion", insert(e.Migrated, c.Terminal(40, 1, "filtered", "stale"))),
    (6, "a group fails of which nothing failed", "serial", insert(c.Dispatch, c.Terminal(40, 1, "failed", "bad luck"))),
    (6, "a stale group is filtered under pacing", "streaming", insert(c.Dispatch, c.Terminal(40, 1, "filtered", "stale"), at=1)),
    (7, "a version claims an update too many", "serial", change(c.Publish, 1, updates=2)),
    (7, "a version is skipped", "serial", change(c.Publish, 1, version=2)),
    (7, "a version brings nothing new", "serial", insert(c.Admit, c.Publish(40, 1, 0))),
    (7, "an unpublished version is loaded", "serial", change(c.LoadWeights, 1, version=2)),
    (7, "a version is loaded before it is stored", "serial", swap(e.Published, c.LoadWeights)),
    (7, "a version that work needs is retired", "multiversion", insert(c.LoadWeights, c.Retire(40, 0), at=2)),
    (7, "the newest version is retired", "serial", change(c.Retire, version=1)),
    (7, "a version that an instance serves is retired", "streaming", insert(c.LoadWeights, c.Retire(40, 0), at=1)),
    (7, "other tensors arrive", "serial", change(e.WeightsLive, fingerprint="g0")),
    (7, "another version arrives", "serial", change(e.WeightsLive, 1, version=0)),
    (7, "the probe is off", "serial", change(e.WeightsLive, probe_error=0.01)),
    (7, "the probe is no number", "serial", change(e.WeightsLive, probe_error=float("nan"))),
    (7, "another version is stored", "serial", change(e.Published, version=3)),
    (8, "the run goes on after it stopped", "serial", lambda story: story.append(c.Warn(40, "late"))),
    (8, "the run stops twice", "serial", lambda story: story.append(c.Stop(40, "again"))),
    (8, "the run stops before its checkpoint is written", "serial", drop(e.CheckpointDone)),
    (8, "an update has no answer", "serial", drop(e.UpdateFinished)),
    (8, "nobody owes anything and the run is not over", "serial", insert(c.Dispatch, e.Timer())),
]


@pytest.mark.parametrize(("rule", "what", "name", "mutate"), BROKEN, ids=[f"{r}: {w}" for r, w, _, _ in BROKEN])
def test_a_rule_catches(rule, what, name, mutate):
    schedule, make = STORIES[name]
    story = make()
    mutate(story)
    found = fold(schedule, story)
    assert rule in {v.rule for v in found}, [str(v) for v in found]
    assert rule in {v.rule for v in fold(schedule, story, only=(rule,))}, "a rule must judge alone"


def test_a_violation_names_its_rule_place_and_group():
    story = serial_story()
    change(c.Dispatch, staleness=(0, 1))(story)
    place = next(i for i, r in enumerate(story) if type(r) is c.Dispatch)
    (violation,) = fold(SERIAL, story)
    assert (violation.rule, violation.position) == (4, place)
    assert "group 1" in violation.message
    assert str(violation).startswith(f"rule 4 at record {place}: ")


def test_a_resumed_lineage_has_the_pending_prompts_and_goes_on_with_the_data_order():
    resume = Resume(update=4, version=2, pending=(3, 7), next_index=9)
    start = [
        e.Started(),
        c.Publish(1, 2, 4),
        e.Published(1, 2, "f"),
        up(),
        c.LoadWeights(2, "i0", 2),
        e.WeightsLive(2, "i0", 2, "f", 0.0, 0.0),
    ]
    request = c.RequestPrompts(3, 2)
    assert fold(SERIAL, [*start, c.Admit(4, 7, 0, 0, "i0", 2), request, e.PromptsArrived(3, (9, 10))], resume) == []
    assert [v.rule for v in fold(SERIAL, [*start, c.Admit(4, 8, 0, 0, "i0", 2)], resume)] == [1]
    for wrong in ((3, 7), (7, 9), (10, 11), (9, 9)):
        assert [v.rule for v in fold(SERIAL, [*start, request, e.PromptsArrived(3, wrong)], resume)] == [1]


def test_a_checkpoint_right_after_a_resume_must_name_the_same_prompts():
    resume = Resume(update=4, version=2, pending=(3, 7), next_index=9)
    start = [e.Started(), c.Publish(1, 2, 4), e.Published(1, 2, "f")]
    assert fold(SERIAL, [*start, c.Checkpoint(2, 4, 2, (3, 7), 9)], resume) == []
    assert [v.rule for v in fold(SERIAL, [*start, c.Checkpoint(2, 4, 2, (7,), 9)], resume)] == [1]


def test_a_late_answer_of_an_older_attempt_means_nothing():
    story = serial_story()
    place = next(i for i, r in enumerate(story) if type(r) is c.Materialize)
    lost = [
        e.InstanceLost("i0", "gone"),
        up(),
        c.LoadWeights(40, "i0", 0),
        live(40, 0),
        c.Admit(41, 1, 0, 1, "i0", 0),
        c.Admit(42, 1, 1, 1, "i0", 0),
        done(6, 1, 0, low=5),
    ]
    story[place + 2 : place + 2] = lost
    story = [
        replace(r, command=r.command + 35, attempt=1) if type(r) is e.TrajectoryFinished and r.group == 1 and r.version_min == 0 else r
        for r in story
    ]
    assert fold(SERIAL, story) == []


def late(schedule, *tail):
    """What rule 8 says of an opening with one admitted trajectory, all at 0 s, and then of records with their times."""
    rules = Rules(schedule, only=(8,))
    for record, now in [*((r, 0.0) for r in (*opening(2), c.Admit(4, 0, 0, 0, "i0", 0))), *tail]:
        rules.feed(record, now)
    return [v.rule for v in rules.found]


def test_a_wait_past_its_deadline_must_be_named_each_time_it_passes():
    warn = c.Warn(50, "group 0, sample 0 on i0 has not answered for 6 s")
    assert late(SERIAL, (e.Timer(), 6.0), (warn, 6.0), (e.Timer(), 7.0), (e.Timer(), 8.0)) == []
    assert late(SERIAL, (e.Timer(), 6.0), (e.Timer(), 7.0)) == [8]
    assert late(SERIAL, (e.Timer(), 6.0), (replace(warn, message="something is late"), 6.0), (e.Timer(), 7.0)) == [8]
    assert late(SERIAL, (e.Timer(), 6.0), (warn, 6.0), (e.Timer(), 11.5), (e.Timer(), 12.0)) == [8]
    assert late(SERIAL, (done(4, 0, 0), 1.0), (c.RequestPrompts(9, 1), 1.0), (e.Timer(), 6.0), (e.Timer(), 7.0)) == []


def test_moves_and_aborts_past_their_deadline_must_be_named():
    schedule = replace(MULTIVERSION, deadlines=(("migrate", 5.0), ("abort", 5.0)))
    for command, words in ((c.Migrate(9, ((0, 0),), "i0", "i1", 0), "instance i1"), (c.Abort(9, 0, 0, 0, "i0", "stale"), "group 0")):
        assert late(schedule, (command, 1.0), (e.Timer(), 6.0), (c.Warn(50, f"{words} is late"), 6.0), (e.Timer(), 7.0)) == []
        assert late(schedule, (command, 1.0), (e.Timer(), 6.0), (e.Timer(), 7.0)) == [8]


def test_a_trajectory_that_is_being_aborted_is_waited_for_through_its_abort():
    abort, warn = c.Abort(9, 0, 0, 0, "i0", "its group failed"), c.Warn(50, "abort: instance i0 has owed the abort of group 0")
    schedule = replace(SERIAL, deadlines=(("admit", 5.0), ("abort", 3.0)))
    assert late(schedule, (abort, 4.0), (e.Timer(), 6.0), (e.Timer(), 7.0), (warn, 7.0), (e.Timer(), 8.0)) == []
    assert late(schedule, (abort, 4.0), (e.Timer(), 7.0), (e.Timer(), 8.0)) == [8]


def test_having_no_instance_past_its_deadline_must_be_named_too():
    schedule = replace(SERIAL, deadlines=(("instances", 5.0),))
    gone, back, timer = e.InstanceLost("i0", "gone"), up(), e.Timer()
    warn = c.Warn(50, "instances: the pool has owed an instance (none is up) for 6.0 s")
    assert late(schedule, (gone, 1.0), (timer, 5.0), (timer, 6.0), (warn, 6.0), (timer, 7.0)) == []
    assert late(schedule, (gone, 1.0), (timer, 6.0), (timer, 7.0)) == [8]
    again = ((back, 4.0), (c.LoadWeights(9, "i0", 0), 4.0), (timer, 6.0), (gone, 7.0))
    assert late(schedule, (gone, 1.0), *again, (timer, 11.0), (timer, 11.5)) == []
    assert late(schedule, (gone, 1.0), *again, (timer, 12.0), (timer, 12.5)) == [8]


def test_the_trainers_wait_for_groups_must_be_named_with_one_of_them():
    schedule, timer = replace(SERIAL, deadlines=(("groups", 5.0),)), e.Timer()
    warn = c.Warn(50, "groups: rollout has owed groups [0, 1] to the trainer for 6.0 s")
    assert late(schedule, (timer, 4.0), (timer, 6.0), (warn, 6.0), (timer, 7.0)) == []
    assert late(schedule, (timer, 6.0), (timer, 7.0)) == [8]
    assert late(schedule, (timer, 6.0), (replace(warn, message="groups: they are late"), 6.0), (timer, 7.0)) == [8]
    assert late(schedule, (timer, 6.0), (replace(warn, message="group 0 is late"), 6.0), (timer, 7.0)) == [8]
    assert late(schedule, (timer, 6.0), (warn, 6.0), (timer, 11.5), (timer, 12.0)) == [8], "named again each time the deadline passes"
    busy = ((c.Checkpoint(9, 0, 0, (0, 1), 2), 3.0), (timer, 6.0), (e.CheckpointDone(9, 0), 7.0))
    assert late(schedule, *busy, (timer, 11.0), (timer, 12.0), (warn, 12.0), (timer, 13.0)) == []
    assert late(schedule, *busy, (timer, 12.0), (timer, 13.0)) == [8], "it began anew when the trainer was free again"


def test_a_resumed_run_waits_for_its_pending_groups_from_the_first_publish_on():
    schedule = replace(SERIAL, total_updates=6, deadlines=(("groups", 5.0),))
    for resume, found in ((Resume(4, 2, (3, 7), 9), [8]), (Resume(6, 2, (3, 7), 9), []), (Resume(4, 2, (), 9), [])):
        rules = Rules(schedule, resume, only=(8,))
        for record, now in [
            *((e.Started(), 0.0), (c.Publish(1, 2, 4), 0.0), (up(), 0.0), (e.Published(1, 2, "f"), 3.0), (c.LoadWeights(2, "i0", 2), 3.0)),
            *((e.Timer(), 7.0), (e.Timer(), 8.0), (e.Timer(), 9.0)),
        ]:
            rules.feed(record, now)
        assert [v.rule for v in rules.found] == found


def test_rounds_wait_for_an_evaluation_before_they_wait_for_groups():
    """It is due at version 0; the groups are waited for from its answer on. Elsewhere it keeps nothing back."""
    evaluation, timer = (c.Evaluate(9, 0, 0), 2.0), e.Timer()
    for schedule, found in ((SERIAL, []), (replace(MULTIVERSION, total_updates=2), [8])):
        plan = replace(schedule, evaluate_every=1, deadlines=(("groups", 5.0),))
        assert late(plan, evaluation, (timer, 7.5), (e.Evaluated(9), 8.0), (timer, 12.0)) == found
        assert late(plan, evaluation, (e.Evaluated(9), 4.0), (timer, 9.5), (timer, 10.0)) == [8]
        assert late(plan, (timer, 7.5), (timer, 8.0)) == found, "due, and waiting for weights"


def test_no_instance_is_a_wait_that_the_pool_owns():
    rules = Rules(SERIAL, only=(8,))
    for record in [e.Started(), c.Publish(1, 0, 0), e.Published(1, 0, "f0"), e.Timer(), e.Timer()]:
        rules.feed(record, 0.0)
    assert rules.found == []


def test_a_dispatch_holds_at_most_d_groups_and_an_update_u():
    assert [v.message for v in fold(replace(SERIAL, groups_per_dispatch=1), serial_story())] == ["2 groups in one dispatch, D = 1"]
    assert [v.message for v in fold(replace(SERIAL, groups_per_update=1), serial_story())] == ["update 1 holds 2 groups, U = 1"]


def test_a_scored_group_is_admitted_again_only_when_it_is_overstale_and_the_schedule_generates_those_anew():
    """Group 1 is scored under version 0; version 2 is published while the bound is 1 version."""
    story = streaming_story()[:22]
    story += [done(6, 1, 0), done(7, 1, 1), c.Materialize(40, 1, (0, 1)), scored(40, 1)]
    newer = [c.Publish(41, 2, 1), e.Published(41, 2, "f2")]
    again = c.Admit(42, 1, 0, 1, "i0", 1)
    retry = replace(STREAMING, overstale="retry")
    assert fold(retry, [*story, *newer, again], only=(1,)) == []
    for schedule, records in ((retry, [again]), (replace(STREAMING, overstale="drop"), [*newer, again])):
        assert [v.message for v in fold(schedule, [*story, *records], only=(1,))] == [
            "trajectory (1, 0) attempt 1 was admitted, but its next attempt is one of ()"
        ]


def test_an_update_may_be_short_only_when_nothing_can_join_it():
    three = replace(SERIAL, groups_per_round=3, groups_per_update=3, groups_per_dispatch=3)
    assert fold(three, serial_story()) == [], "the round has no third group"
    asked = serial_story()
    insert(c.Dispatch, c.RequestPrompts(40, 1))(asked)
    assert [v.message for v in fold(three, asked) if v.rule == 2] == [
        "update 1 stepped with 2 of 3 groups although prompts are still to arrive"
    ]
    two = replace(STREAMING, groups_per_update=2, groups_per_dispatch=2)
    flowing, ended, fewer = streaming_story(), streaming_story(), streaming_story()
    insert(c.Dispatch, e.DataEnded(40), at=1)(ended)
    change(c.RequestPrompts, count=3)(fewer)
    short = "update 1 stepped with 1 of 2 groups although groups [1] could still join"
    last = "update 2 stepped with 1 of 2 groups although the data has not ended"
    assert [v.message for v in fold(two, flowing) if v.rule == 2] == [short, last]
    assert [v.message for v in fold(two, ended) if v.rule == 2] == [short]
    assert [v.message for v in fold(two, fewer) if v.rule == 2] == [short], "fewer prompts than asked for mean the end of the data"


def running(schedule, *tail, only=tuple(RULES)):
    """The violations of an opening with two instances, group 0 of two samples admitted to the first, and then `tail`."""
    second = (up("i1"), c.LoadWeights(30, "i1", 0), live(30, 0, "i1"))
    rules = Rules(schedule, only=only)
    for record in (*opening(2, *second), c.Admit(4, 0, 0, 0, "i0", 0), c.Admit(5, 0, 1, 0, "i0", 0), *tail):
        rules.feed(record, 0.0)
    return [v.message for v in rules.found]


def test_a_parked_trajectory_goes_on_in_its_attempt_or_starts_anew_but_is_not_admitted_while_it_runs():
    park = (c.Park(9, 0, 0, 0, "i0"), e.TrajectoryParked(9, 0, 0, 0, "i0", 3))
    for attempt in (0, 1):
        assert running(MULTIVERSION, *park, c.Admit(10, 0, 0, attempt, "i1", 0)) == []
    twice = "trajectory (0, 0) attempt 2 was admitted, but its next attempt is one of (0, 1)"
    assert running(MULTIVERSION, *park, c.Admit(10, 0, 0, 2, "i1", 0)) == [twice]
    assert running(MULTIVERSION, park[0], c.Admit(10, 0, 0, 1, "i1", 0)) == [
        "trajectory (0, 0) attempt 1 was admitted, but its next attempt is one of ()"
    ]
    assert running(MULTIVERSION, *park, park[1], done(4, 0, 0)) == [], "what it says once more, or late, means nothing"
    over = (done(4, 0, 0), *park)
    assert running(MULTIVERSION, *over, c.Admit(10, 0, 0, 1, "i1", 0)) != [], "it finished before it could be parked"


def test_an_aborted_trajectory_starts_again_once_its_abort_is_answered():
    retry = replace(STREAMING, overstale="retry")
    abort = c.Abort(9, 0, 0, 0, "i0", "its state cannot be kept")
    for answer in (e.Aborted(9), e.CommandFailed(9, "it does not run here")):
        assert running(retry, abort, answer, answer, c.Admit(10, 0, 0, 1, "i0", 0)) == []
    assert running(retry, abort, c.Admit(10, 0, 0, 1, "i0", 0)) != []
    assert running(MULTIVERSION, abort) == ["trajectory (0, 0) was abandoned: its state cannot be kept"]


def test_an_admission_that_could_not_be_performed_is_a_failed_attempt():
    failed = e.CommandFailed(4, "no such group")
    assert running(MULTIVERSION, failed, failed, c.Admit(10, 0, 0, 1, "i1", 0)) == []


MOVE = c.Migrate(9, ((0, 0), (0, 1)), "i0", "i1", 0)


def test_a_trajectory_that_moved_to_an_instance_lost_meanwhile_is_lost_with_it():
    again = c.Admit(10, 0, 0, 1, "i0", 0)
    moved = e.Migrated(9, ((0, 0),))
    assert running(MULTIVERSION, MOVE, e.InstanceLost("i1", "gone"), moved, moved, again, done(5, 0, 1)) == []
    assert running(MULTIVERSION, MOVE, up("i1"), moved, again, done(5, 0, 1)) == [], "it came up again under the same name"
    stayed = "trajectory (0, 1) attempt 1 was admitted, but its next attempt is one of ()"
    assert running(MULTIVERSION, MOVE, e.InstanceLost("i1", "gone"), moved, c.Admit(10, 0, 1, 1, "i0", 0)) == [stayed]


def test_an_attempt_that_arrives_after_it_was_given_up_is_ended_and_nothing_of_it_is_abandoned():
    ghost = (MOVE, e.InstanceLost("i0", "gone"), e.Migrated(9, ((0, 0),)), c.Abort(10, 0, 0, 0, "i1", "moved after it was given up"))
    assert running(MULTIVERSION, *ghost, e.Aborted(10), c.Admit(11, 0, 0, 1, "i1", 0)) == []


def test_a_failed_evaluation_is_over():
    tail = (c.Evaluate(9, 0, 0), e.CommandFailed(9, "its reward raised"), c.LoadWeights(10, "i1", 0, replaces=0))
    assert running(SERIAL, *tail, only=(3,)) == []
    assert running(SERIAL, tail[0], tail[2], only=(3,)) == ["instance i1 changed to version 0 during an evaluation"]


def test_a_move_means_the_attempt_that_ran_when_it_was_commanded():
    """Its source is lost and comes back under the same name; the next attempt runs there when the move of the first one is answered."""
    back = (up("i0"), c.LoadWeights(31, "i0", 0), live(31, 0), c.Admit(10, 0, 0, 1, "i0", 0))
    tail = (MOVE, *back, e.Migrated(9, ((0, 0),)), e.InstanceLost("i1", "gone"))
    assert running(MULTIVERSION, *tail, done(10, 0, 0, attempt=1)) == []
    assert running(MULTIVERSION, *tail, c.Admit(11, 0, 0, 2, "i0", 0)) != [], "attempt 1 still runs on i0"


def test_a_moved_trajectory_may_end_on_its_target_before_the_move_is_answered_and_after_the_target_was_lost():
    ended = (done(4, 0, 0, name="i1"), done(5, 0, 1, name="i1"), e.Migrated(9, ((0, 0), (0, 1))), c.Materialize(10, 0, (0, 1)))
    assert running(MULTIVERSION, MOVE, *ended) == []
    assert running(MULTIVERSION, MOVE, e.InstanceLost("i1", "gone"), *ended) == []


def test_survivors_train_only_under_the_policy_that_says_so():
    story = serial_story()
    first = next(i for i, r in enumerate(story) if r == done(4, 0, 0))
    story[first] = e.TrajectoryFailed(4, 0, 0, 0, "i0", "broken")
    change(c.Materialize, samples=(1,))(story)
    change(e.GroupMaterialized, samples=1)(story)
    assert 2 in {v.rule for v in fold(SERIAL, story)}
    assert 2 in {v.rule for v in fold(replace(SERIAL, on_failure="drop_sample"), story)}, "one survivor is no group"
    three = replace(SERIAL, group_size=3, on_failure="drop_sample")
    extra = [c.Admit(40 + g, g, 2, 0, "i0", 0) for g in range(2)]
    insert(e.TrajectoryFinished, *extra, done(40, 0, 2), done(41, 1, 2))(story)
    change(c.Materialize, samples=(1, 2))(story)
    change(c.Materialize, 1, samples=(0, 1, 2))(story)
    change(e.GroupMaterialized, samples=2)(story)
    change(e.GroupMaterialized, 1, samples=3)(story)
    assert fold(three, story) == []


def test_memory_follows_what_is_alive_and_not_how_long_the_run_has_lasted():
    rules = Rules(replace(SERIAL, groups_per_round=1, groups_per_update=1, groups_per_dispatch=1, total_updates=10**6))
    ids = iter(range(1, 10**6))
    now = 0.0

    def feed(*records):
        for record in records:
            assert rules.feed(record, now) is None

    publish, load = next(ids), next(ids)
    feed(e.Started(), c.Publish(publish, 0, 0), e.Published(publish, 0, "f0"), up(), c.LoadWeights(load, "i0", 0), live(load, 0))
    for g in range(300):
        now += 1.0
        request, a, b, score, step, end, publish, load, retire = (next(ids) for _ in range(9))
        feed(c.RequestPrompts(request, 1), e.PromptsArrived(request, (g,)), c.Admit(a, g, 0, 0, "i0", g), c.Admit(b, g, 1, 0, "i0", g))
        feed(done(a, g, 0, g), done(b, g, 1, g), c.Materialize(score, g, (0, 1)), scored(score, g))
        feed(c.Dispatch(step, (g,), True, g + 1, (g,), (0,), (0,)), e.UpdateFinished(step, g + 1), c.Terminal(end, g, "trained"))
        feed(c.Publish(publish, g + 1, g + 1), e.Published(publish, g + 1, f"f{g + 1}"))
        feed(c.LoadWeights(load, "i0", g + 1, replaces=g), live(load, g + 1), c.Retire(retire, g))
    book = rules.book
    sizes = [len(x) for x in (book.groups, book.open, book.admits, book.aborting, book.contains, book.fingerprints, book.users)]
    assert max(sizes) <= 1
    assert sum(map(len, book.since.values())) == len(book.open)
