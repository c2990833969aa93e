"""Pure parts: apportionment, frontier, costs, presets."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.hand import schedule

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.balance import apportion
from paceline.core.costs import DecodeCost, LinearCost, SpeculationCost, acceptance_length, best_draft_length
from paceline.core.fleet import Fleet
from paceline.core.frontier import Load, Meter, candidates, choose, round_seconds
from paceline.core.presets import check, check_fleet
from paceline.core.schedule import Schedule
from paceline.core.versions import Versions
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, Lengths, World
from paceline.types.errors import ConfigError
from paceline.types.weights import InstanceInfo


@given(st.integers(0, 50), st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_shares_add_up_and_every_version_keeps_one_where_possible(instances: int, work: list[int]) -> None:
    shares = apportion(instances, list(enumerate(work)))
    assert sum(shares.values()) == instances
    if instances >= len(work):
        assert min(shares.values()) >= 1
    else:
        assert [shares[v] for v in range(len(work))] == [1] * instances + [0] * (len(work) - instances)


def test_shares_follow_the_remaining_work() -> None:
    assert apportion(10, [(3, 10), (4, 30), (5, 60)]) == {3: 1, 4: 3, 5: 6}
    assert apportion(10, [(3, 1), (4, 1), (5, 98)]) == {3: 1, 4: 1, 5: 8}
    assert apportion(3, [(0, 1), (1, 1)]) == {0: 2, 1: 1}
    assert apportion(0, [(0, 1)]) == {0: 0}


def load(lengths: list[list[int]], **values: Any) -> Load:
    """One round before, of these lengths; a step of 1 s, training that takes no time."""
    sizes = {"group_size": len(lengths[0]), "groups_per_round": len(lengths), "groups_per_update": 1, "groups_per_dispatch": 1}
    fleet = {"by_group": False, "slots": 100, "instances": 1, "decode": DecodeCost(1.0, 0.0), "group_seconds": 0.0}
    return Load(**{**sizes, **fleet, "rounds": (tuple(map(tuple, lengths)),), **values})


def seconds(plan: Load, frontier: int) -> float:
    return round_seconds(plan, plan.rounds[0], frontier)


def test_a_round_takes_as_long_as_its_slots_and_its_frontier_make_it() -> None:
    plan = load([[2, 3], [4, 1], [5, 1]])
    assert seconds(plan, 3) == 5.0  # all at once: the longest
    assert seconds(plan, 1) == 9.0  # in two slots: 2 and 3, then 4 from 2 on, 1 from 3 on, 5 from 4 on, 1 from 6 on
    assert seconds(dataclasses.replace(plan, by_group=True), 1) == 3.0 + 4.0 + 5.0  # group after group
    assert seconds(dataclasses.replace(plan, slots=1), 3) == 16.0
    slow = dataclasses.replace(plan, decode=DecodeCost(1.0, 0.5))
    assert seconds(slow, 3) == 4.0 + 3.0 + 2.5 + 2.0 + 1.5  # steps of six, four, three, two sequences and one


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("frontier", [2, 5, 16])
def test_the_rounds_before_are_gone_through_as_the_simulator_goes_through_them(by_group: bool, frontier: int) -> None:
    plan = Schedule("pipelined", 4, 16, 2, 2, 8, "dispatch", 8, frontier=frontier, refill="group" if by_group else "sample")
    world = World((FakeInstance("i0", 40, 20.0, 0.01),), lengths=Lengths("long_tail", 50, 400), group_seconds=1.0, update_seconds=0.0)
    world = dataclasses.replace(world, reward_seconds=0.0, prompt_seconds=0.0)
    trace = simulate(plan, world)
    began = min(now for now, record in trace.records if isinstance(record, c.Admit))
    ended = max(now for now, record in trace.records if isinstance(record, e.UpdateFinished))
    lengths = [[world.tokens(group, sample) for sample in range(4)] for group in range(16)]
    before = load(
        lengths, groups_per_update=2, groups_per_dispatch=2, by_group=by_group, slots=40, decode=DecodeCost(0.05, 0.01), group_seconds=1.0
    )
    assert seconds(before, frontier) == pytest.approx(ended - began)


def test_a_large_round_is_gone_through_by_a_part_of_its_groups() -> None:
    lengths = [[100 + 7 * (g * s % 50) for s in range(8)] for g in range(1024)]
    few = load(lengths[:128], groups_per_dispatch=2, slots=64, decode=DecodeCost(0.02, 0.001), group_seconds=0.1)
    many = load(lengths, groups_per_dispatch=16, slots=512, decode=DecodeCost(0.02, 0.001 / 8), group_seconds=0.1 / 8)
    assert seconds(many, 64) == pytest.approx(seconds(few, 8), rel=0.02)


def test_frontiers_from_u_to_r_are_tried_and_of_those_that_are_near_the_best_the_largest_is_chosen() -> None:
    plan = load([[10] * 4] * 32, groups_per_update=2, slots=200)
    assert candidates(plan) == [2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30, 32]
    assert candidates(load([[10] * 4] * 2, groups_per_update=2)) == [2]
    chosen, forecast = choose(plan)
    assert (chosen, forecast.seconds, forecast.fifo_seconds, forecast.rounds) == (32, 10.0, 10.0, 1)
    assert "by the lengths of the last round (" in str(forecast)
    assert "by the lengths of the last 2 rounds (" in str(dataclasses.replace(forecast, rounds=2))


def test_a_slow_trainer_needs_few_groups_in_flight_and_a_fast_one_many() -> None:
    lengths = [[50 + 13 * (g * s % 7) for s in range(4)] for g in range(16)]
    plan = load(lengths, slots=64, decode=DecodeCost(0.02, 0.001))
    assert choose(plan)[0] == 16
    chosen = [choose(dataclasses.replace(plan, group_seconds=spent))[0] for spent in (0.1, 0.6, 1.2, 4.0)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == 16 > 4 >= chosen[-1]
    assert choose(dataclasses.replace(plan, group_seconds=600.0))[0] == 16  # nothing that a frontier saves is a hundredth of that


def measured(*steps: tuple[float, float]) -> Meter:
    meter = Meter()
    for order, tokens in ((0, 100), (1, 80), (0, 150)):
        meter.trajectory(order, tokens)
    meter.dispatch(2, 3.0)
    for running, took in steps:
        meter.step(running, took)
    meter.new_round()
    return meter


PLAN = schedule("pipelined", u=2, d=1, r=16, group_size=4, frontier="auto")


def test_a_meter_fits_the_decode_cost_from_reports_and_says_so_when_it_cannot() -> None:
    assert measured((8, 0.028)).load(PLAN, 64, 1) is None  # one batch size only
    assert measured((8, 0.028), (8.1, 0.036)).load(PLAN, 64, 1) is None  # hardly two
    found = measured((8, 0.028), (16, 0.036)).load(PLAN, 64, 1)
    assert found is not None
    assert (found.decode.base, found.decode.per_sequence) == (pytest.approx(0.02), pytest.approx(0.001))
    assert (found.rounds, found.group_seconds, found.groups_per_dispatch) == ((((100, 150), (80,)),), 1.5, 1)
    strict = measured((8, 0.028), (16, 0.036)).load(dataclasses.replace(PLAN, refill="group"), 64, 1)
    assert strict is not None
    assert (found.by_group, strict.by_group) == (False, True)
    assert measured((8, 0.028), (16, 0.036)).load(PLAN, 0, 0) is None  # nothing is up


def test_a_step_has_a_base_and_never_gets_faster_with_more_sequences_whatever_the_noise() -> None:
    steep = measured((8, 0.01), (16, 0.05)).load(PLAN, 64, 1)
    falling = measured((8, 0.05), (16, 0.03)).load(PLAN, 64, 1)
    assert steep is not None
    assert falling is not None
    assert (steep.decode.base, steep.decode.step(12, 0)) == (pytest.approx(0.0015), pytest.approx(0.03))
    assert (falling.decode.base, falling.decode.per_sequence) == (pytest.approx(0.04), pytest.approx(0.0))


def test_a_round_counts_twice_as_much_for_the_trainer_s_time_as_the_one_before() -> None:
    meter = measured((8, 0.028), (16, 0.036))  # 2 groups in 3 s
    meter.dispatch(2, 1.0)
    meter.new_round()
    found = meter.load(PLAN, 64, 1)
    assert found is not None
    assert found.group_seconds == pytest.approx((3.0 / 2 + 1.0) / (2 / 2 + 2))


def test_a_meter_remembers_two_rounds_and_the_last_cost_that_it_could_fit() -> None:
    meter = measured((8, 0.028), (16, 0.036))
    for tokens in (7, 9):
        meter.trajectory(5, tokens)
        meter.new_round()
    found = meter.load(PLAN, 64, 1)
    assert found is not None
    assert found.rounds == (((9,),), ((7,),))
    assert found.decode.per_sequence == pytest.approx(0.001)
    meter.new_round()  # a round in which nothing finished
    again = meter.load(PLAN, 64, 1)
    assert again is not None
    assert again.rounds == found.rounds


@given(st.integers(1, 64), st.integers(0, 4000), st.integers(0, 3000))
def test_a_span_of_decode_steps_is_the_sum_of_its_steps_and_inverts(sequences: int, context: int, steps: int) -> None:
    cost = DecodeCost(0.01, 0.0005, 1e-6)
    span = cost.span(sequences, context, steps)
    if steps <= 50:
        assert span == pytest.approx(sum(cost.step(sequences, context + i) for i in range(steps)))
    assert cost.steps_within(sequences, context, span * (1 + 1e-9)) == steps


@pytest.mark.parametrize("per_context", [0.0, 1e-6])
def test_exactly_the_time_of_so_many_steps_is_enough_for_them_whatever_rounding_does(per_context: float) -> None:
    cost = DecodeCost(0.01, 0.0005, per_context)
    for steps in range(2000):
        seconds = cost.span(7, 100, steps)
        assert cost.steps_within(7, 100, seconds) == steps
        assert cost.steps_within(7, 100, math.nextafter(seconds, 0.0)) == max(0, steps - 1)


def test_acceptance_counts_the_correction_or_bonus_token() -> None:
    assert acceptance_length(()) == 1.0
    assert acceptance_length((0.7, 0.7, 0.7)) == pytest.approx(2.533)


def test_the_draft_length_maximises_expected_tokens_per_second_and_may_be_zero() -> None:
    cost = SpeculationCost(draft=DecodeCost(0.001, 0.0), target=DecodeCost(0.02, 0.0001), per_row=0.0002)
    assert best_draft_length(cost, (0.8,) * 6, sequences=1, context=100) == 6
    assert best_draft_length(cost, (0.0,) * 6, sequences=1, context=100) == 0
    assert best_draft_length(cost, (0.8,) * 6, sequences=512, context=100) == 0


def test_a_linear_cost_is_base_and_rate() -> None:
    assert LinearCost(0.5, 0.001).seconds(200) == pytest.approx(0.7)


def test_presets_of_every_kind_pass_the_check() -> None:
    check(schedule("serial", u=4, r=10))
    check(schedule("pipelined", u=4, d=1, r=10, frontier="auto", in_order=True))
    check(schedule("streaming", u=4, d=2, upp=3, staleness=2, buffer_groups=4, in_flight_groups=36))
    check(schedule("multiversion", u=4, d=2, upp=3, version_window=3, in_flight_groups=4))


@pytest.mark.parametrize(
    ("preset", "values", "words"),
    [
        ("serial", {"d": 3, "u": 2}, "groups_per_dispatch = 3: must be at most groups_per_update = 2"),
        ("serial", {"group_size": 0}, "group_size = 0: must be at least 1"),
        ("serial", {"staleness": 1}, "staleness = 1: has no effect outside streaming"),
        ("serial", {"frontier": 4}, "frontier = 4: has no use"),
        ("pipelined", {"u": 4, "r": 2}, "groups_per_round = 2: must be at least groups_per_update = 4"),
        ("pipelined", {"frontier": 0}, "frontier = 0: must be at least 1"),
        ("pipelined", {"updates_per_publish": 3}, "is ceil"),
        ("pipelined", {"version_window": 2}, "version_window = 2: has no effect outside multiversion"),
        ("pipelined", {"in_flight_groups": 2}, "frontier is the limit"),
        ("streaming", {"u": 4, "buffer_groups": 3}, "buffer_groups = 3: must be at least 4"),
        ("streaming", {"frontier": 2}, "in_flight_groups is the cap here"),
        ("streaming", {"in_order": True}, "needs rounds"),
        ("multiversion", {"u": 2, "version_window": 2, "in_flight_groups": 5}, "at most (bound + 1) x U x updates_per_publish = 4"),
        ("multiversion", {"u": 2, "version_window": 2, "in_flight_groups": 1}, "must be at least 2"),
        ("multiversion", {"overstale": "drop"}, "nothing gets over-stale"),
        ("multiversion", {"start_when": "all", "u": 2, "upp": 2, "version_window": 2, "in_flight_groups": 2}, "must be at least 4"),
    ],
)
def test_a_schedule_without_meaning_is_refused_with_value_and_rule(preset: str, values: dict[str, Any], words: str) -> None:
    updates = values.pop("updates_per_publish", None)
    s = schedule(preset, **values)
    if updates:
        s = dataclasses.replace(s, updates_per_publish=updates)
    with pytest.raises(ConfigError) as error:
        check(s)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (InstanceInfo("a", 0), "slots = 0"),
        (InstanceInfo("a", 4, versions_held=0), "versions_held = 0"),
        (InstanceInfo("a", 4, logprobs="none"), "logprobs = 'none'"),
        (InstanceInfo("a", 1), "granularity = 'group' needs group_size = 2 slots"),
    ],
)
def test_an_instance_that_cannot_carry_the_schedule_is_refused(info: InstanceInfo, words: str) -> None:
    with pytest.raises(ConfigError, match="instance 'a'") as error:
        check_fleet(schedule("streaming", granularity="group"), [InstanceInfo("fine", 4), info])
    assert words in str(error.value)


def test_instances_that_can_carry_the_schedule_pass_and_so_does_having_none_yet() -> None:
    plan = schedule("streaming", granularity="group")
    check_fleet(plan, [InstanceInfo("a", 2), InstanceInfo("b", 8, versions_held=3, logprobs="reported")])
    check_fleet(plan, [])


def test_a_lane_offers_the_emptiest_instance_and_remembers_no_more_than_it_must() -> None:
    versions = Versions(0, 1)
    versions.publish(0, 0)
    fleet = Fleet(True, versions)
    a, b = (fleet.up(InstanceInfo(name, 8)) for name in "ab")
    for instance in (a, b):
        fleet.aim(instance, (0,))
        fleet.begin_load(instance, 0, None)
        fleet.live(instance)
    fleet.occupy(a, 0)
    for _ in range(500):
        assert fleet.pick(0, None) is b
        fleet.occupy(b, 0)
        fleet.occupy(b, 0)
        assert fleet.pick(0, None) is a
        fleet.vacate(b, 0)
        fleet.vacate(b, 0)
    assert len(fleet._heaps[0]) < 80
