import math
from dataclasses import replace

import pytest
from runtime_builders import group, report

from paceline.core.account import Row, Tally, Window
from paceline.runtime.alarms import Alarms
from paceline.runtime.metrics import publish_metrics, time_metrics, update_metrics
from paceline.types.records import Score


def test_lengths_count_every_sample_and_terminated_ones_apart() -> None:
    row = update_metrics([group(0, [0, 1, 0], [3, 8, 5], ["eos", "length", "stop"])], report())
    assert row["completions/mean_length"] == pytest.approx(16 / 3)
    assert (row["completions/min_length"], row["completions/max_length"]) == (3, 8)
    assert row["completions/mean_terminated_length"] == 4
    assert (row["completions/min_terminated_length"], row["completions/max_terminated_length"]) == (3, 5)
    assert row["completions/clipped_ratio"] == pytest.approx(1 / 3)


def test_reward_std_is_the_mean_within_groups_and_zero_std_groups_are_counted() -> None:
    row = update_metrics([group(0, [1, 1]), group(1, [0, 1])], report())
    assert row["reward"] == 0.75
    assert row["reward_std"] == pytest.approx(0.5**0.5 / 2)
    assert row["frac_reward_zero_std"] == 0.5


def test_rewards_that_differ_by_rounding_only_are_equal_as_they_are_to_the_filter_and_the_advantages() -> None:
    row = update_metrics([group(0, [0.1 + 0.2, 0.3])], report())
    assert row["frac_reward_zero_std"] == 1


def test_parts_may_vary_while_their_sum_does_not_and_both_are_shown() -> None:
    row = update_metrics([group(0, [0, 0], parts={"a": (5, -5), "b": (-5, 5), "c": (None, None)})], report())
    assert row["reward_std"] == 0
    assert row["frac_reward_zero_std"] == 1
    assert row["rewards/a/std"] == pytest.approx(50**0.5)
    assert row["rewards/b/mean"] == 0
    assert "rewards/c/mean" not in row


def test_unparsed_answers_are_a_share_of_those_that_a_function_judged() -> None:
    scores = {"numeric": (Score(0.0, "no number", False), Score(1.0, "", True)), "style": (Score(1.0), Score(1.0))}
    row = update_metrics([group(0, [0, 1], scores=scores)], report())
    assert row["unparsed_ratio"] == 0.5


def test_reasons_are_counted_by_function_and_kind() -> None:
    scores = {"math": (Score(0.0, "not compared in time", False), Score(0.0, "wrong", True)), "style": (Score(1.0), Score(1.0))}
    row = update_metrics([group(0, [0, 0], scores=scores), group(1, [0, 0], scores=scores)], report())
    assert {name: value for name, value in row.items() if "/reason/" in name} == {
        "rewards/math/reason/not_compared_in_time": 2.0,
        "rewards/math/reason/wrong": 2.0,
    }


def test_empty_completions_give_finite_values() -> None:
    row = update_metrics([group(0, [0, 0], [0, 0], ["length", "length"])], report())
    assert row["completions/mean_length"] == 0
    assert row["completions/clipped_ratio"] == 1
    assert not any("terminated" in name for name in row), "nothing terminated: a length of 0 would be made up"
    assert all(math.isfinite(value) for value in row.values())


def test_the_trainers_own_values_and_the_tokens_of_prompts_and_samples_are_in_the_row() -> None:
    row = update_metrics([group(0, [0, 1], [2, 4])], report(loss=0.5, grad_norm=2.0))
    assert (row["loss"], row["grad_norm"], row["num_tokens"]) == (0.5, 2.0, 2 * 3 + 6)


def test_each_task_of_a_mixture_has_its_own_reward_and_count() -> None:
    sums, words = (replace(g, prompt=replace(g.prompt, task=name)) for g, name in ((group(0, [1, 1]), "sums"), (group(1, [0, 1]), "words")))
    row = update_metrics([sums, words, sums], report(), by_task=True)
    assert (row["reward/sums"], row["reward/words"], row["outcome/words"]) == (1, 0.5, 0.5)
    assert (row["update/groups/sums"], row["update/groups/words"]) == (2, 1)


def test_times_and_counts_of_an_update_have_the_names_that_stand_for_them() -> None:
    tally = Tally(
        seconds=10.0,
        busy={"rollout": 6.0, "reward": 1.0, "train": 3.0, "publish": 0.5},
        staleness={0: 3, 1: 1},
        staleness_updates={0: 2, 3: 2},
        tokens=48,
        trajectories=2,
        filtered=3,
        failed_rewards=2,
    )
    row = time_metrics(Row("update", 4, 20.0, tally, Window(12.0, 5.0, 3.0, 0.0), 20.0, 24.0))
    assert (row["step_time"], row["rollout_seconds"], row["train_seconds"], row["publish_seconds"]) == (10, 6, 3, 0.5)
    assert (row["rollout_to_train_end_seconds"], row["trainer_waiting_ratio"], row["trainer_waiting_ratio/all"]) == (8, 5 / 8, 5 / 8)
    assert (row["staleness/max"], row["staleness/mean"], row["staleness_updates/max"], row["staleness_updates/mean"]) == (1, 0.25, 3, 1.5)
    assert (row["rollout_tokens_per_second"], row["verifier_errors"], row["groups/filtered"]) == (2, 2, 3)


def test_a_row_in_which_no_trajectory_ended_claims_no_speed() -> None:
    row = time_metrics(Row("update", 4, 20.0, Tally(10.0, busy={"rollout": 10.0}), Window(12.0), 20.0, 10.0))
    assert "rollout_tokens_per_second" not in row


def test_a_publish_row_says_what_each_pool_did_as_shares_that_sum_to_one() -> None:
    tally = Tally(10.0, {"train": 4.0, "rollout": 6.0}, {"decode": 30.0, "window": 10.0}, staleness={0: 3, 2: 1}, migrated=5, prefilled=7)
    tally.level_seconds, tally.most = {"trainable": 15.0}, {"trainable": 4}
    row = publish_metrics(Row("publish", 2, 20.0, tally, Window(12.0, 5.0, 4.0, 1.0), 20.0, 0.0))
    assert (row["trainer/train"], row["trainer/rollout"]) == (0.4, 0.6)
    assert (row["rollout/decode"], row["rollout/window"], row["rollout/frontier"]) == (0.75, 0.25, 0)
    assert sum(value for name, value in row.items() if name.startswith("trainer/")) == 1
    assert (row["groups/trainable/mean"], row["groups/trainable/max"], row["groups/consumed"]) == (1.5, 4, 4)
    assert (row["staleness/0"], row["staleness/2"], row["migrations"], row["migrations/prefilled_tokens"]) == (3, 1, 5, 7)
    assert row["rollout_to_train_end_seconds"] == 7


@pytest.mark.parametrize("name", ["completions/clipped_ratio", "frac_reward_zero_std", "unparsed_ratio"])
def test_an_alarm_sounds_after_three_updates_in_a_row_and_again_when_they_doubled(name: str) -> None:
    alarms = Alarms()
    sounded = [update for update in range(1, 13) if alarms.feed({name: 1.0})]
    assert sounded == [3, 6, 12]


def test_an_update_without_the_condition_starts_the_count_again() -> None:
    alarms = Alarms()
    rows = [{"completions/clipped_ratio": ratio} for ratio in (0.95, 0.95, 0.9, 0.95, 0.95, 0.95)]
    assert [bool(alarms.feed(row)) for row in rows] == [False] * 5 + [True]
