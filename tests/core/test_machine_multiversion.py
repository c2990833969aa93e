"""Versions side by side: who serves what, what moves, and who waits."""

from typing import Any

from tests.core.hand import schedule
from tests.core.script import Script, admitted, kinds

from paceline.core import commands as c
from paceline.core import events as e
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, Lengths, World


def multi(**values: Any) -> Script:
    return Script(schedule("multiversion", **{"u": 1, "group_size": 1, "version_window": 2, "total_updates": 9, **values}))


def test_a_group_keeps_its_version_and_new_groups_start_on_the_newest() -> None:
    s = multi(group_size=2)
    s.begin("a", "b", slots=2)
    assert [(g, where) for g, _, _, where, _ in admitted(s.prompts())] == [(0, "a"), (0, "a"), (1, "b"), (1, "b")]
    s.serve(0, 2)
    s.updated()
    out = s.published()
    assert out == [c.LoadWeights(out[0].id, "a", 1, "none", 0)]
    assert s.prompts() == []  # version 0 is served, but has no seat for another group
    out = s.live("a")
    assert admitted(out) == [(2, 0, 0, "a", 1), (2, 1, 0, "a", 1)]
    assert s.finish(1, 1) == []
    assert kinds(s.finish(1, 0)) == ["Materialize", "LoadWeights"]


def test_one_instance_finishes_the_old_version_before_it_loads_the_new_one() -> None:
    s = multi()
    s.begin("a")
    s.prompts()
    s.serve(0)
    s.updated()
    assert s.published() == []
    assert s.prompts() == []
    out = s.finish(1)
    assert kinds(out) == ["Materialize", "LoadWeights"]
    assert s.reward(1)[0].staleness == (1,)


def test_an_instance_that_holds_two_versions_serves_them_side_by_side() -> None:
    s = multi()
    s.begin("a", versions_held=2)
    s.prompts()
    s.serve(0)
    s.updated()
    out = s.published()
    assert out == [c.LoadWeights(out[0].id, "a", 1)]
    s.prompts()
    assert admitted(s.live()) == [(2, 0, 0, "a", 1)]
    s.serve(1)
    s.updated()
    out = s.published()
    assert [x for x in out if isinstance(x, c.LoadWeights)] == [c.LoadWeights(s.last(c.LoadWeights).id, "a", 2, "none", 0)]


def test_an_instance_with_fewer_places_than_versions_serves_the_oldest_and_the_newest_waits_for_a_place() -> None:
    s = multi(version_window=3, group_size=2)
    s.begin("a", slots=3, versions_held=2)
    s.prompts()
    s.serve(0, 2)
    s.updated()
    s.published()
    s.prompts()
    s.live()
    assert admitted(s.finish(1, 0)) == [(2, 1, 0, "a", 0)]
    assert [a[:2] for a in admitted(s.finish(1, 1))] == [(3, 0)]  # of version 1, and its second sample waits
    s.reward(1)
    s.updated()
    assert s.published() == []  # version 2: both places are taken
    assert s.prompts() == []
    assert admitted(s.finish(2, 0)) == [(3, 1, 0, "a", 1)]
    out = s.finish(2, 1)
    assert out[1:] == [c.LoadWeights(out[1].id, "a", 2, "none", 0)]
    assert admitted(s.live()) == [(4, 0, 0, "a", 2)]


def updated_once(exports_kv: bool = False, **values: Any) -> Script:
    """Groups 0 and 1 trained; group 2 runs on a and group 3 on b, each beside a free slot, under version 0."""
    s = multi(u=2, upp=1, **values)
    s.begin("a", "b", slots=2, exports_kv=exports_kv)
    s.prompts()
    s.serve(0)
    s.serve(1)
    s.updated()
    return s


def moving() -> tuple[Script, c.Migrate]:
    """Version 1 is published; group 2 of version 0 moves from a to b, where group 3 of version 0 runs."""
    s = updated_once(exports_kv=True)
    (move,) = s.published()
    return s, move


def test_work_moves_off_an_instance_that_is_meant_for_the_newest_version() -> None:
    s = updated_once(exports_kv=True)
    out = s.published()
    assert kinds(out) == ["Migrate"]
    assert (out[0].trajectories, out[0].source, out[0].target, out[0].version) == (((2, 0),), "a", "b", 0)
    out = s.feed(e.Migrated(out[0].id, ((2, 0),)))
    assert out == [c.LoadWeights(out[0].id, "a", 1, "none", 0)]
    a = s.admit(2, 0)
    assert kinds(s.feed(e.TrajectoryFinished(a.id, 2, 0, 0, "b", 5, 0, 0))) == ["Materialize"]


def test_without_kv_export_an_instance_is_taken_over_when_its_work_is_done() -> None:
    s = updated_once()
    assert s.published() == []
    assert kinds(s.finish(2)) == ["Materialize", "LoadWeights"]


def test_a_failed_migration_leaves_everything_where_it_was_and_says_why() -> None:
    s, move = moving()
    (warning,) = s.feed(e.CommandFailed(move.id, "moves/move-9 is full"))
    assert warning.message == "moving trajectories from a to b failed, and none is moved before the next version: moves/move-9 is full"
    assert kinds(s.finish(2)) == ["Materialize", "LoadWeights"]


def test_after_a_failed_move_none_is_tried_before_the_next_version_is_published() -> None:
    fleet = tuple(FakeInstance(f"i{number}", slots=4) for number in range(4))
    world = World(fleet, lengths=Lengths("long_tail", 300, 9000), migrate_failure=1.0)
    chosen = schedule("multiversion", u=4, group_size=2, version_window=3, total_updates=20)
    trace = simulate(chosen, world)
    assert trace.stop is not None
    assert trace.stop.ok
    moves: set[int] = set()
    failed_at: list[int] = []  # newest version at each failure that nothing was tried after
    paused, newest = False, 0
    for _, record in trace.records:
        match record:
            case c.Migrate():
                assert not paused, "a move was tried again before a version came"
                moves.add(record.id)
            case e.CommandFailed() if record.command in moves:
                failed_at += [] if paused else [newest]
                paused = True
            case e.Published():
                paused, newest = False, record.version
            case _:
                pass
    assert len(failed_at) > 1, "with a new version it was tried again"
    said = [r.message for r in trace.commands if isinstance(r, c.Warn) and "moving trajectories" in r.message]
    assert len(said) == len(failed_at)


def test_an_attempt_that_arrives_after_its_source_was_lost_is_aborted_and_keeps_its_slot_until_then() -> None:
    s, move = moving()
    assert admitted(s.lost("a")) == []  # b: one running, one slot reserved for the move
    out = s.feed(e.Migrated(move.id, ((2, 0),)))
    assert out == [c.Abort(out[0].id, 2, 0, 0, "b", "moved after it was given up")]
    assert admitted(s.feed(e.Aborted(out[0].id))) == [(2, 0, 1, "b", 0)]


def test_a_full_kv_cache_sends_work_to_an_instance_with_room() -> None:
    s = multi(u=4, d=1, version_window=1)
    s.begin("a", "b", slots=4, kv_tokens=100, exports_kv=True)
    s.prompts()
    out = s.feed(e.InstanceReport("a", 95, 10.0, 2, 0))
    assert kinds(out) == ["Migrate"]
    assert (out[0].source, out[0].target, len(out[0].trajectories)) == ("a", "b", 1)


def test_a_lost_version_gets_another_instance() -> None:
    s = multi()
    s.begin("a", "b", slots=1)
    s.prompts()  # group 0 on a, group 1 on b
    s.serve(0)
    s.updated()
    s.published()
    s.prompts()
    s.live("a")  # group 2 on a under version 1
    s.lost("b")  # group 1 of version 0 has nobody; the oldest version comes first
    s.finish(2)
    assert s.last(c.LoadWeights) == c.LoadWeights(s.last(c.LoadWeights).id, "a", 0, "none", 1)
    assert admitted(s.live("a")) == [(1, 0, 1, "a", 0)]


def test_a_version_retires_when_no_group_and_no_instance_needs_it() -> None:
    s = multi()
    s.begin("a", "b", slots=1)
    s.prompts()
    s.serve(0)
    s.updated()
    s.published()
    s.live("a")
    s.finish(1)
    assert s.of(c.Retire) == []
    s.reward(1)
    s.live("b")
    assert [x.version for x in s.of(c.Retire)] == [0]


def test_updates_consume_the_oldest_version_first() -> None:
    s = multi(u=2, d=2, upp=1)
    s.begin("a", "b", "d", slots=2, versions_held=2)
    s.prompts()
    s.serve(0)
    s.serve(1)
    s.updated()
    s.published()
    s.prompts()
    for name in ("a", "b", "d"):
        s.live(name)
    s.finish(4)
    s.reward(4)
    assert s.serve(2) == []  # 3 and 2 are of version 0 and both must be in the next update
    assert s.serve(3)[0].groups == (2, 3)


def test_work_that_moved_to_an_instance_lost_meanwhile_is_admitted_again() -> None:
    s, move = moving()
    out = s.lost("b")  # a takes back its aim: it is the only one left, and version 0 is the oldest
    assert admitted(out) == [(3, 0, 1, "a", 0)]
    assert admitted(s.feed(e.Migrated(move.id, ((2, 0),)))) == [(2, 0, 1, "a", 0)]


def test_a_trajectory_that_ends_before_its_move_is_answered_frees_both_slots() -> None:
    s, move = moving()
    assert kinds(s.finish(2)) == ["Materialize", "LoadWeights"]
    assert s.feed(e.Migrated(move.id, ())) == []
    s.prompts()
    assert len(admitted(s.live("a"))) == 2


def test_an_instance_that_reports_idle_is_settled_and_one_that_is_not_is_left_alone() -> None:
    s, _ = moving()
    assert s.feed(e.InstanceIdle("a")) == []
    assert s.feed(e.InstanceIdle("nobody")) == []


def test_the_timer_rebalances_at_its_period() -> None:
    s = multi(u=6, rebalance_seconds=10.0)
    s.begin("a", "b", "c", slots=4, exports_kv=True)
    s.prompts()
    for group in range(6):
        s.serve(group)
    s.updated()
    s.prompts()
    for move in s.published():  # six groups of each version: b and c keep version 0 and take the work of a
        s.feed(e.Migrated(move.id, move.trajectories))
    assert len(admitted(s.live("a"))) == 4
    s.finish(7)
    s.finish(8)  # now one instance is enough for version 0, but none ran empty
    assert s.feed(e.Timer(), 9.0) == []
    (move,) = s.feed(e.Timer(), 10.0)
    assert (move.trajectories, move.source, move.target, move.version) == (((10, 0), (6, 0)), "b", "c", 0)
    assert s.feed(e.Timer(), 20.0) == [], "it is on its way"
    (load,) = s.feed(e.Migrated(move.id, move.trajectories))
    assert (load.instance, load.version, load.replaces) == ("b", 1, 0)


def test_a_move_that_is_answered_twice_moves_once() -> None:
    s, move = moving()
    assert kinds(s.feed(e.Migrated(move.id, ((2, 0),)))) == ["LoadWeights"]
    assert s.feed(e.Migrated(move.id, ((2, 0),))) == []
    assert s.feed(e.CommandFailed(move.id, "late")) == []


def test_a_move_whose_target_is_gone_leaves_its_trajectory_where_it_was() -> None:
    s, move = moving()
    s.lost("b")
    assert s.feed(e.CommandFailed(move.id, "b is gone")) == []
    assert kinds(s.finish(2)) == ["Materialize"]


def test_an_attempt_that_is_being_aborted_where_it_arrived_is_waited_for_no_longer_when_that_instance_is_lost_too() -> None:
    s, move = moving()
    s.lost("a")
    (abort,) = s.feed(e.Migrated(move.id, ((2, 0),)))
    s.lost("b")
    assert [w.kind for w in s.machine.waits(s.now)] == ["prompts", "groups", "instances"]
    assert s.feed(e.Aborted(abort.id)) == []
    s.up("c", slots=2)
    assert sorted(admitted(s.live("c"))) == [(2, 0, 1, "c", 0), (3, 0, 1, "c", 0)]


def test_a_second_notice_of_the_same_loss_means_nothing() -> None:
    s, _ = moving()
    s.lost("a")
    assert s.lost("a") == []
    assert s.feed(e.InstanceReport("a", 1, 10.0, 1, 0)) == []


def test_a_full_instance_takes_nothing_more_until_it_has_cooled_or_run_empty() -> None:
    s = multi(u=4, d=1, version_window=1)
    s.begin("a", "b", slots=3, kv_tokens=100)  # no KV export: nothing can be moved away
    s.prompts()  # groups 0 and 2 on a, 1 and 3 on b
    assert s.feed(e.InstanceReport("a", 95, 10.0, 2, 0)) == []
    assert s.feed(e.InstanceReport("a", 96, 10.0, 2, 0)) == []
    assert admitted(s.fail(2)) == [(2, 0, 1, "b", 0)]  # not on a, which has more room
    s.fail(1)
    assert s.admit(1, 0).instance == "b"
    assert s.fail(0)[0].instance == "a", "a has nothing left to hold memory: it takes work again"


def test_an_instance_that_cooled_takes_the_work_that_waited() -> None:
    s = multi(u=4, d=1, version_window=1, high_kv_use=0.5)
    s.begin("a", slots=4, kv_tokens=100)
    s.prompts()
    s.feed(e.InstanceReport("a", 51, 10.0, 4, 0))
    assert admitted(s.fail(0)) == []
    assert admitted(s.feed(e.InstanceReport("a", 50, 10.0, 3, 0))) == [(0, 0, 1, "a", 0)]
