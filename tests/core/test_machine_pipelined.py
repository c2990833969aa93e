"""Pipelined rounds: dispatches, the frontier, and what falls out in between."""

from tests.core.hand import schedule
from tests.core.script import Script, admitted, kinds

from paceline.core import commands as c
from paceline.core import events as e


def test_gradients_accumulate_over_dispatches_and_the_step_names_the_whole_update() -> None:
    s = Script(schedule("pipelined", u=4, d=2, group_size=1))
    s.begin()
    s.prompts()
    s.serve(3)
    out = s.serve(1)
    assert out == [c.Dispatch(out[0].id, (3, 1), False, 1, (3, 1), (0, 0), (0, 0))]
    s.serve(0)
    assert s.serve(2) == []  # the trainer is busy
    out = s.consumed()
    assert out == [c.Dispatch(out[0].id, (0, 2), True, 1, (3, 1, 0, 2), (0, 0), (0, 0))]
    assert kinds(s.updated()) == ["Terminal"] * 4 + ["Publish", "RequestPrompts"]


def test_a_step_without_groups_closes_the_update_when_the_last_group_falls_out() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=1, no_signal="drop"))
    s.begin()
    s.prompts()
    s.serve(0)
    s.consumed()
    out = s.serve(1, signal=False)
    assert kinds(out) == ["Terminal", "Dispatch"]
    assert (out[1].groups, out[1].step, out[1].update_groups) == ((), True, (0,))
    assert kinds(s.updated()) == ["Terminal", "Publish", "RequestPrompts"]


def test_a_round_whose_last_group_falls_out_after_the_update_is_published_then() -> None:
    s = Script(schedule("pipelined", u=1, r=2, group_size=1, no_signal="drop"))
    s.begin()
    s.prompts()
    s.serve(0)
    assert kinds(s.updated()) == ["Terminal"]
    assert kinds(s.serve(1, signal=False)) == ["Terminal", "Publish", "RequestPrompts"]


def test_a_strict_frontier_starts_the_next_group_when_one_is_serving_complete() -> None:
    s = Script(schedule("pipelined", u=4, d=2, group_size=2, frontier=2, refill="group"))
    s.begin()
    assert admitted(s.prompts()) == [(g, i, 0, "a", 0) for g in (0, 1) for i in (0, 1)]
    assert s.finish(0, 0) == []
    assert s.finish(1, 0) == []
    out = s.finish(1, 1)
    assert kinds(out) == ["Materialize", "Admit", "Admit"]
    assert admitted(out) == [(2, 0, 0, "a", 0), (2, 1, 0, "a", 0)]


def test_a_sample_frontier_gives_a_finished_trajectory_s_slot_to_the_next_group() -> None:
    s = Script(schedule("pipelined", u=4, d=2, group_size=2, frontier=2, refill="sample"))
    s.begin()
    s.prompts()
    assert admitted(s.finish(0, 0)) == [(2, 0, 0, "a", 0)]
    assert admitted(s.finish(1, 0)) == [(2, 1, 0, "a", 0)]
    assert admitted(s.finish(1, 1)) == [(3, 0, 0, "a", 0)]


def test_a_failed_sample_goes_before_groups_that_have_not_started() -> None:
    s = Script(schedule("pipelined", u=3, d=1, group_size=2, frontier=1, refill="sample", attempts=2))
    s.begin()
    s.prompts()
    assert admitted(s.fail(0, 1)) == [(0, 1, 1, "a", 0)]


def test_a_group_s_samples_share_an_instance_and_groups_go_where_most_slots_are_free() -> None:
    s = Script(schedule("pipelined", u=3, group_size=2))
    s.begin("a", "b", slots=3)
    assert [(g, i, where) for g, i, _, where, _ in admitted(s.prompts())] == [
        (0, 0, "a"),
        (0, 1, "a"),
        (1, 0, "b"),
        (1, 1, "b"),
        (2, 0, "a"),
        (2, 1, "b"),
    ]


def test_a_lost_instance_costs_its_trajectories_no_allowed_failure() -> None:
    s = Script(schedule("pipelined", u=1, group_size=2, attempts=1, on_failure="drop_group"))
    s.begin("a", "b", slots=2)
    s.prompts()
    late = s.admit(0, 0)
    assert admitted(s.lost("a")) == [(0, 1, 1, "b", 0), (0, 0, 1, "b", 0)]
    assert s.finish(0, 0) == []
    assert s.feed(_finished(late)) == []  # an earlier attempt is ignored
    assert kinds(s.finish(0, 1)) == ["Materialize"]


def _finished(admit: c.Admit) -> object:
    return e.TrajectoryFinished(admit.id, admit.group, admit.sample, admit.attempt, admit.instance, 5, 0, 0)


def test_survivors_train_when_a_sample_is_given_up_and_a_single_survivor_does_not() -> None:
    s = Script(schedule("pipelined", u=3, d=1, group_size=3, attempts=1, on_failure="drop_sample"))
    s.begin()
    s.prompts()
    s.fail(0, 1)
    s.finish(0, 2)
    assert s.finish(0, 0)[0].samples == (0, 2)
    s.fail(1, 0)
    s.fail(1, 1)
    out = s.finish(1, 2)
    assert (out[0].state, out[0].why) == ("failed", "2 of 3 samples failed")
    s.fail(2, 0)
    s.fail(2, 1)
    assert s.fail(2, 2) == [c.Terminal(s.last(c.Terminal).id, 2, "failed", "3 of 3 samples failed")]


def test_a_group_given_up_aborts_its_running_samples_and_their_slots_wait_for_the_answer() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=2, attempts=1, on_failure="drop_group"))
    s.begin(slots=2)
    s.prompts()
    out = s.fail(0, 0)
    assert kinds(out) == ["Abort", "Terminal", "Admit"]
    assert admitted(out) == [(1, 0, 0, "a", 0)]
    assert admitted(s.feed(e.Aborted(out[0].id))) == [(1, 1, 0, "a", 0)]


def test_a_failure_stops_the_run_with_a_checkpoint_when_the_policy_says_so() -> None:
    s = Script(schedule("pipelined", u=1, group_size=1, attempts=2, on_failure="stop"))
    s.begin()
    s.prompts()
    assert kinds(s.fail(0)) == ["Admit"]
    out = s.fail(0)
    assert out == [c.Checkpoint(out[0].id, 0, 0, (0,), 1)]
    (stop,) = s.saved()
    assert not stop.ok
    assert "group 0 sample 0 failed 2 times" in stop.reason


def test_a_group_larger_than_all_slots_runs_in_waves_and_the_next_group_starts_after_it() -> None:
    s = Script(schedule("pipelined", u=1, r=2, group_size=5, frontier=1, refill="group"))
    s.begin(slots=2)
    assert admitted(s.prompts()) == [(0, 0, 0, "a", 0), (0, 1, 0, "a", 0)]
    assert admitted(s.finish(0, 1)) == [(0, 2, 0, "a", 0)]
    assert admitted(s.finish(0, 0)) == [(0, 3, 0, "a", 0)]
    assert admitted(s.finish(0, 3)) == [(0, 4, 0, "a", 0)]
    assert s.finish(0, 2) == []  # strict: group 0 is not complete, so a slot stays free
    out = s.finish(0, 4)
    assert kinds(out) == ["Materialize", "Admit", "Admit"]
    assert admitted(out) == [(1, 0, 0, "a", 0), (1, 1, 0, "a", 0)]


def test_a_group_whose_verifier_is_slow_frees_its_place_in_the_frontier_and_the_others_train() -> None:
    s = Script(
        schedule("pipelined", u=1, r=4, group_size=1, frontier=2, refill="group", total_updates=8, deadlines=(("materialize", 5.0),))
    )
    s.begin()
    s.prompts()
    assert admitted(s.finish(0)) == [(2, 0, 0, "a", 0)]  # it is judged for long from here on
    assert admitted(s.finish(1)) == [(3, 0, 0, "a", 0)]
    for group in (1, 2, 3):
        if group > 1:
            s.finish(group)
        assert s.reward(group)[0].groups == (group,)
        assert "Publish" not in kinds(s.updated())
    assert s.feed(e.Timer(), 6.0)[0].message == "materialize: rewards has owed group 0 for 6.0 s"
    assert s.reward(0)[0].groups == (0,)
    assert kinds(s.updated()) == ["Terminal", "Publish", "RequestPrompts"]


def test_a_filtered_group_is_refilled_within_its_round_and_dispatches_do_not_wait_for_it() -> None:
    s = Script(schedule("pipelined", u=2, d=1, group_size=1, no_signal="refill"))
    s.begin()
    s.prompts()
    out = s.serve(0, signal=False)
    assert kinds(out) == ["Terminal", "RequestPrompts"]
    assert s.serve(1)[0].groups == (1,)
    s.consumed()
    s.prompts()
    out = s.serve(2)
    assert (out[0].groups, out[0].step, out[0].update_groups) == ((2,), True, (1, 2))


def test_a_round_whose_kept_groups_are_no_multiple_of_u_ends_in_a_short_update_and_loses_nothing() -> None:
    s = Script(schedule("pipelined", u=2, r=4, d=2, group_size=1, no_signal="drop"))
    s.begin()
    s.prompts()
    s.serve(3)
    assert s.serve(0)[0].update_groups == (3, 0)
    s.serve(1, signal=False)
    s.updated()
    out = s.serve(2)
    assert (out[0].groups, out[0].step, out[0].update, out[0].update_groups) == ((2,), True, 2, (2,))
    assert kinds(s.updated()) == ["Terminal", "Publish", "RequestPrompts"]
    assert [(x.group, x.state) for x in s.of(c.Terminal)] == [(1, "filtered"), (3, "trained"), (0, "trained"), (2, "trained")]


def test_a_checkpoint_and_an_evaluation_that_fall_due_within_a_round_come_at_its_publish() -> None:
    s = Script(schedule("pipelined", u=1, r=3, group_size=1, total_updates=9, checkpoint_every=2, evaluate_every=2))
    s.begin()
    s.evaluated()
    s.prompts()
    for group in (0, 1):
        s.serve(group)
        assert kinds(s.updated()) == ["Terminal"], "update 2 is due for both, and the version of the round is not finished"
    s.serve(2)
    assert kinds(s.updated()) == ["Terminal", "Publish", "RequestPrompts"]
    assert [(x.update, x.version, x.pending) for x in s.published() if isinstance(x, c.Checkpoint)] == [(3, 1, ())]
    s.prompts()
    assert s.live()[0] == c.Evaluate(s.last(c.Evaluate).id, 1, 3)
    assert admitted(s.evaluated()) == [(g, 0, 0, "a", 1) for g in (3, 4, 5)]


def test_a_run_left_within_a_round_publishes_what_it_had_and_takes_the_rest_of_the_round_first() -> None:
    plan = schedule("pipelined", u=1, r=3, group_size=1, total_updates=6)
    s = Script(plan)
    s.begin()
    s.prompts()
    s.serve(1)
    s.finish(0)
    s.feed(e.StopRequested("checkpoint", "asked to"))
    out = s.updated()
    assert out[1:] == [c.Checkpoint(out[1].id, 1, 1, (0, 2), 3)]
    t = Script(plan, out[1].resume)
    assert t.feed(e.Started()) == [c.Publish(1, 1, 1), c.RequestPrompts(2, 1)]
    t.up()
    t.published()
    assert admitted(t.live()) == [(0, 0, 0, "a", 1), (2, 0, 0, "a", 1)]
    assert admitted(t.prompts()) == [(3, 0, 0, "a", 1)]
