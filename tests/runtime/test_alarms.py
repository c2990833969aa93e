"""Alarms, each on rows worked by hand: what sounds, what does not, and when."""

from __future__ import annotations

import pytest

from paceline.runtime.alarms import ALARMS, BASELINE, Alarms

CALM = {
    "reward": 0.5, "frac_reward_zero_std": 0.2, "rewards/right/std": 0.5, "update/samples": 64.0, "completions/mean_length": 100.0,
    "completions/clipped_ratio": 0.1, "logprob_gap/mean": 0.02, "entropy": 2.0, "clip_ratio/region_mean": 0.02, "reward_waiting_ratio": 0.1,
}  # fmt: skip


def sounding(*rows: dict[str, float]) -> set[str]:
    """What holds after calm first updates and then these."""
    alarms = Alarms()
    for row in [CALM] * BASELINE + [{**CALM, **row} for row in rows]:
        alarms.feed(row)
    return {alarm.what for alarm, _ in alarms.present()}


def test_nothing_sounds_in_a_calm_run() -> None:
    assert sounding(*[{}] * 10) == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards/right/std": 0.0}, "same value"),
        ({"frac_reward_zero_std": 1.0}, "equal rewards"),
        ({"unparsed_ratio": 1.0}, "could be parsed"),
        ({"completions/clipped_ratio": 0.91}, "cut at rollout.max_tokens"),
        ({"completions/mean_length": 24.9}, "a quarter as long"),
        ({"logprob_gap/mean": 0.0601}, "drift apart"),
        ({"entropy": 0.199}, "entropy has collapsed"),
        ({"clip_ratio/region_mean": 0.31}, "were clipped"),
        ({"reward_waiting_ratio": 0.31}, "waiting for rewards"),
    ],
)
def test_each_alarm_sounds_after_three_updates_under_its_condition_and_no_other_does(change: dict[str, float], words: str) -> None:
    assert sounding(*[change] * 2) == set()
    (what,) = sounding(*[change] * 3)
    assert words in what


@pytest.mark.parametrize(
    "change",
    [
        {"rewards/right/std": 1e-3},
        {"frac_reward_zero_std": 0.99},
        {"completions/clipped_ratio": 0.9},
        {"completions/mean_length": 25.0},
        {"logprob_gap/mean": 0.06},
        {"entropy": 0.2},
        {"clip_ratio/region_mean": 0.3},
        {"reward_waiting_ratio": 0.3},
    ],
)
def test_at_its_limit_none_sounds(change: dict[str, float]) -> None:
    assert sounding(*[change] * 9) == set()


def test_every_alarm_has_a_case_above() -> None:
    assert len(ALARMS) == 9


def test_drift_from_a_tiny_gap_stays_silent_below_a_hundredth_of_a_nat() -> None:
    alarms = Alarms()
    for gap in [1e-6] * BASELINE + [0.01] * 9:
        alarms.feed({"logprob_gap/mean": gap})
    assert not alarms.present()


def test_what_is_low_from_the_start_is_told_without_anything_to_compare_with() -> None:
    alarms = Alarms()
    said = [alarms.feed({"entropy": 0.001, "completions/mean_length": 1.0}) for _ in range(3)]
    assert [len(lines) for lines in said] == [0, 0, 2]


def test_the_first_updates_are_averaged_and_later_ones_do_not_move_the_mean() -> None:
    alarms = Alarms()
    for entropy in (1.0, 2.0, 3.0, 2.0, 2.0):  # mean 2
        alarms.feed({"entropy": entropy})
    for entropy in (0.5, 0.3, 0.21, 0.201, 0.2):
        alarms.feed({"entropy": entropy})
    assert not alarms.present(), "a tenth of 2 is 0.2, and it is not below"
    for _ in range(3):
        alarms.feed({"entropy": 0.199})
    assert [streak for _, streak in alarms.present()] == [3]


def test_a_first_value_that_is_no_number_leaves_only_the_floor() -> None:
    alarms = Alarms()
    for entropy in (float("nan"), 2.0, 2.0, 2.0, 2.0, 0.1, 0.1, 0.1):
        alarms.feed({"entropy": entropy})
    assert not alarms.present()


def test_an_update_of_one_sample_has_no_spread_and_says_nothing() -> None:
    assert sounding(*[{"rewards/right/std": 0.0, "update/samples": 1.0}] * 5) == set()


def test_a_warning_says_for_how_long_and_what_to_do() -> None:
    alarms = Alarms()
    said = [line for _ in range(6) for line in alarms.feed({"unparsed_ratio": 1.0})]
    assert said == [f"{n} updates in a row: no answer could be parsed; check the reward's marker and the prompt" for n in (3, 6)]
