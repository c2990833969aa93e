"""What every Reward must do, fake and real alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from paceline.ports.data import Reward
from paceline.ports.fakes.data import ComputedReward, ConstantReward
from paceline.rewards.answers import Verifier
from paceline.rewards.functions import FunctionReward
from paceline.rewards.verifiers import TaskReward, VerifierReward
from paceline.types.errors import RewardError
from paceline.types.records import Prompt, Trajectory

IDS = np.arange(2, dtype=np.int32)


def right(prompt: Prompt, answer: str) -> float:
    return float(answer == prompt.gold)


def column(completions: list[str], gold: list[str]) -> list[float]:
    return [float(c == g) for c, g in zip(completions, gold, strict=True)]


async def awaited(completions: list[str], gold: list[str]) -> list[float]:
    return column(completions, gold)


REWARDS: dict[str, Reward] = {
    "constant": ConstantReward(0.0, by_text={"4": 1.0}),
    "computed": ComputedReward(lambda p, t: right(p, t.text)),
    "numeric": VerifierReward("numeric", Verifier("numeric")),
    "exact": VerifierReward("exact", Verifier("exact")),
    "task": TaskReward("task", right, "text"),
    "function": FunctionReward(column),
    "async": FunctionReward(awaited),
}
BROKEN: dict[str, Reward] = {
    "computed": ComputedReward(lambda p, t: 1 / 0),
    "numeric": VerifierReward("numeric", Verifier("numeric", marker=None)),
    "task": TaskReward("task", lambda p, answer: 1 / 0, "text"),
    "function": FunctionReward(lambda completions: [1 / 0]),
}


@pytest.fixture(params=REWARDS)
def reward(request: pytest.FixtureRequest) -> Reward:
    return REWARDS[request.param]


def pairs(*texts: str, gold: str = "4") -> tuple[list[Prompt], list[Trajectory]]:
    return (
        [Prompt(i, 40 + i, IDS, "2+2?", gold, {}, "sums") for i in range(len(texts))],
        [Trajectory(i, 0, 0, IDS, IDS, {}, "eos", text) for i, text in enumerate(texts)],
    )


def test_there_is_one_score_per_pair_in_order(reward: Reward) -> None:
    scores = reward.score(*pairs("4", "5", "", "4"))
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0]


def test_no_pairs_give_no_scores(reward: Reward) -> None:
    assert list(reward.score([], [])) == []


def test_values_are_finite_floats_or_none(reward: Reward) -> None:
    for score in reward.score(*pairs("4", "nan", "inf", "x" * 1000)):
        assert score.value is None or (type(score.value) is float and math.isfinite(score.value))


def test_a_reward_has_a_name(reward: Reward) -> None:
    assert reward.name.strip()


@pytest.mark.parametrize("broken", BROKEN)
def test_an_error_names_reward_and_row_and_is_never_a_zero(broken: str) -> None:
    make: Callable[[], object] = lambda: BROKEN[broken].score(*pairs("4", gold="four"))  # noqa: E731
    with pytest.raises(RewardError, match=rf"{BROKEN[broken].name}.*row 40"):
        make()
