"""Streaming: weights change under running work, within the bound."""

from collections import Counter
from typing import Any

import pytest
from tests.core.hand import schedule
from tests.core.script import Script, admitted, kinds

from paceline.core import commands as c
from paceline.core import events as e
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, Lengths, World


def stream(**values: Any) -> Script:
    return Script(schedule("streaming", **{"u": 1, "group_size": 1, "total_updates": 9, **values}))


def advance(s: Script, group: int) -> list[Any]:
    """Train a finished group and publish."""
    s.serve(group)
    s.updated()
    return s.published()


def test_pacing_asks_for_as_many_groups_as_the_bound_has_seats() -> None:
    s = stream(staleness=2)
    s.begin()
    assert s.last(c.RequestPrompts).count == 3
    s.prompts()
    s.serve(0)
    assert len(s.of(c.RequestPrompts)) == 1  # an update is issued: its seat is gone until the publish
    s.updated()
    assert s.last(c.RequestPrompts).count == 1


def test_a_cap_on_groups_in_flight_goes_below_the_bound() -> None:
    s = stream(staleness=2, in_flight_groups=2)
    s.begin()
    assert s.last(c.RequestPrompts).count == 2


def test_the_trainer_waits_by_name_for_a_group_that_would_get_over_stale() -> None:
    s = stream(staleness=1, at_publish="keep")
    s.begin()
    s.prompts()
    advance(s, 0)
    s.live()
    s.prompts()
    assert s.serve(2) == []  # group 1 is of version 0 and must train before version 2 is published
    assert [w.what for w in s.machine.waits(0.0) if w.kind == "groups"] == ["groups [1] to the trainer"]
    out = s.serve(1)
    assert (out[0].groups, out[0].staleness) == ((1,), (1,))


@pytest.mark.parametrize("how", ["keep", "recompute"])
def test_unfinished_work_goes_on_under_new_weights(how: str) -> None:
    s = stream(staleness=1, at_publish=how)
    s.begin()
    s.prompts()
    out = advance(s, 0)
    assert out == [c.LoadWeights(out[0].id, "a", 1, how, 0)]
    assert s.prompts() == []  # nothing starts while weights change
    assert admitted(s.live()) == [(2, 0, 0, "a", 1)]
    s.finish(1, version=0)
    out = s.reward(1)
    assert (out[0].groups, out[0].staleness) == ((1,), (1,))


def test_drain_admits_nothing_once_a_publish_is_due_and_loads_when_the_instance_is_empty() -> None:
    s = stream(staleness=2, at_publish="drain", group_size=2)
    s.begin("a", slots=2)
    s.prompts()  # groups 0 to 2, all within the bound; group 0 runs
    s.finish(0, 0)  # its slots take group 1
    s.finish(0, 1)
    assert kinds(s.reward(0)) == ["Dispatch"]  # it ends in a step: a publish is due
    assert s.finish(1, 0) == []
    s.updated()
    assert s.prompts() == []
    assert s.published() == []
    out = s.finish(1, 1)
    assert kinds(out) == ["Materialize", "LoadWeights"]
    assert (out[1].version, out[1].unfinished) == (1, "none")
    assert [a[0] for a in admitted(s.live())] == [2, 2]


def test_a_group_may_not_start_under_old_weights_when_the_bound_has_no_seat_for_it_there() -> None:
    s = stream(staleness=0, at_publish="keep")
    s.begin()
    s.prompts()
    s.serve(0)
    s.updated()
    assert s.prompts() == []  # version 1 is commanded: a token of version 0 could not train in time
    s.published()
    assert admitted(s.live()) == [(1, 0, 0, "a", 1)]


def with_an_over_stale_group(policy: str) -> Script:
    """Group 1 is served under version 0 while version 1 is live."""
    s = stream(staleness=0, overstale=policy, in_flight_groups=3, at_publish="keep")
    s.begin()
    s.prompts()
    advance(s, 0)
    s.live()
    s.finish(1, version=0)
    return s


def test_an_over_stale_group_is_dropped_by_choice_and_counted() -> None:
    s = with_an_over_stale_group("drop")
    out = s.reward(1)
    assert (out[0].state, out[0].why) == ("filtered", "stale: version 0 at version 1")


def test_an_over_stale_group_is_generated_again_by_choice() -> None:
    s = with_an_over_stale_group("retry")
    assert admitted(s.reward(1)) == [(1, 0, 1, "a", 1)]
    s.finish(1)
    assert s.reward(1)[0].groups == (1,)


def test_a_group_that_is_generated_anew_trains_before_a_publish_would_make_it_too_old_again() -> None:
    s = with_an_over_stale_group("retry")
    s.reward(1)  # runs again, under version 1
    s.finish(2, version=1)
    assert s.reward(2) == [], "training it would publish version 2"
    assert [w.what for w in s.machine.waits(0.0) if w.kind == "groups"] == ["groups [1] to the trainer"]
    s.finish(1)
    assert s.reward(1)[0].groups == (1,)


def test_no_more_groups_are_generated_anew_at_a_time_than_can_train_before_they_are_too_old() -> None:
    s = stream(staleness=0, overstale="retry", in_flight_groups=3, at_publish="keep")
    s.begin()
    s.prompts()
    advance(s, 0)
    s.live()
    s.finish(1, version=0)
    s.finish(2, version=0)
    assert admitted(s.reward(1)) == [(1, 0, 1, "a", 1)]
    assert s.reward(2) == [], "one update is left before version 2, and group 1 needs it"
    s.finish(1)
    s.reward(1)
    s.updated()
    s.published()
    assert (2, 0, 1, "a", 2) in admitted(s.live())


@pytest.mark.parametrize("seed", range(12))
def test_no_group_is_generated_more_than_twice_however_many_are_in_flight(seed: int) -> None:
    chosen = schedule(
        "streaming", u=2, upp=1 + seed % 2, staleness=seed % 3, overstale="retry", in_flight_groups=40, at_publish="keep", total_updates=40
    )
    trace = simulate(
        chosen, World((FakeInstance("a", slots=64), FakeInstance("b", slots=64)), lengths=Lengths("long_tail", 200, 9000), seed=seed)
    )
    assert trace.stop is not None
    assert trace.stop.ok
    assert not trace.violations
    generated = Counter(command.group for command in trace.commands if isinstance(command, c.Materialize))
    assert max(generated.values()) == 2, "some got too old, and no one twice"


def test_a_trainable_group_that_a_publish_makes_over_stale_leaves_the_buffer() -> None:
    s = stream(staleness=0, overstale="drop", in_flight_groups=3, at_publish="keep")
    s.begin()
    s.prompts()
    s.serve(0)
    s.serve(1)
    out = s.updated()
    assert kinds(out) == ["Terminal", "Publish", "Terminal"]
    assert (out[2].group, out[2].why) == (1, "stale: version 0 at version 1")


def test_groups_that_got_too_old_are_no_sign_of_a_verifier_that_judges_all_alike() -> None:
    s = stream(staleness=0, overstale="drop", in_flight_groups=4, at_publish="keep", empty_limit=1)
    s.begin()
    s.prompts()
    for group in range(4):
        s.serve(group)
    assert kinds(s.updated()) == ["Terminal", "Publish", "Terminal", "Terminal", "Terminal"]
    s.prompts()
    assert s.published()[0] == c.LoadWeights(s.last(c.LoadWeights).id, "a", 1, "none", 0)
    s.live()
    s.serve(4)
    assert s.last(c.Dispatch).groups == (4,)


def test_no_group_starts_while_the_buffer_is_full() -> None:
    s = stream(staleness=4, buffer_groups=1, at_publish="keep")
    s.begin("a", slots=2)
    s.prompts()  # 5 groups, 2 run
    assert kinds(s.serve(0)) == ["Dispatch"]
    assert kinds(s.finish(1)) == ["Materialize", "Admit"]
    assert s.reward(1) == []
    assert kinds(s.finish(2)) == ["Materialize"]  # group 4 waits: the buffer holds group 1
    s.updated()
    assert kinds(s.published()) == ["LoadWeights", "Dispatch"]  # group 1 leaves the buffer
    assert admitted(s.live()) == [(4, 0, 0, "a", 1)]


def test_group_granularity_starts_a_group_only_where_it_fits_whole() -> None:
    s = stream(staleness=1, granularity="group", group_size=2)
    s.begin("a", slots=3)
    assert [a[:2] for a in admitted(s.prompts())] == [(0, 0), (0, 1)]
    assert admitted(s.finish(0, 0)) == [(1, 0, 0, "a", 0), (1, 1, 0, "a", 0)]


def test_an_evaluation_keeps_instances_on_their_weights_while_training_goes_on() -> None:
    s = stream(staleness=1, at_publish="keep", evaluate_every=1)
    s.begin()
    assert s.of(c.Evaluate) == [c.Evaluate(s.last(c.Evaluate).id, 0, 0)]
    s.prompts()
    assert kinds(advance(s, 0)) == []  # published, not loaded
    out = s.evaluated()
    assert kinds(out) == ["LoadWeights"]
    assert kinds(s.live()) == ["Evaluate", "Retire"]


def test_instances_come_up_with_the_newest_weights() -> None:
    s = stream(staleness=1)
    s.begin()
    s.prompts()
    advance(s, 0)
    s.live()
    out = s.up("b")
    assert out == [c.LoadWeights(out[0].id, "b", 1)]


def test_time_spent_is_no_failure_and_an_unknown_answer_is_ignored() -> None:
    s = stream(staleness=1)
    s.begin()
    for event in (
        e.Published(99, 7, "x"),
        e.Aborted(99),
        e.Evaluated(99),
        e.CheckpointDone(99, 1),
        e.CommandFailed(99, "x"),
        e.DispatchConsumed(99),
    ):
        assert s.feed(event) == []


def test_a_trainer_that_waits_for_prompts_says_so() -> None:
    s = Script(schedule("streaming", u=2, group_size=1, staleness=1, buffer_groups=2, in_flight_groups=2))
    s.begin()
    s.prompts()
    s.serve(0)
    s.finish(1)
    s.reward(1, drop=True)
    assert kinds(s.feed(e.Timer(), 700.0))[-1] == "Warn"
    assert s.last(c.Warn).message == "groups: the data source has owed more groups to the trainer than the 1 that are trainable for 700.0 s"
