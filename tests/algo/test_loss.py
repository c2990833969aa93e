import math
from itertools import pairwise

import pytest
import torch

from paceline.algo import policy_loss

ONE = torch.ones(1, 1)


def single(ratio: float, advantage: float, **options: object) -> float:
    behaviour = torch.tensor([[-2.0]], dtype=torch.float64)
    return policy_loss(behaviour + math.log(ratio), behaviour, torch.tensor([advantage]), ONE, **options).loss.item()  # type: ignore[arg-type]


PAIRS = [(1.5, 1), (1.5, -1), (0.5, 1), (0.5, -1), (1.25, 1), (0.75, -1)]


@pytest.mark.parametrize(("pair", "right"), zip(PAIRS, [-1.28, 1.5, -0.5, 0.8, -1.25, 0.8], strict=True))
def test_each_side_is_clipped_by_its_own_bound(pair: tuple[float, float], right: float) -> None:
    assert single(*pair, clip_low=0.2, clip_high=0.28) == pytest.approx(right)


def test_with_equal_bounds_both_positive_cases_stop_at_one_point_two() -> None:
    assert [single(ratio, 1.0) for ratio in (1.5, 1.25)] == pytest.approx([-1.2, -1.2])


@pytest.mark.parametrize(("advantage", "dual", "right"), [(-1, 3.0, 3.0), (-1, None, 10.0), (1, 3.0, -1.28), (1, None, -1.28)])
def test_dual_clip_bounds_the_loss_of_negative_advantages_only(advantage: float, dual: float | None, right: float) -> None:
    assert single(10.0, advantage, clip_high=0.28, dual_clip=dual) == pytest.approx(right)


def test_clip_fractions_count_the_tokens_whose_gradient_the_clip_removed() -> None:
    ratios, values = (torch.tensor(column, dtype=torch.float64) for column in zip(*PAIRS, strict=True))
    metrics = policy_loss(ratios.log()[:, None], torch.zeros(6, 1), values, torch.ones(6, 1), clip_low=0.2, clip_high=0.28).metrics
    assert metrics["clip_ratio/high_mean"] == pytest.approx(1 / 6)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(2 / 6)
    assert metrics["clip_ratio/region_mean"] == pytest.approx(3 / 6)
    assert (metrics["ratio/min"], metrics["ratio/max"]) == pytest.approx((0.5, 1.5))
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r, _ in PAIRS) / 6)


LENGTHS, VALUES = [1, 3, 4], [-2.0, -1.0, -0.5]  # at ratio 1 the loss per token is 2.0, 1.0, 0.5


def of(chosen: list[int], denominator: float | None, aggregation: str, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of some of the three sequences of the case, and its gradient by sequence (one number each), padded to `width`."""
    lengths = torch.tensor([LENGTHS[i] for i in chosen])
    mask = torch.arange(width) < lengths[:, None]
    logp = torch.zeros(len(chosen), width, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([VALUES[i] for i in chosen], dtype=torch.float64)
    loss = policy_loss(
        logp, torch.zeros_like(logp), advantages, mask, aggregation=aggregation, constant_length=4, denominator=denominator
    ).loss
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient.sum(1)


@pytest.mark.parametrize(("aggregation", "right", "denominator"), [("token", 0.875, 8), ("sequence", 3.5 / 3, 3), ("constant", 7 / 12, 12)])
def test_the_aggregated_loss_is_the_same_for_every_split_into_micro_batches(aggregation: str, right: float, denominator: int) -> None:
    whole, gradient = of([0, 1, 2], None, aggregation)
    assert whole.item() == pytest.approx(right)
    for split in ([[0], [1, 2]], [[0, 1], [2]], [[0], [1], [2]], [[2], [0], [1]]):
        parts = [of(part, denominator, aggregation) for part in split]
        assert sum(loss.item() for loss, _ in parts) == pytest.approx(right, abs=1e-12)
        rejoined = torch.zeros(3, dtype=torch.float64)
        for part, (_, piece) in zip(split, parts, strict=True):
            rejoined[part] = piece
        torch.testing.assert_close(rejoined, gradient, atol=1e-12, rtol=0)


def test_at_ratio_one_the_loss_need_not_be_zero_under_the_token_mean() -> None:
    mask = torch.arange(8) < torch.tensor([[2], [8]])
    logp, values = torch.zeros(2, 8), torch.tensor([1.0, -1.0])
    assert policy_loss(logp, logp, values, mask, aggregation="sequence").loss.item() == 0.0
    assert policy_loss(logp, logp, values, mask, aggregation="token").loss.item() == pytest.approx(0.6)


def test_a_group_without_signal_feels_only_the_kl_term_and_nothing_when_that_is_masked() -> None:
    def run(**options: object) -> tuple[float, float]:
        logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
        reference = torch.tensor([[-1.5]], dtype=torch.float64)
        loss, metrics = policy_loss(logp, logp.detach(), torch.zeros(1), ONE, kl="k3", kl_weight=0.04, reference_logp=reference, **options)  # type: ignore[arg-type]
        loss.backward()
        assert metrics["kl"] == pytest.approx(0.106531, abs=1e-6)
        return loss.item(), logp.grad.item()

    assert run() == pytest.approx((0.04 * 0.106531, 0.015739), abs=1e-6)
    assert run(kl_sequences=torch.tensor([False])) == (0.0, 0.0)


def test_without_kl_a_zero_advantage_gives_exactly_no_gradient() -> None:
    logp = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    policy_loss(logp, logp.detach() - 0.3, torch.zeros(2), torch.ones(2, 3)).loss.backward()
    assert logp.grad is not None
    assert (logp.grad == 0).all()


def test_a_hundred_columns_of_padding_change_nothing_even_when_they_hold_rubbish() -> None:
    generator = torch.Generator().manual_seed(1)
    logp, behaviour, reference = (-torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(5) < torch.tensor([[5], [2], [0]])
    values = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)

    def run(rubbish: float | None) -> tuple[float, torch.Tensor]:
        tensors = [logp, behaviour, reference]
        keep = mask
        if rubbish is not None:
            tensors = [torch.cat([t.where(mask, rubbish), torch.full((3, 100), rubbish, dtype=torch.float64)], 1) for t in tensors]
            keep = torch.cat([mask, torch.zeros(3, 100, dtype=torch.bool)], 1)
        leaf = tensors[0].detach().requires_grad_()
        loss = policy_loss(leaf, tensors[1], values, keep, kl="k3", kl_weight=0.5, reference_logp=tensors[2], aggregation="sequence").loss
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient[:, :5]

    plain, gradient = run(None)
    for rubbish in (0.0, -1e30, math.nan, math.inf):
        loss, padded = run(rubbish)
        assert loss == plain
        torch.testing.assert_close(padded, gradient, atol=0, rtol=0)


def test_with_constant_reward_the_kl_term_pulls_the_policy_back_step_by_step() -> None:
    reference = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
    for kind in ("k1", "k2", "k3"):
        logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
        seen = []
        for _ in range(20):
            logp = logits.log_softmax(0)
            probabilities = logp.detach().exp()
            seen.append((probabilities * (logp.detach() - reference)).sum().item())
            # Every token once, weighted by its probability: the exact expectation, without noise.
            parts = [
                policy_loss(
                    logp[t].view(1, 1),
                    logp[t].detach().view(1, 1),
                    torch.zeros(1),
                    ONE,
                    kl=kind,
                    kl_weight=1.0,
                    reference_logp=reference[t].view(1, 1),
                ).loss
                * probabilities[t]
                for t in range(3)
            ]
            (gradient,) = torch.autograd.grad(torch.stack(parts).sum(), logits)
            with torch.no_grad():
                logits -= 0.5 * gradient
        assert all(later < earlier for earlier, later in pairwise(seen)), kind
        assert seen[-1] < 0.05 * seen[0]


def test_packed_tokens_give_the_same_as_padded_ones() -> None:
    generator = torch.Generator().manual_seed(2)
    logp, behaviour, reference = (-torch.rand(3, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(6) < torch.tensor([[6], [1], [3]])
    values = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    segments = torch.arange(3)[:, None].expand(3, 6)[mask]
    for ratio in ("token", "sequence"):
        for aggregation in ("token", "sequence", "constant"):
            options = dict(ratio=ratio, aggregation=aggregation, constant_length=6, kl="k3", kl_weight=0.1, dual_clip=2.0)
            padded = policy_loss(logp, behaviour, values, mask, reference_logp=reference, **options)
            packed = policy_loss(
                logp[mask], behaviour[mask], values, torch.ones(10), segments=segments, reference_logp=reference[mask], **options
            )
            by_token = policy_loss(logp, behaviour, values[:, None].expand(3, 6), mask, reference_logp=reference, **options)
            assert padded.loss.item() == pytest.approx(packed.loss.item(), abs=1e-14)
            assert padded.loss.item() == pytest.approx(by_token.loss.item(), abs=1e-14)
            assert padded.metrics == pytest.approx(packed.metrics)


def test_the_sequence_ratio_is_the_geometric_mean_of_the_token_ratios() -> None:
    logp = torch.tensor([[0.3, -0.1, 0.4]], dtype=torch.float64).requires_grad_()
    loss, metrics = policy_loss(
        logp, torch.zeros_like(logp), torch.tensor([-1.0]), torch.ones(1, 3), ratio="sequence", aggregation="sequence"
    )
    assert loss.item() == pytest.approx(math.exp(0.2))
    assert metrics["ratio/max"] == pytest.approx(math.exp(0.2))
    (gradient,) = torch.autograd.grad(loss, logp)
    assert gradient.tolist()[0] == pytest.approx([math.exp(0.2) / 3] * 3)


def test_nothing_in_the_mask_gives_a_finite_zero() -> None:
    logp = torch.zeros(2, 3, requires_grad=True)
    for aggregation in ("token", "sequence", "constant"):
        loss, metrics = policy_loss(logp, logp.detach(), torch.ones(2), torch.zeros(2, 3), aggregation=aggregation, constant_length=3)
        assert loss.item() == 0.0
        assert all(math.isfinite(value) for value in metrics.values())
    empty = policy_loss(torch.zeros(2, 0), torch.zeros(2, 0), torch.ones(2), torch.zeros(2, 0))
    assert empty.loss.item() == 0.0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"dual_clip": 1.0}, "dual_clip must be > 1"),
        ({"dual_clip": 0.5}, "dual_clip must be > 1"),
        ({"dual_clip": math.nan}, "dual_clip must be > 1"),
        ({"clip_low": 1.5}, "got 1.5"),
        ({"clip_low": -0.1}, "clip_low must be between 0 and 1 .*got -0.1"),
        ({"clip_high": -0.1}, "clip_high must be >= 0, got -0.1"),
        ({"aggregation": "mean"}, "got 'mean'"),
        ({"aggregation": "constant"}, "constant_length > 0, got None"),
        ({"ratio": "group"}, "ratio must be token or sequence"),
        ({"kl": "k4"}, "kl must be none, k1, k2 or k3"),
        ({"kl": "k3", "kl_weight": -1.0}, "kl_weight must be >= 0"),
        ({"kl_weight": 0.1}, "no effect with kl none"),
        ({"kl": "k3", "kl_weight": 0.1}, "needs reference_logp"),
    ],
)
def test_senseless_options_are_refused_with_value_and_rule(options: dict, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        policy_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), ONE, **options)


def test_shapes_that_do_not_fit_are_refused() -> None:
    flat, padded = torch.zeros(4), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="packed"):
        policy_loss(flat, flat, torch.zeros(2), torch.ones(4))
    with pytest.raises(ValueError, match="must agree"):
        policy_loss(padded, padded, torch.zeros(2), torch.ones(2, 3))
    with pytest.raises(ValueError, match="one value per sequence"):
        policy_loss(padded, padded, torch.zeros(3), torch.ones(2, 2))
    with pytest.raises(ValueError, match="one value per sequence"):
        policy_loss(flat, flat, torch.zeros(2), torch.ones(4), segments=torch.tensor([0, 1, 2, 2]))
    with pytest.raises(ValueError, match="both be"):
        policy_loss(padded, padded, torch.zeros(2), torch.ones(2, 2), segments=torch.tensor([0, 1]))
