"""Reward functions written for other frameworks, called as those call them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.schema import RewardConfig
from paceline.rewards import load_judge
from paceline.rewards.functions import FunctionReward
from paceline.rewards.signatures import Name
from paceline.types.errors import RewardError
from paceline.types.records import Prompt, Trajectory

IDS = np.arange(3, dtype=np.int32)


def prompt(**columns: Any) -> Prompt:
    return Prompt(9, 7, IDS, "2+2?", "4", {"level": 3, **columns}, "sums")


def samples(*texts: str) -> list[Trajectory]:
    return [Trajectory(5, i, 0, IDS, np.arange(len(text), dtype=np.int32), {}, "eos", text) for i, text in enumerate(texts)]


def values(function: Callable[..., Any], signature: Name, *texts: str, row: Prompt | None = None, **settings: Any) -> list[float | None]:
    reward = FunctionReward(function, name="mine", signature=signature, **settings)
    return [score.value for score in reward.score([row or prompt()] * len(texts), samples(*texts))]


# --- verl


def test_verl_gets_one_answer_with_its_gold_and_the_row_by_keyword() -> None:
    seen: list[dict[str, Any]] = []

    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        seen.append({"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth, "extra_info": extra_info})
        return float(solution_str == ground_truth)

    assert values(compute_score, "verl", "4", "5") == [1.0, 0.0]
    assert seen[1] == {"data_source": "sums", "solution_str": "5", "ground_truth": "4", "extra_info": {"level": 3}}
    values(compute_score, "verl", "4", row=prompt(data_source="openai/gsm8k", extra_info={"split": "train"}))
    assert (seen[-1]["data_source"], seen[-1]["extra_info"]) == ("openai/gsm8k", {"split": "train"})
    values(compute_score, "verl", "4", row=prompt(extra_info=None))
    assert seen[-1]["extra_info"] == {"level": 3, "extra_info": None}, "a null is no information"
    for empty in ("", None):
        values(compute_score, "verl", "4", row=prompt(data_source=empty))
        assert seen[-1]["data_source"] == "sums", "a column without a value is no source"


def test_a_dict_of_verl_gives_its_score_and_arguments_reach_the_function() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, scale: float = 1.0) -> dict[str, Any]:
        return {"score": scale * len(solution_str), "acc": False}

    assert values(compute_score, "verl", "ab", "c", arguments={"scale": 0.5}) == [1.0, 0.5]


def test_an_async_function_of_verl_runs_for_all_answers_at_the_same_time_and_values_stay_in_order() -> None:
    all_three = asyncio.Barrier(3)

    async def compute_score(solution_str: str, **_: Any) -> float:
        await asyncio.wait_for(all_three.wait(), 20)
        await asyncio.sleep(float(solution_str))
        return float(solution_str)

    assert values(compute_score, "verl", "0.3", "0.1", "0.2") == [0.3, 0.1, 0.2]


# --- OpenRLHF


def test_openrlhf_gets_lists_by_position_and_a_query_begins_with_its_prompt() -> None:
    def reward_func(texts: list[str], questions: list[str], golds: list[str]) -> Any:
        return torch.tensor([float(t[len(q) :] == g) for t, q, g in zip(texts, questions, golds, strict=True)])

    assert values(reward_func, "openrlhf", "4", "5") == [1.0, 0.0]


@pytest.mark.parametrize(
    "returned",
    [
        {"rewards": torch.tensor([1.0, 0.5]), "scores": torch.tensor([0.0, 0.0]), "extra_logs": {}},
        {"rewards": torch.tensor([[1.0], [0.5]])},
        np.array([1.0, 0.5]),
        [1.0, 0.5],
    ],
)
def test_openrlhf_may_return_a_dict_a_tensor_an_array_or_a_list(returned: Any) -> None:
    assert values(lambda queries, prompts, labels: returned, "openrlhf", "4", "5") == [1.0, 0.5]


# --- AReaL


def test_areal_gets_one_answer_by_position_with_ids_and_the_row_by_keyword() -> None:
    seen: dict[str, Any] = {}

    def reward_fn(prompt: str, completion: str, prompt_ids: list[int], completion_ids: list[int], gold: str, **data: Any) -> float:
        seen.update(data, prompt=prompt, prompt_ids=prompt_ids, completion_ids=completion_ids)
        return float(completion == gold)

    assert values(reward_fn, "areal", "4", "55") == [1.0, 0.0]
    assert seen == {"level": 3, "prompt": "2+2?", "prompt_ids": [0, 1, 2], "completion_ids": [0, 1]}


def test_areal_gets_the_messages_of_a_conversational_row() -> None:
    def reward_fn(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any) -> float:
        return float(data["messages"] == [{"role": "user", "content": "2+2?"}])

    row = Prompt(9, 7, IDS, "2+2?", "4", {"level": 3}, "sums", ({"role": "user", "content": "2+2?"},))
    assert values(reward_fn, "areal", "4", row=row) == [1.0]


# --- what goes wrong


def broken(result: Any) -> Callable[..., Any]:
    return lambda *positional, **keywords: result


async def one(*_: Any, **__: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("signature", "function", "message"),
    [
        ("verl", broken(float("nan")), r"reward mine gave nan on row 7 of sums \(group 5, sample 0\)"),
        ("verl", broken({"acc": 1.0}), r"reward mine gave dict on row 7 of sums \(group 5, sample 0\)"),
        ("verl", broken([1.0]), r"reward mine gave list on row 7"),
        ("verl", lambda solution_str, **_: 1 / len(solution_str), r"reward mine raised ZeroDivisionError on row 7 of sums \(group 5, sample 1\)"),
        ("areal", broken("right"), r"reward mine gave str on row 7"),
        ("areal", lambda *_, **__: {"score": 1.0}, r"reward mine gave dict on row 7"),
        ("openrlhf", broken([1.0]), "reward mine returned 1 values for 2 completions on row 7"),
        ("openrlhf", broken(1.0), "reward mine returned float on row 7"),
        ("openrlhf", broken({"scores": [1.0, 1.0]}), "reward mine returned dict on row 7"),
        ("openrlhf", lambda *_: [one(), 1.0], r"reward mine gave coroutine on row 7 of sums \(group 5, sample 0\)"),
    ],
)  # fmt: skip
def test_a_wrong_result_is_an_error_naming_function_row_and_sample(signature: Name, function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        values(function, signature, "4", "")


def test_an_async_function_that_raises_for_one_answer_is_an_error_naming_that_answer() -> None:
    async def compute_score(solution_str: str, **_: Any) -> float:
        return 1 / len(solution_str)

    with pytest.raises(RewardError, match=r"reward mine raised ZeroDivisionError on row 7 of sums \(group 5, sample 1\)"):
        values(compute_score, "verl", "4", "")


def test_a_function_that_requires_what_its_convention_does_not_offer_is_refused_by_name() -> None:
    def compute_score(solution_str: str, sandbox_url: str) -> float:
        return 0.0

    with pytest.raises(RewardError, match="requires sandbox_url; a row offers data_source, extra_info, ground_truth, solution_str"):
        FunctionReward(compute_score, signature="verl").check(prompt())


def test_a_function_of_another_convention_is_answered_with_its_name() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        return 0.0

    with pytest.raises(RewardError, match=r"requires data_source, solution_str, ground_truth; .*is it written for signature = 'verl'\?"):
        FunctionReward(compute_score).check(prompt())


def test_the_signature_is_a_setting_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return solution_str == ground_truth\n"
    )
    judge = load_judge([RewardConfig(kind="function", function=f"{path}:compute_score", signature="verl")])
    group = judge.score_group(prompt(), samples("4", "5"))
    assert group.parts == {"compute_score": (1.0, 0.0)}
