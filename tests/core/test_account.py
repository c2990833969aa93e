"""Where time goes: the account agrees with the machine it never sees, its parts sum to the whole, and every cause is the right one."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.core.flood import SIZE, Flood
from tests.core.hand import schedule
from tests.core.script import Script
from tests.core.test_recorded_runs import RECORDED, read

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account import Account, Row, account
from paceline.core.account.causes import ROLLOUT, TRAINER, empty_slot, trainer
from paceline.core.account.members import OPEN, READY, TAKEN
from paceline.core.account.tally import Moment, Tally, Window, mean, shares
from paceline.core.machine import Machine
from paceline.core.schedule import Preset, Resume, Schedule
from paceline.sim import cases
from paceline.sim.driver import Trace, simulate
from paceline.sim.world import FakeInstance, Lengths, World
from paceline.types.weights import InstanceInfo

PRESETS: tuple[Preset, ...] = ("serial", "pipelined", "streaming", "multiversion")
FLEET = tuple(FakeInstance(f"i{number}", slots=8) for number in range(4))


def arbitrary(seed: int) -> tuple[Schedule, Trace]:
    pick = cases.Chooser(random.Random(seed).choice)
    chosen = cases.schedule(PRESETS[seed % 4], pick)
    return chosen, simulate(chosen, cases.world(pick, chosen))


def of_machine(machine: Machine) -> dict[str, Any]:
    m = machine._m
    return {
        "open": m.groups.open,
        "trajectories": m.groups.flying,
        "taken": m.groups.taken,
        "live": len(m.groups.live),
        "waiting": sum(len(g.waiting) for g in m.groups.live.values() if g.state in ("fresh", "open")),
        "needed": m.needed,
        "issued": m.issued,
        "trainable": sum(g.state == "ready" for g in m.groups.live.values()),
        "blocked": machine._training.blocked_by is not None and not machine._boundaries.busy,
    }


def of_account(fold: Account) -> dict[str, Any]:
    scene = fold.scene
    return {
        "open": scene.states[OPEN],
        "trajectories": len(scene.admits),
        "taken": scene.states[TAKEN],
        "live": len(scene.groups),
        "waiting": scene.waiting,
        "needed": scene.needed,
        "issued": scene.issued,
        "trainable": scene.states[READY],
        "blocked": trainer(scene) == "window",
    }


def settled(seed: int) -> Iterator[tuple[Machine, Account, Any]]:
    """Machine and account after each event of a run and all its commands, until the machine stops; with the last record."""
    chosen, trace = arbitrary(seed)
    machine, fold = Machine(chosen), Account(chosen)
    due: list[c.Command] = []
    for now, record in trace.records:
        if not due and not isinstance(record, c.Command):
            due = machine.step(record, now)
        else:
            due.pop(0)
        fold.feed(record, now)
        if not due and not machine.stopped:
            yield machine, fold, record


@pytest.mark.parametrize("seed", range(80))
def test_after_every_event_the_account_counts_what_the_machine_counts(seed: int) -> None:
    for machine, fold, record in settled(seed):
        assert of_account(fold) == of_machine(machine), record


@pytest.mark.parametrize("seed", range(60))
def test_frontier_and_window_of_the_account_are_those_that_the_machine_goes_by(seed: int) -> None:
    for machine, fold, _ in settled(seed):
        scene = fold.scene
        if scene.limit is None:
            assert not machine._intake.rounds or scene.frontier == machine._admission.frontier
        else:
            unconsumed = scene.unconsumed + sum(request.count for request in scene.open[c.RequestPrompts].values())
            assert unconsumed <= scene.limit
            assert machine._intake.wanted() == max(0, min(scene.limit, scene.needed) - unconsumed)


@pytest.mark.parametrize("seed", range(40))
def test_states_sum_to_the_time_that_passed_in_every_row_and_in_all(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    slot_seconds, before, up = 0.0, 0.0, {}
    for now, record in trace.records:
        slot_seconds, before = slot_seconds + sum(up.values()) * (now - before), now
        if isinstance(record, e.InstanceUp):
            up[record.info.instance] = record.info.slots
        elif isinstance(record, e.InstanceLost):
            up.pop(record.instance, None)
        elif isinstance(record, e.CommandFailed) and record.error == "the transfer broke":
            load = next(r for _, r in trace.records if isinstance(r, c.LoadWeights) and r.id == record.command)
            up.pop(load.instance, None)
    fold, rows = account(chosen, Resume(), trace.records)
    assert fold.total.seconds == pytest.approx(trace.records[-1][0])
    assert sum(fold.total.slots.values()) == pytest.approx(slot_seconds)
    for tally in (fold.total, *(row.tally for row in rows)):
        assert sum(tally.trainer.values()) == pytest.approx(tally.seconds)
        assert tally.seconds == 0 or sum(shares(tally.trainer).values()) == pytest.approx(1)
        assert not tally.slots or sum(shares(tally.slots).values()) == pytest.approx(1)
        assert set(tally.trainer) <= set(TRAINER)
        assert set(tally.slots) <= set(ROLLOUT)


@pytest.mark.parametrize("seed", range(24))
def test_rows_are_cut_at_updates_and_publishes_and_together_hold_everything_consumed(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    fold, rows = account(chosen, Resume(), trace.records)
    updates = [row for row in rows if row.axis == "update"]
    publishes = [row for row in rows if row.axis == "publish"]
    assert [row.step for row in updates] == [r.update for _, r in trace.events if isinstance(r, e.UpdateFinished)]
    assert [row.step for row in publishes] == [r.version for r in trace.commands if isinstance(r, c.Publish) and r.version > 0]
    dispatches = [r for r in trace.commands if isinstance(r, c.Dispatch)]
    assert fold.total.groups == sum(len(d.groups) for d in dispatches)
    assert max(fold.total.staleness, default=0) == max((s for d in dispatches for s in d.staleness), default=0)
    finished = [row.now for row in updates]
    assert finished == sorted(finished)
    for row in publishes:
        assert 0 <= row.window.waiting(row.trained)[0] <= row.window.waiting(row.trained)[1] + 1e-9 <= 1 + 2e-9
        assert row.window.train + row.window.left_out <= row.tally.seconds + 1e-9


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_real_run_is_accounted_for_to_the_last_second(path: Any) -> None:
    chosen, resume, records = read(path)
    fold, rows = account(chosen, resume, [(now, record) for _, now, record in records])
    lasted = records[-1][1] - records[0][1]
    assert fold.total.seconds == pytest.approx(lasted), "time begins with the first record, not with the start of the workers"
    assert sum(fold.total.trainer.values()) == pytest.approx(lasted)
    assert [row.step for row in rows if row.axis == "update"] == list(range(1, chosen.total_updates + 1))
    assert sum(row.tally.seconds for row in rows if row.axis == "update") <= lasted
    assert sum(fold.total.staleness.values()) == chosen.total_updates * chosen.groups_per_update
    assert max(fold.total.staleness) <= chosen.bound


def world(**changes: Any) -> World:
    return replace(World(FLEET, lengths=Lengths("uniform", 100)), **changes)


def run(preset: Preset, around: World, **fields: Any) -> tuple[Account, list[Row]]:
    chosen = schedule(preset, **{"u": 4, "group_size": 4, "total_updates": 6, **fields})
    trace = simulate(chosen, around)
    assert trace.stop is not None
    assert trace.stop.ok, trace.stop.reason
    return account(chosen, Resume(), trace.records)


def test_a_serial_round_takes_the_sum_of_its_stages_and_waits_for_all_but_the_last() -> None:
    around = World(FLEET[:1], lengths=Lengths("fixed", 100), reward_seconds=0.1, group_seconds=0.2, update_seconds=0.05)
    _, rows = run("serial", around, u=2, evaluate_every=1, checkpoint_every=1)
    for row in rows:
        decode_and_reward, training = 1.0 + 0.1, 2 * 0.2 + 0.05
        # The checkpoint of the round before lies in the window while trajectories decode: it keeps nobody waiting.
        assert row.window.seconds(row.trained) == pytest.approx(decode_and_reward + training)
        assert row.window.waiting(row.trained) == pytest.approx((decode_and_reward / (decode_and_reward + training),) * 2)


def test_a_checkpoint_that_trainable_groups_wait_for_is_left_out_of_the_window() -> None:
    around = World(FLEET[:1], lengths=Lengths("fixed", 100), checkpoint_seconds=5.0)
    _, rows = run("serial", around, u=2, checkpoint_every=1)
    second = [row for row in rows if row.axis == "publish"][1]
    assert second.window.left_out == pytest.approx(5.0 - 0.1 - 1.0 - 0.1), "without load, decoding and reward"
    assert second.window.seconds(second.trained) == pytest.approx(1.0 + 0.1 + 0.45)


def test_without_rounds_a_window_begins_where_the_training_before_ended() -> None:
    _, rows = run("streaming", world(), staleness=1, upp=2, total_updates=12)
    ends = [row for row in rows if row.axis == "publish"]
    for before, row in itertools.pairwise(ends):
        assert row.window.seconds(row.trained) == pytest.approx(row.trained - before.now - row.window.left_out)
        assert row.window.train == pytest.approx(2 * (4 * 0.2 + 0.05))


SLOW: dict[str, tuple[Preset, dict[str, Any], dict[str, Any]]] = {
    "train": ("streaming", {"staleness": 1}, {"group_seconds": 30.0}),
    "publish": ("serial", {}, {"publish_seconds": 50.0}),
    "checkpoint": ("streaming", {"staleness": 1, "checkpoint_every": 1}, {"checkpoint_seconds": 50.0}),
    "rollout": ("pipelined", {"d": 1}, {"lengths": Lengths("fixed", 9000, 9000)}),
    "reward": ("pipelined", {"d": 1}, {"reward_seconds": 50.0}),
    "window": ("multiversion", {"version_window": 2}, {"instances": (*FLEET[:3], FakeInstance("slow", 8, 2.0, exports_kv=False))}),
    "order": ("pipelined", {"d": 1, "r": 8, "in_order": True}, {"lengths": Lengths("long_tail", 900, 9000), "group_seconds": 0.0}),
    "evaluation": ("serial", {"evaluate_every": 1}, {"evaluate_seconds": 50.0}),
    "load": ("pipelined", {}, {"load_seconds": 50.0}),
    "data": ("serial", {}, {"prompt_seconds": 50.0}),
    "fleet": ("serial", {"total_updates": 1}, {"instances": (replace(FLEET[0], comes=50.0),)}),
}


@pytest.mark.parametrize("state", TRAINER)
def test_the_trainer_waits_for_what_is_slow(state: str) -> None:
    preset, fields, changes = SLOW[state]
    fold, _ = run(preset, world(**changes), **fields)
    found = shares(fold.total.trainer)
    assert max(found, key=lambda name: found[name]) == state, found


EMPTY: dict[str, tuple[Preset, dict[str, Any], dict[str, Any]]] = {
    "decode": ("streaming", {"staleness": 1, "total_updates": 30}, {"instances": FLEET[:1], "group_seconds": 0.0}),
    "load": ("pipelined", {}, {"load_seconds": 50.0}),
    "publish": ("streaming", {"staleness": 1, "at_publish": "drain"}, {"publish_seconds": 50.0}),
    "evaluation": ("serial", {"evaluate_every": 1}, {"evaluate_seconds": 50.0}),
    "window": ("serial", {}, {"group_seconds": 50.0}),
    "frontier": ("pipelined", {"r": 16, "frontier": 1}, {"group_seconds": 0.0}),
    "buffer": ("streaming", {"staleness": 3, "at_publish": "keep", "buffer_groups": 4, "total_updates": 20}, {"group_seconds": 5.0}),
    "placement": (
        "streaming",
        {"staleness": 3, "granularity": "group", "group_size": 8, "total_updates": 20},
        {"instances": FLEET[:1], "lengths": Lengths("long_tail", 500, 5000)},
    ),
    "data": ("streaming", {"staleness": 1}, {"prompt_seconds": 50.0}),
    "end": ("multiversion", {"version_window": 4, "total_updates": 3}, {"group_seconds": 50.0}),
}


@pytest.mark.parametrize("state", ROLLOUT)
def test_a_slot_is_empty_for_what_keeps_it_empty(state: str) -> None:
    preset, fields, changes = EMPTY[state]
    fold, _ = run(preset, world(**changes), **fields)
    found = shares(fold.total.slots)
    assert max(found, key=lambda name: found[name]) == state, found


def test_prompts_that_the_data_no_longer_has_are_the_cause_when_it_ended() -> None:
    fold, _ = run("streaming", world(prompts=9, group_seconds=50.0), staleness=3, at_publish="keep", total_updates=20)
    assert shares(fold.total.slots)["data"] > 0.5


def test_a_run_that_is_being_left_keeps_its_slots_for_nothing() -> None:
    fold, _ = run("serial", world(stop=(3.0, "checkpoint"), checkpoint_seconds=50.0), total_updates=20)
    assert shares(fold.total.slots)["end"] > 0.5


def test_an_evaluation_holds_back_what_could_start_elsewhere_in_a_schedule_without_rounds() -> None:
    s = Script(schedule("multiversion", version_window=2, evaluate_every=1, total_updates=9))
    fold = Account(s.machine._m.schedule)
    fold.scene.waiting, fold.scene.slots = 1, 2
    fold.scene.open[c.Evaluate][1] = c.Evaluate(1, 0, 0)
    assert empty_slot(fold.scene) == "evaluation"


def test_moved_trajectories_and_their_prefilled_tokens_are_counted() -> None:
    fold = Account(schedule("multiversion", version_window=2))
    records: list[Any] = [
        e.Started(),
        c.Admit(1, 0, 0, 0, "a", 0),
        c.Migrate(2, ((0, 0),), "a", "b", 0),
        e.Migrated(2, ((0, 0), (7, 7)), 12),
        e.Migrated(2, ((0, 0),), 12),
    ]
    for record in records:
        fold.feed(record, 1.0)
    assert (fold.total.migrated, fold.total.prefilled) == (2, 12), "an answer that nobody waits for is not counted"
    assert fold.scene.admits[1][1] == "b"


def test_tokens_are_set_against_the_time_since_trajectories_last_ended() -> None:
    fold = Account(schedule("streaming", staleness=1))
    records: list[tuple[float, Any]] = [(0.0, e.Started()), (0.0, c.Admit(1, 0, 0, 0, "a", 0)), (0.0, c.Admit(2, 0, 1, 0, "a", 0))]
    for update, at in enumerate((4.0, 10.0, 16.0), start=1):
        ends = [(at - 1, e.TrajectoryFinished(update - 1, 0, update - 2, 0, "a", 70, 0, 0))] if update > 1 else []
        records += [*ends, (at, c.Dispatch(10 + update, (), True, update, (), (), ())), (at, e.UpdateFinished(10 + update, update))]
    rows = [row for at, record in records if (row := fold.feed(record, at)) is not None]
    assert [(row.tally.tokens, row.decoded) for row in rows] == [(0, 4.0), (70, 10.0), (70, 5.0)], "the first row's time is not forgotten"


def test_late_and_unknown_answers_change_nothing() -> None:
    fold = Account(schedule("streaming", staleness=1))
    strays: list[Any] = [
        e.PromptsArrived(9, (0, 1)),
        e.TrajectoryFinished(9, 0, 0, 0, "a", 5, 0, 0),
        e.TrajectoryFailed(9, 0, 0, 0, "a", "boom"),
        e.GroupMaterialized(9, 0, True, 2),
        e.DispatchConsumed(9),
        e.UpdateFinished(9, 1),
        e.WeightsLive(9, "a", 0, "f", 0.0, 1.0),
        e.Aborted(9),
        e.CommandFailed(9, "boom"),
        e.InstanceLost("a", "gone"),
        c.LoadWeights(1, "a", 0),
        c.Materialize(2, 5, (0,)),
        c.Dispatch(3, (5,), False, 1, (5,), (0,), (0,)),
        e.DispatchConsumed(3),
        c.Terminal(4, 5, "failed"),
        e.Timer(),
    ]
    assert [fold.feed(record, float(at)) for at, record in enumerate(strays)] == [None] * len(strays)
    assert fold.scene.unconsumed == len(fold.scene.admits) == fold.scene.waiting == 0
    assert fold.total.tokens == fold.total.failed_attempts == 0


def test_a_trajectory_of_a_group_that_is_gone_is_not_waited_for_when_its_instance_is_lost() -> None:
    s = schedule("serial", on_failure="drop_group", attempts=1)
    fold = Account(s, Resume(pending=(0,)))
    up = e.InstanceUp(InstanceInfo("a", 8))
    records: list[Any] = [e.Started(), up, c.Admit(1, 0, 0, 0, "a", 0), c.Admit(2, 0, 1, 0, "a", 0), e.CommandFailed(1, "no")]
    records += [c.Terminal(3, 0, "failed"), c.Abort(4, 0, 1, 0, "a", "no")]
    for record in records:
        fold.feed(record, 1.0)
    assert len(fold.scene.admits) == 1, "an abort that is not answered holds its slot"
    fold.feed(e.InstanceLost("a", "gone"), 2.0)
    assert (len(fold.scene.admits), fold.scene.waiting, fold.scene.slots) == (0, 0, 0)
    assert (fold.total.failed_attempts, fold.total.failed) == (1, 1)


def test_an_abort_that_fails_frees_its_slot_like_one_that_is_answered() -> None:
    fold = Account(schedule("serial"))
    records: list[Any] = [e.InstanceUp(InstanceInfo("a", 8)), c.Admit(1, 0, 0, 0, "a", 0), c.Abort(2, 0, 0, 0, "a", "")]
    for record in (*records, e.CommandFailed(2, "boom")):
        fold.feed(record, 1.0)
    assert not fold.scene.admits


def test_a_trainer_for_which_nothing_is_under_way_waits_for_rollout() -> None:
    fold = Account(schedule("serial"))
    fold.feed(e.InstanceUp(InstanceInfo("a", 8)), 0.0)
    assert trainer(fold.scene) == "rollout"


def test_a_level_has_its_mean_over_time_and_the_largest_value_that_lasted() -> None:
    tally = Tally()
    tally.spend(2.0, Moment("train", (("decode", 4),), (), (3, 0, 0, 1, 4, 1)))
    tally.spend(6.0, Moment("rollout", (("decode", 8),), (), (1, 0, 0, 0, 8, 1)))
    assert tally.most == {"in_flight": 3, "trainable": 1, "trajectories": 8, "versions": 1}
    assert [tally.mean_level(name) for name in ("in_flight", "trainable", "trajectories", "open")] == [1.5, 0.25, 7.0, 0.0]
    assert (tally.trainer, tally.slots) == ({"train": 2.0, "rollout": 6.0}, {"decode": 56.0})


def test_an_empty_stretch_has_no_shares_and_means_of_zero() -> None:
    assert (shares({}), mean({}), Tally().mean_level("open"), Window().waiting(5.0)) == ({}, 0.0, 0.0, (0.0, 0.0))
    assert Window(1.0).waiting(3.0) == (1.0, 1.0), "nothing was dispatched: all of it was waiting"


def test_a_long_run_is_accounted_for_in_seconds() -> None:
    began = time.process_time()
    fold, rows = account(schedule("streaming", u=4, group_size=SIZE, staleness=2), Resume(), Flood().records(2000))
    assert time.process_time() - began < 10
    assert fold.total.trajectories == 2000 * SIZE
    assert len(rows) == 2 * 2000 // 4


@pytest.mark.parametrize("choice", ["retry", "drop"])
def test_overstale_groups_are_counted_whether_they_are_generated_anew_or_dropped(choice: str) -> None:
    s = schedule("streaming", u=2, upp=1, group_size=2, staleness=0, overstale=choice, at_publish="keep", total_updates=6, no_signal="drop")
    world = World(FLEET[:1], lengths=Lengths("long_tail", 100, 2000), no_signal=0.2, seed=3)
    trace = simulate(s, world)
    assert not trace.violations
    fold, _ = account(s, Resume(), trace.records)
    stale = [r for r in trace.commands if isinstance(r, c.Terminal) and r.why.startswith("stale")]
    scored = [r.group for r in trace.commands if isinstance(r, c.Materialize)]
    anew = len(scored) - len(set(scored))
    assert fold.total.overstale > 0
    if choice == "drop":
        assert (fold.total.overstale, anew) == (len(stale), 0)
    else:
        assert not stale
        assert 0 < anew <= fold.total.overstale, "some wait to be generated anew when the run ends"
