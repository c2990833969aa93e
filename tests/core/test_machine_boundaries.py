"""Evaluations, checkpoints, stops, failures of commands, waits and warnings."""

from dataclasses import asdict

import pytest
from tests.core.hand import schedule
from tests.core.script import Script, admitted, kinds

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume


def test_rounds_admit_nothing_from_the_publish_until_the_evaluation_is_over() -> None:
    s = Script(schedule("serial", u=1, group_size=1, evaluate_every=2, total_updates=3))
    s.feed(e.Started())
    s.up()
    s.published()
    s.prompts()
    assert kinds(s.live()) == ["Evaluate"]
    assert admitted(s.evaluated()) == [(0, 0, 0, "a", 0)]
    s.serve(0)
    s.updated()
    s.published()
    s.prompts()
    assert kinds(s.live()) == ["Admit", "Retire"]  # update 1: none due
    s.serve(1)
    s.updated()
    s.published()
    s.prompts()
    assert kinds(s.live()) == ["Evaluate", "Retire"]


def test_the_end_evaluates_the_last_version_even_off_the_period() -> None:
    s = Script(schedule("serial", u=1, group_size=1, evaluate_every=5, total_updates=1))
    s.begin()
    s.evaluated()
    s.prompts()
    s.serve(0)
    s.updated()
    assert kinds(s.published()) == ["LoadWeights"]
    assert kinds(s.live()) == ["Evaluate", "Retire"]
    assert kinds(s.evaluated()) == ["Checkpoint"]


def test_an_evaluation_waits_until_no_instance_is_changing_its_weights() -> None:
    s = Script(schedule("serial", u=1, group_size=1, evaluate_every=1))
    s.feed(e.Started())
    s.up("a")
    s.up("b")
    s.published()
    assert s.live("a") == []
    assert s.up("d") == []  # its load waits for the evaluation
    assert kinds(s.live("b")) == ["Evaluate"]
    assert kinds(s.evaluated()) == ["LoadWeights"]


def test_an_instance_whose_load_waits_for_an_evaluation_loads_when_the_one_to_evaluate_is_lost() -> None:
    s = Script(schedule("serial", u=1, group_size=1, evaluate_every=1))
    s.feed(e.Started())
    s.up("a")
    s.up("b")
    s.published()
    s.live("a")
    assert s.up("d") == []
    assert kinds(s.lost("a")) == ["LoadWeights"]
    assert s.last(c.LoadWeights).instance == "d"


def test_a_failed_evaluation_warns_and_the_run_goes_on() -> None:
    s = Script(schedule("serial", u=1, group_size=1, evaluate_every=1))
    s.begin()
    s.prompts()
    assert kinds(s.feed(e.CommandFailed(s.last(c.Evaluate).id, "no"))) == ["Warn", "Admit"]


def test_a_checkpoint_at_a_publish_names_what_is_requested_and_not_terminal_and_holds_the_trainer() -> None:
    s = Script(schedule("streaming", u=1, group_size=1, staleness=1, at_publish="keep", checkpoint_every=1, total_updates=9))
    s.begin()
    s.prompts()
    s.serve(0)
    s.updated()
    s.prompts()
    out = s.published()
    assert out[-1] == c.Checkpoint(out[-1].id, 1, 1, (1, 2), 3)
    assert s.serve(1) == []
    assert kinds(s.saved()) == ["Dispatch"]


def test_a_stop_ends_the_dispatch_under_way_and_leaves_the_unfinished_update_pending() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=1))
    s.begin()
    s.prompts()
    s.serve(0)
    assert s.feed(e.StopRequested("checkpoint", "asked to")) == []
    out = s.consumed()
    assert out == [c.Checkpoint(out[0].id, 0, 0, (0, 1), 2)]
    assert s.saved() == [c.Stop(out[0].id + 1, "asked to")]


def test_a_stop_within_a_round_names_the_next_version_for_the_resume_to_publish() -> None:
    s = Script(schedule("serial", u=1, r=2, group_size=1))
    s.begin()
    s.prompts()
    s.serve(0)
    s.serve(1)
    s.feed(e.StopRequested("checkpoint", "asked to"))
    out = s.updated()
    assert kinds(out) == ["Terminal", "Checkpoint"]
    assert (out[1].update, out[1].version, out[1].pending) == (1, 1, (1,))


def test_stop_now_leaves_at_once() -> None:
    s = Script(schedule("serial"))
    s.begin()
    assert kinds(s.feed(e.StopRequested("now", "twice"))) == ["Stop"]
    assert s.feed(e.Timer()) == []


def test_a_resume_of_a_finished_run_stops_without_another_checkpoint() -> None:
    s = Script(schedule("serial", total_updates=4), Resume(update=4, version=4, next_index=8))
    s.feed(e.Started())
    assert kinds(s.published()) == ["Stop"]


@pytest.mark.parametrize("kind", [c.Publish, c.Dispatch, c.Checkpoint, c.RequestPrompts])
def test_commands_that_nothing_can_replace_stop_the_run_when_they_fail(kind: type) -> None:
    s = Script(schedule("serial", u=1, group_size=1, total_updates=1))
    s.feed(e.Started())
    if kind in (c.Dispatch, c.Checkpoint):
        s.published()
        s.up()
        s.live()
        s.prompts()
        s.serve(0)
    if kind is c.Checkpoint:
        s.updated()
        s.published()
    (stop,) = s.feed(e.CommandFailed(s.last(kind).id, "disk full"))
    assert stop == c.Stop(stop.id, f"{kind.__name__} failed: disk full", ok=False)


def test_a_group_whose_rewards_fail_fails_with_them() -> None:
    s = Script(schedule("serial", u=2, group_size=1, on_failure="drop_group"))
    s.begin()
    s.prompts()
    s.serve(0)
    s.finish(1)
    out = s.feed(e.CommandFailed(s.last(c.Materialize).id, "bad gold in row 7"))
    assert (out[0].state, out[0].why) == ("failed", "group 1 could not be rewarded: bad gold in row 7")
    assert (out[1].groups, out[1].step) == ((0,), True)


def test_an_instance_whose_load_fails_counts_as_lost() -> None:
    s = Script(schedule("serial", u=1, group_size=1))
    s.feed(e.Started())
    s.up("a")
    s.published()
    s.prompts()
    s.feed(e.CommandFailed(s.last(c.LoadWeights).id, "checksum"))
    assert "instances" in [w.kind for w in s.machine.waits(0.0)]
    s.up("a")
    assert kinds(s.live("a")) == ["Admit"]


def test_a_skipped_update_counts_as_issued_and_the_run_goes_on() -> None:
    s = Script(schedule("serial", u=1, group_size=1, total_updates=2))
    s.begin()
    s.prompts()
    s.serve(0)
    assert kinds(s.updated(applied=False)) == ["Terminal", "Publish", "RequestPrompts"]


def test_a_wait_past_its_deadline_is_named_once_and_again_when_it_passes_anew() -> None:
    s = Script(schedule("serial", u=1, group_size=2, deadlines=(("admit", 10.0),)))
    s.begin()
    s.prompts()
    s.finish(0, 1)
    assert s.feed(e.Timer(), 9.0) == []
    (warning,) = s.feed(e.Timer(), 10.0)
    assert warning.message == "admit: instance a has owed group 0 sample 0 attempt 0 for 10.0 s"
    assert s.feed(e.Timer(), 19.0) == []
    assert "for 20.0 s" in s.feed(e.Timer(), 20.0)[0].message


def test_waits_name_open_commands_with_owner_and_deadline() -> None:
    s = Script(schedule("serial", u=1, group_size=1, deadlines=(("prompts", 3.0),)))
    s.feed(e.Started())
    waits = {w.kind: w for w in s.machine.waits(1.0)}
    assert set(waits) == {"prompts", "publish", "instances"}
    assert (waits["prompts"].owner, waits["prompts"].what, waits["prompts"].deadline) == ("data source", "1 prompts", 3.0)
    assert (waits["publish"].owner, waits["publish"].what) == ("trainer", "the publish of version 0")


def test_a_fleet_that_stays_empty_is_named() -> None:
    s = Script(schedule("serial"))
    s.feed(e.Started())
    s.published()
    s.prompts()
    messages = [w.message for w in s.feed(e.Timer(), 700.0)]
    assert messages == [
        "instances: the pool has owed an instance (none is up) for 700.0 s",
        "groups: rollout has owed groups [0, 1] to the trainer for 700.0 s",
    ]


def test_while_an_evaluation_holds_admission_it_is_named_and_not_rollout() -> None:
    s = Script(schedule("serial", evaluate_every=1))
    s.begin()
    s.prompts()
    assert s.of(c.Evaluate)
    assert [w.message for w in s.feed(e.Timer(), 700.0)] == ["evaluate: evaluation has owed version 0 at update 0 for 700.0 s"]


def test_an_answer_that_cannot_be_is_an_assertion() -> None:
    s = Script(schedule("serial", u=1, group_size=1))
    s.begin()
    s.prompts()
    a = s.admit(0, 0)
    with pytest.raises(AssertionError, match="cannot answer"):
        s.feed(e.TrajectoryFinished(a.id, 5, 0, 0, "a", 5, 0, 0))


def test_time_never_runs_backwards() -> None:
    s = Script(schedule("serial"))
    s.feed(e.Started(), 5.0)
    with pytest.raises(AssertionError, match="backwards"):
        s.feed(e.Timer(), 4.0)


def test_the_automatic_frontier_is_fifo_first_and_then_chosen_from_what_was_measured() -> None:
    s = Script(schedule("pipelined", u=1, d=1, r=8, group_size=1, total_updates=16, frontier="auto", no_signal="keep"))
    s.begin("a", slots=8)
    (first,) = s.of(c.SetFrontier)
    assert (first.round, first.groups, first.forecast) == (1, None, None)
    assert first.words == "frontier of round 1: unlimited, nothing is measured yet"
    assert len(admitted(s.prompts())) == 8
    s.feed(e.InstanceReport("a", 0, 8 / 0.08, 8, 0))
    s.feed(e.InstanceReport("a", 0, 2 / 0.05, 2, 0))
    for group in range(8):
        s.finish(group)
        s.reward(group)
    for _ in range(8):
        s.now += 0.3  # slower than one group in flight is generated: 5 tokens at 45 ms
        s.consumed()
        s.updated()
    _, second = s.of(c.SetFrontier)
    assert (second.round, second.groups) == (2, 2)
    assert second.forecast is not None
    assert asdict(second.forecast) == pytest.approx(
        {
            "seconds": 2.65,
            "fifo_seconds": 2.8,
            "rounds": 1,
            "step_seconds": 0.04,
            "sequence_seconds": 0.005,
            "group_seconds": 0.3,
            "share": 1.0,
        }
    )
    assert second.words == (
        "frontier of round 2: F = 2, 2.65 s by the lengths of the last round (fifo 2.8 s), "
        "steps 0.04 s + 0.005 s per sequence, training 0.3 s per group"
    )


def test_the_automatic_frontier_counts_the_optimizer_step_as_training() -> None:
    for step, chosen in ((0.0, 8), (0.3, 2)):  # without it the trainer looks endlessly fast, with it slower than two groups in flight
        s = Script(schedule("pipelined", u=1, d=1, r=8, group_size=1, total_updates=16, frontier="auto", no_signal="keep"))
        s.begin("a", slots=8)
        s.prompts()
        s.feed(e.InstanceReport("a", 0, 8 / 0.08, 8.0, 0))
        s.feed(e.InstanceReport("a", 0, 2 / 0.05, 2.0, 0))
        for group in range(8):
            s.finish(group)
            s.reward(group)
        for _ in range(8):
            s.consumed()
            s.now += step
            s.updated()
        assert [command.groups for command in s.of(c.SetFrontier)] == [None, chosen], step


def test_the_automatic_frontier_counts_dispatches_with_and_without_a_step() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=1, total_updates=2, frontier="auto", no_signal="keep"))
    s.begin("a", slots=2)
    s.prompts()
    s.feed(e.InstanceReport("a", 0, 2 / 0.08, 2.0, 0))
    s.feed(e.InstanceReport("a", 0, 1 / 0.05, 1.0, 0))
    for group in range(2):
        s.serve(group)
    s.now += 0.1
    s.consumed()
    s.now += 0.5
    s.updated()
    assert s.last(c.SetFrontier).forecast.group_seconds == pytest.approx(0.3)


def test_an_instance_that_comes_up_again_without_a_loss_has_lost_its_work() -> None:
    s = Script(schedule("serial", u=1, group_size=1))
    s.begin()
    s.prompts()
    late = s.admit(0, 0)
    assert kinds(s.up("a")) == ["LoadWeights"]
    assert admitted(s.live("a")) == [(0, 0, 1, "a", 0)]
    assert s.feed(e.TrajectoryFinished(late.id, 0, 0, 0, "a", 5, 0, 0)) == []


def test_a_failed_admission_is_a_failed_attempt_and_a_failed_abort_still_frees_the_slot() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=2, attempts=1, on_failure="drop_group"))
    s.begin(slots=2)
    s.prompts()
    abort, _, _ = s.feed(e.CommandFailed(s.admit(0, 0).id, "prompt too long"))
    assert abort == c.Abort(abort.id, 0, 1, 0, "a", "group 0 sample 0 failed 1 times, the last time with: prompt too long")
    assert admitted(s.feed(e.CommandFailed(abort.id, "gone already"))) == [(1, 1, 0, "a", 0)]


def test_aborts_and_loads_of_a_lost_instance_are_waited_for_no_longer() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=2, attempts=1, on_failure="drop_group"))
    s.begin(slots=2)
    s.prompts()
    s.fail(0, 0)
    s.lost("a")
    s.up("b")
    s.lost("b")
    assert {w.kind for w in s.machine.waits(0.0)} == {"instances", "groups"}


def test_a_run_that_is_asked_to_stop_again_leaves_as_it_was_asked_first() -> None:
    s = Script(schedule("serial", u=2, group_size=1))
    s.begin()
    s.prompts()
    assert kinds(s.feed(e.StopRequested("checkpoint", "first"))) == ["Checkpoint"]
    assert s.feed(e.StopRequested("checkpoint", "second")) == []
    (stop,) = s.saved()
    assert (stop.reason, stop.ok) == ("first", True)
