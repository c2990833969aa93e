import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.algo import advantages, has_signal

GROUPS = [[1.0, 1.0, 2.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
RIGHT = {
    ("group_std", "population"): [[-0.7071, -0.7071, 1.4142], [1.7321, *[-0.5774] * 3], [*[0.5774] * 3, -1.7321], [1, 1, -1, -1]],
    ("group_std", "sample"): [[-0.5774, -0.5774, 1.1547], [1.5, *[-0.5] * 3], [*[0.5] * 3, -1.5], [0.8660, 0.8660, -0.8660, -0.8660]],
    ("group_mean", "sample"): [[-1 / 3, -1 / 3, 2 / 3], [0.75, *[-0.25] * 3], [*[0.25] * 3, -0.75], [0.5, 0.5, -0.5, -0.5]],
}


@pytest.mark.parametrize(("kind", "std"), RIGHT)
def test_each_estimator_gives_the_values_worked_out_by_hand(kind: str, std: str) -> None:
    for got, right in zip(advantages(GROUPS, kind=kind, std=std, eps=0.0), RIGHT[kind, std], strict=True):
        torch.testing.assert_close(got, torch.tensor(right, dtype=torch.float64), atol=5e-5, rtol=0)


def test_the_default_divides_by_the_sample_deviation_plus_one_ten_thousandth() -> None:
    (got,) = advantages([[1.0, 0.0, 0.0, 0.0]])
    assert got[0].item() == pytest.approx(0.75 / 0.5001, abs=1e-12)


def test_the_deviation_of_the_batch_is_taken_over_all_rewards_and_the_mean_over_the_group() -> None:
    got = advantages([[1.0, 0.0], [3.0, 2.0]], kind="batch_std", std="population", eps=0.0)
    scale = math.sqrt(1.25)  # of 1, 0, 3, 2 around 1.5
    torch.testing.assert_close(torch.cat(got), torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64) / scale)


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "batch_std"])
@pytest.mark.parametrize(
    "equal", [[1.0] * 4, [0.1] * 3, [0.7] * 7, [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [-5.0 + 5.0, 5.0 - 5.0], [1e9 / 3] * 6]
)
@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_a_group_with_equal_rewards_gets_exactly_zero_advantage(kind: str, equal: list[float], eps: float) -> None:
    zero, other = advantages([equal, [0.0, 1.0, 0.0, 1.0]], kind=kind, eps=eps)
    assert zero.tolist() == [0.0] * len(equal)
    assert other.abs().min() > 0


def test_parts_that_cancel_leave_no_advantage_and_a_weight_brings_it_back() -> None:
    first, second = [5.0, -5.0], [-5.0, 5.0]
    totals = [[a + b for a, b in zip(first, second, strict=True)], [2 * a + b for a, b in zip(first, second, strict=True)]]
    cancelled, weighted = advantages(totals, std="population", eps=0.0)
    assert totals == [[0.0, 0.0], [5.0, -5.0]]
    assert cancelled.tolist() == [0.0, 0.0]
    assert weighted.tolist() == [1.0, -1.0]


def test_groups_are_told_apart_by_position_so_equal_prompts_never_merge() -> None:
    first, second = advantages([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], std="population", eps=0.0)
    assert first.tolist() == [1.0, 1.0, -1.0, -1.0]
    torch.testing.assert_close(second, torch.tensor([*[-0.5774] * 3, 1.7321], dtype=torch.float64), atol=5e-5, rtol=0)


def test_a_tensor_gives_a_tensor_and_ragged_groups_a_list() -> None:
    tensor = advantages(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert tensor.shape == (2, 2)
    assert tensor.dtype == torch.float32
    assert [len(group) for group in advantages([[1.0, 0.0, 0.5], [1.0], [0.0, 1.0]])] == [3, 1, 2]
    assert advantages([[1.0]])[0].tolist() == [0.0]


@given(
    rewards=st.lists(st.integers(-8, 8), min_size=2, max_size=8),
    shift=st.integers(-1000, 1000),
    std=st.sampled_from(["sample", "population"]),
    kind=st.sampled_from(["group_std", "group_mean"]),
)
def test_a_constant_added_to_a_group_changes_nothing_and_advantages_sum_to_zero(
    rewards: list[int], shift: int, std: str, kind: str
) -> None:
    plain, moved = (advantages([values], kind=kind, std=std)[0] for values in (rewards, [r + shift for r in rewards]))
    torch.testing.assert_close(plain, moved, atol=1e-9, rtol=0)
    assert abs(plain.sum().item()) < 1e-9


def test_one_and_zero_teach_the_same_as_one_and_minus_one() -> None:
    torch.testing.assert_close(*(advantages([group], eps=0.0)[0] for group in ([1.0, 0.0], [1.0, -1.0])))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"kind": "mean"}, "group_std, group_mean or batch_std"),
        ({"std": "n"}, "sample or population"),
        ({"eps": -1.0}, "std_eps must be >= 0, got -1.0"),
        ({"eps": math.nan}, "std_eps"),
    ],
)
def test_senseless_options_are_refused_with_value_and_rule(arguments: dict, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        advantages([[0.0, 1.0]], **arguments)


def test_rewards_that_are_not_finite_and_empty_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages([[0.0, math.nan]])
    with pytest.raises(ValueError, match="without samples"):
        advantages([[]])
    with pytest.raises(ValueError, match="groups, samples"):
        advantages(torch.zeros(3))


def test_the_filter_judges_raw_outcomes_so_shaping_cannot_rescue_an_all_wrong_group() -> None:
    outcomes, shaped = [0.0] * 4, [0.0, 0.12, 0.30, 0.05]
    assert not has_signal(outcomes)
    assert has_signal(shaped), "the same filter on shaped rewards would let the group pass"
    assert not has_signal([1.0] * 8)
    assert has_signal([0.0, 1.0])
    assert not has_signal([1.0])
    assert not has_signal([])
