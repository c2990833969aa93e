"""Pure parts: apportionment, frontier, costs, presets."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.hand import schedule

from paceline.core.balance import apportion
from paceline.core.costs import DecodeCost, LinearCost, SpeculationCost, acceptance_length, best_draft_length
from paceline.core.fleet import Fleet
from paceline.core.frontier import Load, Meter, choose, rate
from paceline.core.presets import check, check_fleet
from paceline.core.versions import Versions
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


LOAD = Load(
    group_size=4,
    groups_per_round=16,
    groups_per_update=2,
    slots=64,
    instances=1,
    decode=DecodeCost(0.02, 0.001),
    context=0.0,
    mean_length=100.0,
    mean_longest=200.0,
    update_seconds=5.0,
)


def test_the_rate_follows_the_formula() -> None:
    # n = 8 x 4 x 100 / 200 = 16 sequences, a step of 36 ms, 400 tokens a group
    assert rate(LOAD, 8) == pytest.approx(16 / (400 * 0.036))


@given(st.floats(0.01, 50.0), st.floats(0.001, 0.1), st.floats(0.0, 0.01), st.integers(1, 64))
def test_the_frontier_is_the_smallest_that_is_fast_enough(update: float, base: float, slope: float, slots: int) -> None:
    load = dataclasses.replace(LOAD, update_seconds=update, decode=DecodeCost(base, slope), slots=slots)
    enough = min(1.2 * 2 / update, 0.95 * rate(load, 16))
    assert choose(load) == next(f for f in range(2, 17) if f == 16 or rate(load, f) >= enough)


def test_a_slow_trainer_needs_few_groups_in_flight_and_a_fast_one_many() -> None:
    assert choose(dataclasses.replace(LOAD, update_seconds=60.0)) == 2
    assert choose(dataclasses.replace(LOAD, update_seconds=0.0)) == 15


def test_a_meter_fits_the_decode_cost_from_reports_and_says_so_when_it_cannot() -> None:
    meter = Meter()
    meter.trajectory(100)
    meter.group(150)
    meter.dispatch(2, 3.0)
    meter.step(8, 0.028)
    assert meter.load(4, 16, 4, 64, 1) is None  # one batch size only
    meter.step(16, 0.036)
    load = meter.load(4, 16, 4, 64, 1)
    assert load is not None
    assert (load.decode.base, load.decode.per_sequence) == (pytest.approx(0.02), pytest.approx(0.001))
    assert (load.mean_length, load.mean_longest, load.update_seconds) == (100.0, 150.0, 6.0)


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
    versions = Versions(0)
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
