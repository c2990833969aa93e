import math

import pytest
import torch

from paceline.algo import kl_estimate
from paceline.algo.kl import kl_penalty

POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
TRUE_GRADIENT = torch.tensor([0.237568, -0.010707, -0.226861], dtype=torch.float64)


def expected(function: object, kind: str) -> tuple[float, torch.Tensor]:
    """Expectation over the policy's own samples and its gradient with respect to the logits, by enumeration."""
    logits = POLICY.log().requires_grad_()
    logp = logits.log_softmax(0)
    value = (POLICY * function(logp, REFERENCE.log(), kind)).sum()  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(value, logits)
    return value.item(), gradient


@pytest.mark.parametrize(("kind", "right"), [("k1", 0.218012), ("k2", 0.209058), ("k3", 0.218012)])
def test_expected_values_agree_with_enumeration(kind: str, right: float) -> None:
    assert expected(kl_estimate, kind)[0] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize(("kind", "right"), [("k1", torch.zeros(3)), ("k2", TRUE_GRADIENT), ("k3", torch.tensor([0.25, 0.05, -0.30]))])
def test_direct_gradients_are_the_documented_ones(kind: str, right: torch.Tensor) -> None:
    torch.testing.assert_close(expected(kl_estimate, kind)[1], right.double(), atol=1e-6, rtol=0)


def test_as_a_penalty_k1_keeps_its_value_and_takes_the_true_gradient() -> None:
    value, gradient = expected(kl_penalty, "k1")
    assert value == pytest.approx(0.218012, abs=1e-6)
    torch.testing.assert_close(gradient, TRUE_GRADIENT, atol=1e-6, rtol=0)
    for kind in ("k2", "k3"):
        torch.testing.assert_close(expected(kl_penalty, kind)[1], expected(kl_estimate, kind)[1])


@pytest.mark.parametrize(
    ("logp", "reference", "right"),
    [(-1.0, -1.5, (0.5, 0.125, 0.106531)), (-2.0, -0.5, (-1.5, 1.125, 1.981689)), (-0.7, -0.7, (0.0, 0.0, 0.0))],
)
def test_values_per_token(logp: float, reference: float, right: tuple[float, ...]) -> None:
    got = [kl_estimate(torch.tensor(logp).double(), torch.tensor(reference).double(), kind).item() for kind in ("k1", "k2", "k3")]
    assert got == pytest.approx(right, abs=1e-6)


def test_k3_is_never_negative_and_keeps_its_digits_near_zero() -> None:
    difference = torch.tensor([1e-4, -1e-4, 3e-8], dtype=torch.float64)
    got = kl_estimate(difference, torch.zeros(3, dtype=torch.float64), "k3")
    torch.testing.assert_close(got, torch.tensor([math.exp(-1e-4) - 1 + 1e-4] * 2 + [4.5e-16]).double(), atol=1e-12, rtol=0)
    assert (got >= 0).all()


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="k1, k2 or k3, got 'k4'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]
