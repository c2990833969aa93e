import math

import pytest
from runtime_builders import group, report

from paceline.runtime.alarms import Alarms
from paceline.runtime.metrics import Counts, Times, update_metrics
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.records import Score

TIMES = Times(step=10, rollout=6, reward=1, train=3, publish=0.5, window=8, first_wait=5, round_train=3)


def test_lengths_count_every_sample_and_terminated_ones_apart() -> None:
    row = update_metrics([group(0, [0, 1, 0], [3, 8, 5], ["eos", "length", "stop"])], report(), TIMES, Counts())
    assert row["completions/mean_length"] == pytest.approx(16 / 3)
    assert (row["completions/min_length"], row["completions/max_length"]) == (3, 8)
    assert row["completions/mean_terminated_length"] == 4
    assert (row["completions/min_terminated_length"], row["completions/max_terminated_length"]) == (3, 5)
    assert row["completions/clipped_ratio"] == pytest.approx(1 / 3)


def test_reward_std_is_the_mean_within_groups_and_zero_std_groups_are_counted() -> None:
    row = update_metrics([group(0, [1, 1]), group(1, [0, 1])], report(), TIMES, Counts())
    assert row["reward"] == 0.75
    assert row["reward_std"] == pytest.approx(0.5**0.5 / 2)
    assert row["frac_reward_zero_std"] == 0.5


def test_rewards_that_differ_by_rounding_only_are_equal_as_they_are_to_the_filter_and_the_advantages() -> None:
    row = update_metrics([group(0, [0.1 + 0.2, 0.3])], report(), TIMES, Counts())
    assert row["frac_reward_zero_std"] == 1


def test_parts_may_vary_while_their_sum_does_not_and_both_are_shown() -> None:
    row = update_metrics([group(0, [0, 0], parts={"a": (5, -5), "b": (-5, 5), "c": (None, None)})], report(), TIMES, Counts())
    assert row["reward_std"] == 0
    assert row["frac_reward_zero_std"] == 1
    assert row["rewards/a/std"] == pytest.approx(50**0.5)
    assert row["rewards/b/mean"] == 0
    assert "rewards/c/mean" not in row


def test_unparsed_answers_are_a_share_of_those_that_a_function_judged() -> None:
    scores = {"numeric": (Score(0.0, "no number", False), Score(1.0, "", True)), "style": (Score(1.0), Score(1.0))}
    row = update_metrics([group(0, [0, 1], scores=scores)], report(), TIMES, Counts())
    assert row["unparsed_ratio"] == 0.5


def test_reasons_are_counted_by_function_and_kind() -> None:
    scores = {"math": (Score(0.0, "not compared in time", False), Score(0.0, "wrong", True)), "style": (Score(1.0), Score(1.0))}
    row = update_metrics([group(0, [0, 0], scores=scores), group(1, [0, 0], scores=scores)], report(), TIMES, Counts())
    assert {name: value for name, value in row.items() if "/reason/" in name} == {
        "rewards/math/reason/not_compared_in_time": 2.0,
        "rewards/math/reason/wrong": 2.0,
    }


def test_empty_completions_give_finite_values() -> None:
    row = update_metrics([group(0, [0, 0], [0, 0], ["length", "length"])], report(), TIMES, Counts())
    assert row["completions/mean_length"] == 0
    assert row["completions/clipped_ratio"] == 1
    assert not any("terminated" in name for name in row), "nothing terminated: a length of 0 would be made up"
    assert all(math.isfinite(value) for value in row.values())


def test_times_counts_and_the_trainers_own_values_are_in_the_row() -> None:
    counts = Counts(staleness=1, verifier_errors=2, tokens_before=100, filtered_groups=3)
    row = update_metrics([group(0, [0, 1], [2, 4])], report(loss=0.5, grad_norm=2.0), TIMES, counts)
    assert (row["loss"], row["grad_norm"], row["staleness/max"], row["verifier_errors"], row["groups/filtered"]) == (0.5, 2.0, 1, 2, 3)
    assert row["num_tokens"] == 100 + 2 * 3 + 6
    assert row["rollout_tokens_per_second"] == 1.0
    assert row["trainer_waiting_ratio"] == 5 / 8
    assert row["trainer_waiting_ratio/all"] == 5 / 8
    assert (row["step_time"], row["rollout_seconds"], row["train_seconds"], row["publish_seconds"]) == (10, 6, 3, 0.5)


def test_overlapping_work_of_a_stage_counts_once_and_a_round_has_its_own_window() -> None:
    now = 0.0
    watch = Stopwatch(lambda: now)
    now = 1.0
    watch.enter("rollout")
    now = 2.0
    watch.enter("rollout")
    now = 4.0
    watch.leave("rollout")
    now = 5.0
    watch.leave("rollout")
    now = 6.0
    with watch.during("train"):
        now = 8.0
    times = watch.cut()
    assert (times.rollout, times.train, times.step) == (4.0, 2.0, 8.0)
    assert (times.window, times.first_wait, times.round_train) == (7.0, 5.0, 2.0)
    watch.new_round()
    now = 9.0
    assert watch.cut() == Times(step=1.0, rollout=0, reward=0, train=0, publish=0, window=0, first_wait=0, round_train=0)


def test_a_row_in_the_middle_of_a_stage_splits_its_time() -> None:
    now = 0.0
    watch = Stopwatch(lambda: now)
    watch.enter("rollout")
    now = 3.0
    assert watch.cut().rollout == 3.0
    now = 4.0
    watch.leave("rollout")
    assert watch.cut().rollout == 1.0


@pytest.mark.parametrize("name", ["completions/clipped_ratio", "frac_reward_zero_std", "unparsed_ratio"])
def test_an_alarm_sounds_after_three_updates_in_a_row_and_again_when_they_doubled(name: str) -> None:
    alarms = Alarms()
    sounded = [update for update in range(1, 13) if alarms.feed({name: 1.0})]
    assert sounded == [3, 6, 12]


def test_an_update_without_the_condition_starts_the_count_again() -> None:
    alarms = Alarms()
    rows = [{"completions/clipped_ratio": ratio} for ratio in (0.95, 0.95, 0.9, 0.95, 0.95, 0.95)]
    assert [bool(alarms.feed(row)) for row in rows] == [False] * 5 + [True]
