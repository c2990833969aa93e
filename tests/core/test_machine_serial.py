"""Serial runs by hand, with the exact commands."""

from tests.core.hand import schedule
from tests.core.script import Script, admitted, kinds

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume


def test_a_serial_run_of_two_updates_sends_exactly_these_commands() -> None:
    s = Script(schedule("serial", u=1, group_size=2, total_updates=2))
    assert s.feed(e.Started()) == [c.Publish(1, 0, 0), c.RequestPrompts(2, 1)]
    assert s.up("a", 2) == []
    assert s.published() == [c.LoadWeights(3, "a", 0)]
    assert s.prompts() == []
    assert s.live() == [c.Admit(4, 0, 0, 0, "a", 0), c.Admit(5, 0, 1, 0, "a", 0)]
    assert s.finish(0, 1) == []
    assert s.finish(0, 0) == [c.Materialize(6, 0, (0, 1))]
    assert s.reward(0) == [c.Dispatch(7, (0,), True, 1, (0,), (0,), (0,))]
    assert s.consumed() == []
    assert s.updated() == [c.Terminal(8, 0, "trained"), c.Publish(9, 1, 1), c.RequestPrompts(10, 1)]
    assert s.published() == [c.LoadWeights(11, "a", 1, "none", 0)]
    assert s.prompts() == []
    assert s.live() == [c.Admit(12, 1, 0, 0, "a", 1), c.Admit(13, 1, 1, 0, "a", 1), c.Retire(14, 0)]
    s.finish(1, 0)
    s.finish(1, 1)
    assert s.reward(1) == [c.Dispatch(16, (1,), True, 2, (1,), (0,), (0,))]
    assert s.updated() == [c.Terminal(17, 1, "trained"), c.Publish(18, 2, 2)]
    assert s.published() == [c.LoadWeights(19, "a", 2, "none", 1), c.Checkpoint(20, 2, 2, (), 2)]
    assert s.saved() == [c.Stop(21, "2 updates are done")]
    assert s.machine.stopped
    assert s.machine.waits(0.0) == []


def test_serial_trains_nothing_before_the_whole_round_is_trainable_and_then_u_groups_at_a_time() -> None:
    s = Script(schedule("serial", u=2, r=4, group_size=1, total_updates=4))
    s.begin()
    assert admitted(s.prompts()) == [(i, 0, 0, "a", 0) for i in range(4)]
    for group in (2, 0, 3):
        assert "Dispatch" not in kinds(s.serve(group))
    first = s.serve(1)
    assert first == [c.Dispatch(first[0].id, (2, 0), True, 1, (2, 0), (0, 0), (0, 0))]
    second = s.updated()
    assert kinds(second) == ["Terminal", "Terminal", "Dispatch"]
    assert second[2].groups == (3, 1)
    assert second[2].staleness == (0, 0)
    assert second[2].staleness_updates == (1, 1)
    assert kinds(s.updated()) == ["Terminal", "Terminal", "Publish", "RequestPrompts"]


def test_a_round_that_does_not_divide_ends_with_a_short_update() -> None:
    s = Script(schedule("serial", u=2, r=3, group_size=1, total_updates=4))
    s.begin()
    s.prompts()
    s.serve(0), s.serve(1), s.serve(2)
    assert s.last(c.Dispatch).groups == (0, 1)
    s.updated()
    assert (s.last(c.Dispatch).groups, s.last(c.Dispatch).step) == ((2,), True)
    assert kinds(s.updated()) == ["Terminal", "Publish", "RequestPrompts"]


def test_the_last_round_asks_only_for_the_groups_that_the_remaining_updates_need() -> None:
    s = Script(schedule("serial", u=2, r=4, group_size=1, total_updates=3))
    s.begin()
    assert s.last(c.RequestPrompts).count == 4
    s.prompts()
    for group in range(4):
        s.serve(group)
    s.updated()
    s.updated()
    assert s.last(c.RequestPrompts).count == 2


def test_a_filtered_round_makes_no_update_and_no_publish() -> None:
    s = Script(schedule("serial", u=2, group_size=1, no_signal="drop"))
    s.begin()
    s.prompts()
    s.serve(0, signal=False)
    out = s.serve(1, signal=False)
    assert kinds(out) == ["Terminal", "RequestPrompts"]
    assert (out[0].state, out[0].why) == ("filtered", "no signal")
    assert len(s.of(c.Publish)) == 1


def test_refill_asks_for_another_prompt_at_most_so_often_per_place() -> None:
    s = Script(schedule("serial", u=2, group_size=1, no_signal="refill", refill_limit=2))
    s.begin()
    s.prompts()
    s.serve(0)
    for group in (1, 2):
        out = s.serve(group, signal=False)
        assert kinds(out) == ["Terminal", "RequestPrompts"]
        assert out[1].count == 1
        s.prompts()
    out = s.serve(3, signal=False)
    assert kinds(out) == ["Terminal", "Dispatch"]
    assert (out[1].groups, out[1].step) == ((0,), True)


def test_many_groups_in_a_row_that_fall_out_end_the_run_with_a_checkpoint_and_an_error() -> None:
    s = Script(schedule("serial", u=2, group_size=1, no_signal="drop", empty_limit=2))
    s.begin()
    for start in (0, 2):
        s.prompts()
        s.serve(start, signal=False)
        out = s.serve(start + 1, signal=False)
    assert kinds(out) == ["Terminal", "Checkpoint"]
    (stop,) = s.saved()
    assert not stop.ok
    assert "4 groups in a row" in stop.reason


def test_a_short_answer_ends_the_data_and_the_round_trains_what_came() -> None:
    s = Script(schedule("serial", u=3, group_size=1, total_updates=9))
    s.begin()
    s.prompts(2)
    s.serve(0)
    out = s.serve(1)
    assert (out[0].groups, out[0].step) == ((0, 1), True)
    assert kinds(s.updated()) == ["Terminal", "Terminal", "Publish"]
    out = s.published()
    assert kinds(out) == ["LoadWeights", "Checkpoint"]
    assert s.saved()[0].reason == "the data ended after 1 updates"


def test_data_that_is_empty_ends_the_run_without_an_update() -> None:
    s = Script(schedule("serial"))
    s.feed(e.Started())
    s.feed(e.DataEnded(s.last(c.RequestPrompts).id))
    assert kinds(s.published()) == ["Checkpoint"]
    assert s.saved()[0].reason == "the data ended after 0 updates"


def test_in_order_consumes_groups_in_order_of_submission() -> None:
    s = Script(schedule("pipelined", u=4, d=1, group_size=1, in_order=True))
    s.begin()
    s.prompts()
    assert s.serve(2) == []
    assert s.serve(1) == []
    assert [x.groups for x in s.serve(0)] == [(0,)]
    assert [x.groups for x in s.consumed()] == [(1,)]
    assert [x.groups for x in s.consumed()] == [(2,)]


def test_a_resume_takes_pending_prompts_before_new_ones() -> None:
    s = Script(schedule("serial", u=3, group_size=1, total_updates=5), Resume(update=2, version=2, pending=(4, 6), next_index=9))
    assert s.feed(e.Started()) == [c.Publish(1, 2, 2), c.RequestPrompts(2, 1)]
    s.up()
    s.published()
    assert admitted(s.live()) == [(4, 0, 0, "a", 2), (6, 0, 0, "a", 2)]
    assert admitted(s.prompts()) == [(9, 0, 0, "a", 2)]
    s.serve(4), s.serve(6)
    out = s.serve(9)
    assert (out[0].update, out[0].staleness, out[0].staleness_updates) == (3, (0, 0, 0), (0, 0, 0))


def test_of_two_errors_the_first_is_the_one_that_is_told() -> None:
    s = Script(schedule("serial", u=2, group_size=1, total_updates=2, on_failure="stop"))
    s.feed(e.Started())
    s.up("a", 2)
    s.published()
    s.prompts()
    s.live()
    for group in (0, 1):
        s.finish(group)
    first, second = s.of(c.Materialize)
    s.feed(e.CommandFailed(first.id, "the first"))
    s.feed(e.CommandFailed(second.id, "the second"))
    (stop,) = s.of(c.Stop) or s.feed(e.CheckpointDone(s.last(c.Checkpoint).id, 0))
    assert "group 0 could not be rewarded: the first" in stop.reason
