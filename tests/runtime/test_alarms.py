"""Alarms, each on rows worked by hand: what sounds, what does not, and when."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from runtime_builders import group, report, schedule

from paceline.core.account import Account
from paceline.core.commands import Dispatch
from paceline.core.schedule import Resume
from paceline.runtime.alarms import ALARMS, BASELINE, Alarms
from paceline.runtime.recorder import Recorder
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, World
from paceline.trackers.jsonl import JsonlTracker, updates

CALM = {
    "reward": 0.5, "frac_reward_zero_std": 0.2, "rewards/right/std": 0.5, "update/samples": 64.0, "completions/mean_length": 100.0,
    "completions/clipped_ratio": 0.1, "logprob_gap/mean": 0.02, "entropy": 2.0, "clip_ratio/region_mean": 0.02, "reward_waiting_ratio": 0.1,
}  # fmt: skip


def sounding(*rows: dict[str, float]) -> set[str]:
    """What holds after calm first updates and then these."""
    return heard([CALM] * BASELINE + [{**CALM, **row} for row in rows])


def heard(rows: list[dict[str, float]]) -> set[str]:
    """What holds after these updates."""
    alarms = Alarms()
    for row in rows:
        alarms.feed(row)
    return {alarm.what for alarm in alarms.present()}


def test_nothing_sounds_in_a_calm_run() -> None:
    assert sounding(*[{}] * 10) == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frac_reward_zero_std": 1.0}, "no signal to learn from (reward 0.5)"),
        ({"unparsed_ratio": 1.0}, "could be parsed"),
        ({"completions/clipped_ratio": 0.91}, "cut at rollout.max_tokens"),
        ({"completions/mean_length": 24.9}, "a quarter as long as at first, or empty (24.9 tokens, at first 100)"),
        ({"logprob_gap/mean": 0.0601}, "three times as far as at first (0.0601 nats, at first 0.02)"),
        ({"entropy": 0.199}, "nearly alike (0.199 nats, at first 2)"),
        ({"clip_ratio/region_mean": 0.31}, "from the one that sampled (0.31)"),
        ({"reward_waiting_ratio": 0.31}, "waiting for rewards alone (0.31)"),
    ],
)
def test_each_alarm_sounds_after_three_updates_under_its_condition_and_no_other_does(change: dict[str, float], words: str) -> None:
    assert sounding(*[change] * 2) == set()
    (what,) = sounding(*[change] * 3)
    assert words in what


@pytest.mark.parametrize(
    "change",
    [
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


def test_every_alarm_has_a_case_above_or_below() -> None:
    assert len(ALARMS) == 9


def rewards(mean: float, deviation: float) -> dict[str, float]:
    return {
        "update/samples": 64.0,
        "rewards/right/std": 0.4,
        "rewards/right/mean": 0.2,
        "rewards/form/std": deviation,
        "rewards/form/mean": mean,
    }


def test_a_reward_that_has_never_told_answers_apart_is_named_with_its_value() -> None:
    constant = {"a reward function gives every answer the same value (form gives 0.1)"}
    assert heard([rewards(0.1, 0.0)] * 2) == set()
    assert heard([rewards(0.1, 0.0)] * 3) == constant, "from the third update on, before there is anything to compare with"
    assert heard([rewards(0.1, 0.0)] * 20) == constant
    assert heard([rewards(0.1, 1e-3)] * 20) == set()


def test_a_reward_that_every_answer_has_come_to_earn_is_no_alarm() -> None:
    """A reward for the format is satisfied after some updates, and so is a task that is solved."""
    assert heard([rewards(0.3, 0.4)] * 5 + [rewards(1.0, 0.0)] * 9) == set()
    assert heard([rewards(0.0, 0.0)] * 5 + [rewards(0.5, 0.5)] * 5 + [rewards(1.0, 0.0)] * 9) == set()


def test_the_alarm_that_ends_the_quickstart_says_when_it_is_no_reason_to_worry() -> None:
    """Its entropy at every update, of a run whose greedy accuracy rose from 0.20 to 0.52."""
    entropy = [1.73] * 5 + [1.62, 1.44, 1.48, 1.24, 1.05, 0.72, 0.68, 0.49, 0.38, 0.31, 0.24, 0.20, 0.22, 0.16, 0.15, 0.14]
    alarms = Alarms()
    said = [line for value in entropy for line in alarms.feed({"entropy": value})]
    assert [line.split(";")[0] for line in said] == [
        "3 updates in a row: entropy has collapsed: the answers to a prompt are nearly alike (0.14 nats, at first 1.73)"
    ]
    assert "Late in a run whose evaluation has risen that is a normal end" in said[0]


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
    assert [alarm.streak for alarm in alarms.present()] == [3]


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


def test_a_resumed_life_compares_with_the_beginning_of_the_run_and_goes_on_counting(tmp_path: Path) -> None:
    chosen, resume, said = schedule(), Resume(1, 1, (), 2), list[str]()
    record = JsonlTracker(tmp_path / "metrics.jsonl")
    for step, entropy in enumerate([2.0] * 5 + [0.1] * 2 + [9.0], start=1):
        record.log("update", step, {"entropy": entropy, "loss": math.nan})
    recorder = Recorder([], lambda progress: said.append(progress.message), Account(chosen, resume), 3, 1)
    recorder.recall(updates(tmp_path / "metrics.jsonl", 7))
    for now, value in simulate(chosen, World((FakeInstance("rollout-0"),)), resume).records:
        if isinstance(value, Dispatch):
            recorder.updated(value, [group(0, [0, 1])], report(value.update, entropy=0.1))
        recorder.feed(value, now)
    told = [message for message in said if "entropy" in message]
    assert len(told) == 1, "the update after the resume is the third in a row, the one after it the fourth"
    assert "update 2: 3 updates in a row: entropy has collapsed" in told[0]
    assert "(0.1 nats, at first 2)" in told[0]
