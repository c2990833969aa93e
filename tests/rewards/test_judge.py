"""Groups: sums, outcomes, the control experiment, golds checked up front, the worker body."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config.schema import RewardConfig, TaskConfig
from paceline.ports.fakes.data import ByteTokenizer, ComputedReward, ConstantReward, MemoryTask
from paceline.rewards import Judge, Part, load_judge
from paceline.rewards.verifiers import TaskReward
from paceline.rewards.worker import JudgeBody, create
from paceline.tasks import load
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Trajectory
from paceline.types.signal import has_signal

IDS = np.arange(3, dtype=np.int32)


def prompt(gold: str | None = "4", **columns: Any) -> Prompt:
    return Prompt(9, 7, IDS, "2+2?", gold, columns, "sums")


def samples(*texts: str, group: int = 5) -> list[Trajectory]:
    return [Trajectory(group, i, 0, IDS, np.arange(len(text), dtype=np.int32), {}, "eos", text) for i, text in enumerate(texts)]


def table(name: str, values: Mapping[str, float | None]) -> ConstantReward:
    return ConstantReward(None, name, values)


def test_parts_that_cancel_give_equal_rewards() -> None:
    a, b = table("a", {"x": 5.0, "y": -5.0}), table("b", {"x": -5.0, "y": 5.0})
    assert Judge([Part(a), Part(b)]).score_group(prompt(), samples("x", "y")).rewards == (0.0, 0.0)
    assert Judge([Part(a, 2.0), Part(b)]).score_group(prompt(), samples("x", "y")).rewards == (5.0, -5.0)


def test_the_outcome_leaves_shaping_out() -> None:
    right = table("right", dict.fromkeys("abcd", 0.0))
    shaping = table("shaping", {"a": 0.0, "b": 0.12, "c": 0.3, "d": 0.05})
    group = Judge([Part(right), Part(shaping, outcome=False)]).score_group(prompt(), samples("a", "b", "c", "d"))
    assert group.outcomes == (0.0, 0.0, 0.0, 0.0)
    assert group.rewards == (0.0, 0.12, 0.3, 0.05)
    assert group.parts == {"right": (0.0,) * 4, "shaping": (0.0, 0.12, 0.3, 0.05)}


def test_partial_credit_is_reward_and_no_outcome() -> None:
    graded = table("graded", {"a": 0.0, "b": 0.12, "c": 0.3, "d": 0.05, "e": 0.999, "f": 1.0, "g": 2.5})
    group = Judge([Part(graded)]).score_group(prompt(), samples("a", "b", "c", "d"))
    assert group.rewards == (0.0, 0.12, 0.3, 0.05)
    assert group.outcomes == (0.0, 0.0, 0.0, 0.0)
    assert not has_signal(group.outcomes)
    assert Judge([Part(graded, 0.5)]).score_group(prompt(), samples("d", "e", "f", "g")).outcomes == (0.0, 0.0, 1.0, 1.0)


def test_the_outcome_of_several_functions_is_the_share_that_says_right_whatever_their_weights() -> None:
    first, second = table("a", {"x": 1.0, "y": 1.0, "z": 0.5}), table("b", {"x": 1.0, "y": 0.0, "z": None})
    group = Judge([Part(first, 3.0), Part(second, 0.0)]).score_group(prompt(), samples("x", "y", "z"))
    assert group.rewards == (3.0, 3.0, 1.5)
    assert group.outcomes == (1.0, 0.5, 0.0)


def test_a_function_that_does_not_apply_leaves_the_sum() -> None:
    judge = Judge([Part(table("a", {"x": 1.0, "y": None})), Part(table("b", {"x": None, "y": 2.0}))])
    group = judge.score_group(prompt(), samples("x", "y"))
    assert group.rewards == (1.0, 2.0)
    assert group.parts == {"a": (1.0, None), "b": (None, 2.0)}


def test_a_trajectory_to_which_nothing_applies_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"no reward function applies to row 7 of sums \(group 5, sample 1\)"):
        Judge([Part(table("a", {"x": 1.0, "y": None}))]).score_group(prompt(), samples("x", "y"))
    with pytest.raises(RewardError, match="no outcome function applies"):
        Judge([Part(table("a", {"x": None})), Part(table("b", {"x": 1.0}), outcome=False)]).score_group(prompt(), samples("x"))


def test_one_of_twelve_functions_that_raises_is_an_error_and_never_a_share_of_the_others() -> None:
    parts = [Part(ComputedReward(lambda _, t: 1.0, f"check{i}")) for i in range(11)]
    parts.insert(6, Part(ComputedReward(lambda _, t: 1 / 0, "broken")))
    with pytest.raises(RewardError, match="reward broken raised ZeroDivisionError on row 7"):
        Judge(parts).score_group(prompt(), samples("x", "y"))


def test_a_group_comes_out_in_order_of_sample() -> None:
    trajectories = samples("a", "b", "c")
    judge = Judge([Part(ComputedReward(lambda _, t: float(t.sample)))])
    group = judge.score_group(prompt(), [trajectories[2], trajectories[0], trajectories[1]])
    assert [t.sample for t in group.trajectories] == [0, 1, 2]
    assert group.rewards == (0.0, 1.0, 2.0)


def test_two_rows_with_one_question_are_judged_by_their_own_gold() -> None:
    judge = load_judge([RewardConfig()])
    texts = ("4", "4", "5", "6")
    assert judge.score_group(prompt("4"), samples(*texts)).rewards == (1.0, 1.0, 0.0, 0.0)
    assert judge.score_group(prompt("6"), samples(*texts, group=6)).rewards == (0.0, 0.0, 0.0, 1.0)


def test_empty_completions_score_zero_and_stay_in_their_group() -> None:
    group = load_judge([RewardConfig()]).score_group(prompt(), samples("4", "", "4", "4"))
    assert group.rewards == (1.0, 0.0, 1.0, 1.0)
    assert group.scores["numeric"][1].reason == "no answer"
    assert load_judge([RewardConfig()]).score_group(prompt(), samples("", "", "", "")).rewards == (0.0,) * 4


def test_permuted_rewards_are_the_same_rewards_elsewhere_within_the_group() -> None:
    reward = ComputedReward(lambda _, t: float(t.sample))
    plain, control = Judge([Part(reward)]), Judge([Part(reward)], permute_seed=3)
    moved = 0
    for number in range(20):
        trajectories = samples(*"abcdefgh", group=number)
        group = control.score_group(prompt(), trajectories)
        assert sorted(group.rewards) == sorted(plain.score_group(prompt(), trajectories).rewards)
        assert group.outcomes == tuple(float(reward >= 1.0) for reward in group.rewards), "permuted alike"
        assert group.parts == {"computed": tuple(map(float, range(8)))}
        assert group == control.score_group(prompt(), trajectories)
        moved += sum(value != i for i, value in enumerate(group.rewards))
    assert 100 < moved < 160


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one with outcome"),
        ([Part(ConstantReward(), outcome=False)], "at least one with outcome"),
        ([Part(ConstantReward()), Part(ConstantReward(0.0))], "constant occurs more than once"),
        ([Part(ConstantReward(), float("nan"))], "weight = nan is not finite"),
    ],
)
def test_a_judge_without_meaning_is_refused(parts: list[Part], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Judge(parts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "numeric", "arguments": {"markr": "A:"}}, "unknown arguments markr; numeric takes marker, which, percent"),
        ({"kind": "exact", "arguments": {"which": "last"}}, "unknown arguments which"),
        ({"kind": "numeric", "function": "m:f"}, "has no effect"),
        ({"kind": "function"}, "reward.function is missing"),
        ({"kind": "task"}, "no scorer of its own"),
        ({"kind": "numeric", "arguments": {"which": "any"}}, "one of last, first"),
    ],
)
def test_a_reward_that_cannot_be_built_is_a_configuration_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_judge([RewardConfig(**settings)])


def check(task: MemoryTask) -> None:
    load_judge([RewardConfig()]).check(task.prompt(position) for position in range(len(task)))


def test_bad_golds_are_found_before_anything_is_generated() -> None:
    task = MemoryTask([("1+1", "2"), ("name", "two"), ("2+2", None), ("3+3", "6")])
    with pytest.raises(RewardError, match=r"2 rows cannot be judged:\nrow 1 of memory, reward numeric: gold 'two' .*\nrow 2 .*gold_column"):
        check(task)
    check(MemoryTask([("1+1", "2")]))


def test_a_long_list_of_bad_golds_is_cut_and_counted() -> None:
    with pytest.raises(
        RewardError, match=r"15 rows cannot be judged(?s:.*)\.\.\. and 5 more\n.*'skip' leaves rows out whose gold has no reading$"
    ):
        check(MemoryTask([("q", f"x{i}") for i in "abcdefghijklmno"]))


def test_a_row_that_a_function_cannot_use_is_not_said_to_be_left_out_by_a_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def needs(completions, difficulty): return [1.0 for _ in completions]")
    judge = load_judge([RewardConfig(kind="function", function=f"{tmp_path}/mine.py:needs")])
    with pytest.raises(RewardError, match="requires difficulty") as refused:
        judge.check([MemoryTask([("1+1", "2")]).prompt(0)])
    assert "bad_rows" not in str(refused.value)


def test_what_is_wrong_with_many_rows_alike_is_said_once_with_the_rows() -> None:
    rows = r"row 0 of memory and rows 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more, reward numeric: gold 'x'.*\nrow 15 of memory and row 17, .*gold 'y'[^\n]*\nmend the rows or the reward; .*$"
    with pytest.raises(RewardError, match=f"^17 rows cannot be judged:\n{rows}"):
        check(MemoryTask([*[("q", "x")] * 15, ("q", "y"), ("q", "4"), ("q", "y")]))


def test_the_own_scorer_of_a_task_judges_what_stands_in_the_answer_tag() -> None:
    reward = TaskReward("task", lambda p, answer: float(answer == p.gold))
    scores = reward.score(
        [prompt()] * 5, samples("<answer>5</answer> <answer> 4 </answer>", "4", "", "<answer></answer>", "<answer>5</answer>")
    )
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [score.reason for score in scores] == ["", "no <answer> tag", "no answer", "no answer", "wrong"]


def test_of_several_answer_tags_the_last_that_is_closed_counts_and_finding_it_is_quick() -> None:
    reward = TaskReward("task", lambda p, answer: float(answer == p.gold))
    texts = ("<answer>5<answer>4</answer>", "<answer>4</answer><answer>5", "</answer>4<answer>", "<think><answer>4</answer></think>5")
    assert [score.value for score in reward.score([prompt()] * 4, samples(*texts))] == [1.0, 1.0, 0.0, 0.0]
    start = time.perf_counter()
    reward.score([prompt()], samples("<answer>" * 100_000))
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    ("settings", "text", "value", "reason"),
    [
        ({"answer": "number"}, "so it is **4**.", 1.0, ""),
        ({"answer": "number"}, "four", 0.0, "no number"),
        ({"answer": "text"}, " 4\n", 1.0, ""),
        ({"answer": "text", "marker": "A:"}, "A: 4\nmore", 1.0, ""),
        ({"answer": "text", "marker": "A:"}, "4", 0.0, "no marker"),
        ({"answer": "number", "marker": "A:"}, "5 A: 4", 1.0, ""),
    ],
)
def test_the_way_to_the_answer_can_be_chosen(settings: dict[str, Any], text: str, value: float, reason: str) -> None:
    reward = TaskReward("task", lambda p, answer: float(answer == p.gold), **settings)
    (score,) = reward.score([prompt()], samples(text))
    assert (score.value, score.reason) == (value, reason)


def test_a_marker_beside_tags_has_no_effect_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="no effect"):
        TaskReward("task", lambda p, answer: 0.0, marker="A:")


def test_a_scorer_that_fails_on_an_odd_answer_gives_a_counted_zero_but_a_broken_one_is_an_error() -> None:
    picky = TaskReward("task", lambda p, answer: float(int(answer) == 4), "text")
    (score,) = picky.score([prompt()], samples("four"))
    assert (score.value, score.parsed, score.reason) == (0.0, False, "scorer raised ValueError")
    broken = TaskReward("task", lambda p, answer: 1 / 0, "text")
    for gold in ("4", None):
        with pytest.raises(RewardError, match="the scorer raised ZeroDivisionError on row 7 of sums"):
            broken.score([prompt(gold)], samples("4"))
    with pytest.raises(RewardError, match="finite"):
        TaskReward("task", lambda p, answer: float("nan"), "text").score([prompt()], samples("4"))


def test_a_worker_body_scores_and_checks_and_names_plug_in_and_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def fails(completions, **_):\n    raise RuntimeError('no network')\n")
    good = create([RewardConfig(name="right").model_dump()])
    group = pickle.loads(pickle.dumps(good.call("score", prompt(), samples("4", "5"))))
    assert group.rewards == (1.0, 0.0)
    assert good.call("check", [prompt()]) is None
    with pytest.raises(RewardError, match="1 row cannot be judged"):
        good.call("check", [prompt("x")])
    with pytest.raises(RewardError, match="not 'scoer'"):
        good.call("scoer")
    assert good.tick() is None
    good.close()
    bad = create([RewardConfig(kind="function", function=f"{path}:fails").model_dump()])
    with pytest.raises(
        RewardError, match=r"reward fails raised RuntimeError on row 7 of sums \(group 5, samples 0-1\): no network"
    ) as caught:
        bad.call("score", prompt(), samples("4", "5"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    bad.close()


def test_a_worker_builds_the_task_scorer_from_its_name() -> None:
    config = TaskConfig(name="chain_sum", size=3, parameters={"min_terms": 2, "max_terms": 2})
    task = load(config, ByteTokenizer(), seed=0, max_prompt_tokens=500)
    body: JudgeBody = create(
        rewards=[RewardConfig(kind="task", arguments={"answer": "number"}).model_dump()],
        scorer="paceline.tasks.gym:scorer",
        scorer_arguments={"name": config.name, "parameters": config.parameters},
    )
    row = pickle.loads(pickle.dumps(task.prompt(0)))
    assert body.call("score", row, samples(f"It is {row.gold}", "It is 123456")).rewards == (1.0, 0.0)
