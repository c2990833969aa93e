"""Weights of learner against behaviour: values by hand in float64, gradients against a plain loop, and splits that change nothing."""

import math
from itertools import product

import pytest
import torch

from paceline.algo import Correction, policy_loss
from paceline.algo.correction import correct, effective_share

# Two sequences. Ratios learner / behaviour per token: 4, 0.25, 1.5 (product 1.5, geometric 1.1447) and 3, 2 (6, 2.4495).
RATIOS = [4.0, 0.25, 1.5, 3.0, 2.0]
SEGMENTS = torch.tensor([0, 0, 0, 1, 1])
VALUES = torch.tensor([1.0, -0.5], dtype=torch.float64)
KINDS, LEVELS = ("truncate", "mask", "reject"), ("token", "sequence", "geometric")
ROOTS = (1.5 ** (1 / 3), 6**0.5)


def case() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the learner [5], a leaf, and of behaviour."""
    logp = torch.tensor([-1.0, -2.5, -0.3, -1.2, -0.7], dtype=torch.float64, requires_grad=True)
    return logp, logp.detach() - torch.tensor(RATIOS, dtype=torch.float64).log()


def gradient(correction: Correction | None, **options: object) -> list[float]:
    """d loss / d logp of each token, raw sums."""
    logp, behaviour = case()
    mask = torch.ones(5, dtype=torch.bool)
    loss = policy_loss(logp, behaviour, VALUES, mask, segments=SEGMENTS, denominator=1, correction=correction, **options).loss  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(loss, logp)
    return found.tolist()


BY_HAND = {
    ("truncate", "token"): [2.0, 0.25, 1.5, 2.0, 2.0],
    ("truncate", "sequence"): [1.5, 1.5, 1.5, 2.0, 2.0],
    ("truncate", "geometric"): [ROOTS[0]] * 3 + [2.0] * 2,
    ("mask", "token"): [0.0, 0.0, 1.5, 0.0, 2.0],
    ("mask", "sequence"): [1.5, 1.5, 1.5, 0.0, 0.0],
    ("mask", "geometric"): [ROOTS[0]] * 3 + [0.0] * 2,
    ("reject", "token"): [0.0, 0.0, 1.0, 0.0, 1.0],
    ("reject", "sequence"): [1.0, 1.0, 1.0, 0.0, 0.0],
    ("reject", "geometric"): [1.0, 1.0, 1.0, 0.0, 0.0],
}


@pytest.mark.parametrize(("kind", "level"), BY_HAND, ids=str)
def test_weights_are_those_worked_out_by_hand(kind: str, level: str) -> None:
    high = 2.0 + 1e-12  # the last ratio is exactly 2 up to rounding, and belongs inside
    correction = Correction(kind, level, 0.5, high)  # type: ignore[arg-type]
    right = BY_HAND[kind, level]
    # Without reject the gradient of a token is -A x weight, whatever its ratio; with it the ratio stays in the surrogate.
    scale = RATIOS if kind == "reject" else [1.0] * 5
    expected = [-float(VALUES[s]) * w * r for s, w, r in zip(SEGMENTS, right, scale, strict=True)]
    assert gradient(correction, clip_high=9.0, clip_low=1.0) == pytest.approx(expected, abs=1e-11)


def test_bounds_themselves_are_inside() -> None:
    log_weight = torch.tensor([0.5, 2.0, 0.4999, 2.0001], dtype=torch.float64).log()
    factor, metrics = correct(log_weight, Correction("mask", "token", 0.5, 2.0))
    assert factor.tolist() == pytest.approx([0.5, 2.0, 0.0, 0.0])
    assert metrics["correction/masked"] == 0.5


def test_without_a_lower_bound_the_smallest_weights_still_train() -> None:
    factor, _ = correct(torch.tensor([-200.0, -1.0, 3.0]), Correction("reject", "token", 0.0, 2.0))
    assert factor.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(("kind", "level"), product(KINDS, LEVELS), ids=str)
def test_on_policy_every_correction_gives_the_gradient_without_one(kind: str, level: str) -> None:
    logp = torch.tensor([-1.0, -2.5, -0.3, -1.2, -0.7], dtype=torch.float64, requires_grad=True)

    def run(correction: Correction | None) -> torch.Tensor:
        loss = policy_loss(
            logp, logp.detach(), VALUES, torch.ones(5), segments=SEGMENTS, aggregation="sequence", correction=correction
        ).loss
        return torch.autograd.grad(loss, logp)[0]

    torch.testing.assert_close(run(Correction(kind, level)), run(None), atol=0, rtol=0)  # type: ignore[arg-type]


def plain(
    kind: str, level: str, aggregation: str, lengths: list[int], logp: torch.Tensor, behaviour: torch.Tensor, values: list[float]
) -> torch.Tensor:
    """The loss, token by token, weights as plain numbers."""
    total, start = torch.zeros((), dtype=torch.float64), 0
    for length, value in zip(lengths, values, strict=True):
        logs = [float(logp[start + i].detach() - behaviour[start + i]) for i in range(length)]
        for i in range(length):
            ratio_log = {"token": logs[i], "sequence": sum(logs), "geometric": sum(logs) / length}[level]
            weight = math.exp(ratio_log)
            inside = 0.5 <= weight <= 2.0
            if kind == "reject":
                ratio = (logp[start + i] - behaviour[start + i]).exp()
                term = -torch.minimum(ratio * value, ratio.clamp(0.8, 1.2) * value) * float(inside)
            else:
                weight = min(weight, 2.0) if kind == "truncate" else weight * inside
                term = -weight * value * (logp[start + i] - logp[start + i].detach()).exp()
            total = total + term / (length if aggregation == "sequence" else 1)
        start += length
    return total / (len(lengths) if aggregation == "sequence" else sum(lengths))


@pytest.mark.parametrize(("kind", "level", "aggregation"), product(KINDS, LEVELS, ("token", "sequence")), ids=str)
def test_loss_and_gradient_equal_a_plain_loop_and_no_split_changes_them(kind: str, level: str, aggregation: str) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths, values = [1, 4, 7, 2, 5], [1.0, -0.7, 0.3, -1.2, 0.4]
    count = sum(lengths)
    logp = (-torch.rand(count, generator=generator, dtype=torch.float64) * 3).requires_grad_()
    behaviour = logp.detach() + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    segments = torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))
    right = plain(kind, level, aggregation, lengths, logp, behaviour, values)
    (right_gradient,) = torch.autograd.grad(right, logp)
    divisor = 5 if aggregation == "sequence" else count

    def part(chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        keep = torch.isin(segments, torch.tensor(chosen))
        local = torch.searchsorted(torch.tensor(sorted(chosen)), segments[keep])
        loss = policy_loss(
            logp[keep],
            behaviour[keep],
            torch.tensor([values[i] for i in sorted(chosen)], dtype=torch.float64),
            torch.ones(int(keep.sum())),
            segments=local,
            aggregation=aggregation,  # type: ignore[arg-type]
            correction=Correction(kind, level),  # type: ignore[arg-type]
            denominator=divisor,
        ).loss
        return loss.detach(), torch.autograd.grad(loss, logp)[0]

    for split in ([[0, 1, 2, 3, 4]], [[0, 3], [1, 2, 4]], [[4], [2], [0], [1], [3]]):
        losses, gradients = zip(*(part(chosen) for chosen in split), strict=True)
        torch.testing.assert_close(torch.stack(losses).sum(), right.detach(), atol=1e-12, rtol=0)
        torch.testing.assert_close(torch.stack(gradients).sum(0), right_gradient, atol=1e-12, rtol=0)


def test_masked_tokens_stay_in_the_denominator() -> None:
    logp, behaviour = case()
    options = {"segments": SEGMENTS, "correction": Correction("mask", "sequence", 0.5, 2.0)}
    loss = policy_loss(logp, behaviour, VALUES, torch.ones(5), **options).loss  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(-1.5 * 3 / 5), "three tokens of weight 1.5 over all five"


def test_truncate_at_the_token_is_the_unclipped_ratio_where_nothing_is_truncated() -> None:
    """The weight times the gradient of the learner is that of the importance ratio: only the clip and the cap tell them apart."""
    assert gradient(Correction("truncate", "token", high=5.0)) == pytest.approx(gradient(None, clip_low=1.0, clip_high=9.0), abs=1e-12)


def test_truncate_and_mask_leave_nothing_to_the_clip() -> None:
    logp, behaviour = case()
    for kind in ("truncate", "mask"):
        correction = Correction(kind, "token")  # type: ignore[arg-type]
        assert gradient(correction, clip_low=0.0, clip_high=0.0) == gradient(correction, clip_low=1.0, clip_high=9.0)
        metrics = policy_loss(logp, behaviour, VALUES, torch.ones(5), segments=SEGMENTS, correction=correction).metrics
        assert metrics["clip_ratio/region_mean"] == 0


@pytest.mark.parametrize(("kind", "level"), BY_HAND, ids=str)
def test_ratios_and_clipped_shares_are_those_of_all_tokens_before_the_correction(kind: str, level: str) -> None:
    logp, behaviour = case()
    correction = Correction(kind, level)  # type: ignore[arg-type]
    metrics = policy_loss(logp, behaviour, VALUES, torch.ones(5), segments=SEGMENTS, correction=correction).metrics
    assert metrics["ratio/mean"] == pytest.approx(sum(RATIOS) / 5)
    assert (metrics["ratio/min"], metrics["ratio/max"]) == pytest.approx((0.25, 4.0))
    # Advantages are 1 for three tokens, of which 4.0 and 1.5 lie beyond 1.2, and -0.5 for two, of which none lies below 0.8.
    clipped = 2 / 5 if kind == "reject" else 0.0
    assert metrics["clip_ratio/high_mean"] == metrics["clip_ratio/region_mean"] == pytest.approx(clipped)
    assert metrics["clip_ratio/low_mean"] == 0


def test_the_kl_term_is_not_weighed() -> None:
    logp, behaviour = case()
    reference = logp.detach() - 0.3
    zero = torch.zeros(2, dtype=torch.float64)
    options = {"segments": SEGMENTS, "kl": "k2", "kl_weight": 0.1, "reference_logp": reference}
    corrected, plain_one = (
        policy_loss(logp, behaviour, zero, torch.ones(5), correction=c, **options).loss  # type: ignore[arg-type]
        for c in (Correction("mask", "token"), None)
    )
    assert corrected.item() == plain_one.item() == pytest.approx(0.1 * 0.3**2 / 2)


def test_metrics_are_those_worked_out_by_hand() -> None:
    logp, behaviour = case()
    metrics = policy_loss(
        logp, behaviour, VALUES, torch.ones(5), segments=SEGMENTS, correction=Correction("truncate", "token", high=2.5)
    ).metrics
    weights = [2.5, 0.25, 1.5, 2.5, 2.0]
    assert metrics["correction/truncated"] == pytest.approx(2 / 5)
    assert metrics["correction/weight/mean"] == pytest.approx(sum(weights) / 5)
    assert metrics["correction/weight_square/mean"] == pytest.approx(sum(w * w for w in weights) / 5)
    assert metrics["correction/log_weight/min"] == pytest.approx(math.log(0.25))
    assert metrics["correction/log_weight/max"] == pytest.approx(math.log(4.0))
    assert metrics["correction/log_weight/mean"] == pytest.approx(math.log(9.0) / 5)
    assert metrics["approx_kl_k1"] == pytest.approx(-math.log(9.0) / 5)
    assert metrics["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in RATIOS) / 5)


def test_the_effective_share_is_one_for_equal_weights_and_the_kept_share_for_zeros_and_ones() -> None:
    assert effective_share(0.7, 0.49) == pytest.approx(1.0)
    assert effective_share(0.25, 0.25) == 0.25
    assert effective_share(0.0, 0.0) == 0.0


def test_a_product_over_thirty_thousand_tokens_neither_overflows_nor_hides_a_nan() -> None:
    logp = torch.full((30_000,), -1.0, requires_grad=True)
    behaviour = torch.full((30_000,), -1.01)
    segments = torch.zeros(30_000, dtype=torch.int64)
    for kind, right in (("truncate", 2.0), ("mask", 0.0)):
        loss, metrics = policy_loss(
            logp,
            behaviour,
            torch.ones(1),
            torch.ones(30_000),
            segments=segments,
            correction=Correction(kind, "sequence"),  # type: ignore[arg-type]
        )
        assert loss.item() == pytest.approx(-right)
        assert metrics["correction/log_weight/max"] == pytest.approx(300, rel=1e-3)
        assert all(map(math.isfinite, metrics.values()))
        (found,) = torch.autograd.grad(loss, logp)
        assert bool(found.isfinite().all())
    behaviour[7] = math.nan
    for kind in KINDS:
        loss = policy_loss(
            logp,
            behaviour,
            torch.ones(1),
            torch.ones(30_000),
            segments=segments,
            correction=Correction(kind, "token"),  # type: ignore[arg-type]
        ).loss
        assert math.isnan(loss.item())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cut",), "correction must be truncate, mask or reject, got 'cut'"),
        (("mask", "group"), "correction_level must be token, sequence or geometric, got 'group'"),
        (("truncate", "token", 0.5, 0.9), "correction_high must be >= 1"),
        (("mask", "token", 1.0), "mask needs 0 <= correction_low < 1 < correction_high, got 1.0 and 2.0"),
        (("mask", "token", -0.1), "mask needs 0 <= correction_low < 1 < correction_high, got -0.1 and 2.0"),
        (("reject", "token", 0.5, 1.0), "reject needs 0 <= correction_low < 1 < correction_high, got 0.5 and 1.0"),
        (("truncate", "token", 0.5, math.nan), "correction_high must be >= 1"),
    ],
)
def test_a_correction_without_meaning_is_refused_with_its_value(words: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        Correction(*words)  # type: ignore[arg-type]
