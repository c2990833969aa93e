"""What training multiplies by, compiled: panels of weights and of their transposes, and gradients of matrices."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from native_help import numbers

from paceline.models.kernels import Projection, bare_linear
from paceline.native.calls import Panels, kernels
from paceline.native.machine import MOST_INPUTS, panels

pytestmark = pytest.mark.skipif(not panels("bfloat16", 16, 64), reason="compiled kernels do not multiply bfloat16 on this machine")
HALF = torch.bfloat16
SHAPES = ((2, 2), (48, 32), (50, 66), (576, 1536), (100, 30), (96, 34))


def laid_out(matrix, panel):
    """[out, in] bfloat16 -> [panels, in / 2, panel] pairs, in torch."""
    outs, ins = matrix.shape
    filled = torch.zeros(-(-outs // panel) * panel, ins, dtype=HALF)
    filled[:outs] = matrix
    return filled.view(-1, panel, ins // 2, 2).transpose(1, 2).contiguous().view(torch.int32)[..., 0]


@pytest.mark.parametrize(("outs", "ins"), [*SHAPES, (47, 34), (1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_panels_hold_the_rounded_matrix_and_zeros_behind_it(native, dtype, outs, ins):
    weight = numbers(outs, ins, dtype=dtype)
    assert torch.equal(native.pack(weight, HALF), laid_out(weight.to(HALF), native.panel))


@pytest.mark.parametrize(("outs", "ins"), [*SHAPES, (48, 33), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_panels_of_the_transpose_are_those_of_the_matrix_turned_over(native, dtype, outs, ins):
    weight = numbers(outs, ins, dtype=dtype)
    assert torch.equal(native.pack(weight, HALF, over=True), laid_out(weight.to(HALF).t(), native.panel))


def test_rounding_is_to_nearest_even_and_what_is_no_number_stays_none(native):
    edge = torch.tensor([[1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 3.0e38, torch.inf, -torch.inf, torch.nan, 0.0]])
    for over, weight in ((False, edge), (True, edge.t().contiguous())):
        found = native.pack(weight, HALF, over=over).contiguous().view(HALF)[0].reshape(4, native.panel, 2)[:, 0].flatten()
        torch.testing.assert_close(found, edge[0].to(HALF), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 2, 7, 31, 32, 33, 64, 255, 1151, 4099])
@pytest.mark.parametrize(("outs", "ins"), [(2, 2), (48, 100), (50, 34), (33, 47), (200, 96), (1000, 48), (700, 200)])
def test_the_gradient_of_a_matrix_is_the_exact_sum_and_grows_where_it_lies(native, rows, outs, ins):
    grad, x = numbers(rows, outs, dtype=HALF), numbers(rows, ins, dtype=HALF, seed=1)
    exact, before = grad.double().t() @ x.double(), numbers(outs, ins, seed=2)
    total = torch.full((outs, ins), torch.nan)
    native.matrix_gradient(grad, x, total, add=False)
    torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-5 * rows**0.5)
    total = before.clone()
    native.matrix_gradient(grad, x, total, add=True)
    torch.testing.assert_close(total.double(), exact + before, rtol=1e-5, atol=1e-5 * rows**0.5)


def test_threads_change_no_bit_of_a_gradient_and_a_number_that_is_none_reaches_its_row_alone():
    grad, x, found, before = numbers(200, 1000, dtype=HALF), numbers(200, 576, dtype=HALF, seed=1), [], torch.get_num_threads()
    grad[3, 5] = torch.nan
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(torch.empty(1000, 576))
        kernels("native").matrix_gradient(grad, x, found[-1], add=False)
    torch.set_num_threads(before)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0, equal_nan=True)
    assert [int(row) for row in found[0].isnan().any(dim=1).nonzero()] == [5]


# --- layers that train by them


def projection(native, outs, *, bias=False, like=None):
    """Linear layers side by side, of 64 inputs."""
    layers = [bare_linear(64, out, bias, torch.empty(0) if like is None else like) for out in outs]
    made = Projection(*layers)
    with torch.no_grad():
        for seed, layer in enumerate(layers):
            layer.weight.copy_(numbers(*layer.weight.shape, seed=seed))
            if bias:
                layer.bias.copy_(numbers(len(layer.bias), seed=seed + 9))
    made.kernels = native
    return made


def trained(made, *, updates=1):
    """Result and gradients after forward and backward, some times."""
    for layer in made.layers:
        layer.weight.grad = None
    for update in range(updates):
        x = numbers(37, 64, dtype=HALF, seed=update + 20).requires_grad_()
        out = made(x)
        out.backward(numbers(*out.shape, dtype=HALF, seed=update + 30))
    return out.detach(), x.grad, [layer.weight.grad for layer in made.layers]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("updates", [1, 3])
def test_layers_train_as_by_the_operators_and_their_gradients_are_nearer_to_the_exact_ones(native, bias, updates):
    ours, theirs = (trained(projection(one, (50, 30), bias=bias), updates=updates) for one in (native, None))
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(mine.float(), other.float(), rtol=2**-7, atol=2**-6)
    exact = sum(
        numbers(37, 80, dtype=HALF, seed=update + 30).double().t() @ numbers(37, 64, dtype=HALF, seed=update + 20).double()
        for update in range(updates)
    )
    error, rounded = ((torch.cat(found[2]).double() - exact).abs().max() for found in (ours, theirs))
    assert error < 1e-4 < rounded, "summed up in float32, and rounded to bfloat16 before"


def test_rows_without_gradient_are_multiplied_as_rows_with_one(native):
    made, x = projection(native, (50, 30), bias=True), numbers(37, 64, dtype=HALF, seed=20)
    with torch.no_grad():
        found = made(x)
    assert torch.equal(found, trained(made)[0])


def test_gradients_that_lie_elsewhere_grow_where_they_lie(native):
    made = projection(native, (50, 30))
    first = trained(made)[2]
    expected = [2 * one for one in first]
    made.layers[0].weight.grad = first[0].clone()
    x = numbers(37, 64, dtype=HALF, seed=20)
    made(x).backward(numbers(37, 80, dtype=HALF, seed=30))
    for layer, one in zip(made.layers, expected, strict=True):
        torch.testing.assert_close(layer.weight.grad, one)
    made.layers[1].weight.grad = None
    made(x).backward(numbers(37, 80, dtype=HALF, seed=30))
    for layer, one in zip(made.layers, (1.5 * expected[0], 0.5 * expected[1]), strict=True):
        torch.testing.assert_close(layer.weight.grad, one)


def test_frozen_layers_get_no_gradient_and_pass_one_on(native):
    made = projection(native, (50, 30))
    for layer in made.layers:
        layer.weight.requires_grad_(False)
    _, for_x, found = trained(made)
    assert found == [None, None]
    torch.testing.assert_close(for_x, trained(projection(native, (50, 30)))[1], rtol=0, atol=0)


def test_a_frozen_part_of_layers_that_train_together_gets_no_gradient(native):
    made = projection(native, (50, 30))
    made.layers[0].weight.requires_grad_(False)
    _, for_x, found = trained(made, updates=2)
    assert found[0] is None
    expected = trained(projection(None, (50, 30)), updates=2)
    torch.testing.assert_close(found[1], expected[2][1])
    torch.testing.assert_close(for_x.float(), expected[1].float(), rtol=2**-7, atol=2**-6)


def test_no_rows_have_no_gradient(native):
    total = torch.full((50, 34), torch.nan)
    native.matrix_gradient(torch.empty(0, 50, dtype=HALF), torch.empty(0, 34, dtype=HALF), total, add=False)
    assert not bool(total.any())


def test_frozen_weights_are_multiplied_as_equal_ones_that_train(native):
    """So the KL divergence of a policy from itself is none."""
    trains, frozen = projection(native, (50, 30), bias=True), projection(native, (50, 30), bias=True, like=torch.empty(0, dtype=HALF))
    for layer in frozen.layers:
        layer.requires_grad_(False)
    x = numbers(37, 64, dtype=HALF, seed=20)
    with torch.no_grad():
        assert torch.equal(frozen(x), trains(x))
        frozen.layers[0].weight.mul_(2)
        assert not torch.equal(frozen(x), trains(x)), "panels follow their weights"


@pytest.mark.parametrize(("outs", "ins"), [(49, 64), (48, MOST_INPUTS + 2), (MOST_INPUTS + 2, 2)])
def test_matrices_that_do_not_fit_are_left_to_the_operators(native, outs, ins):
    assert not native.trains((outs, ins), torch.float32, HALF)
    assert native.trains((48, 64), torch.float32, HALF)
    assert not native.trains((48, 64), torch.float32, torch.float32)
    assert not native.trains((48, 64), torch.float64, HALF)
    odd = projection(native, (49,))
    result, _, found = trained(odd)
    torch.testing.assert_close(result, numbers(37, 64, dtype=HALF, seed=20) @ odd.layers[0].weight.detach().to(HALF).t())
    assert found[0].shape == (49, 64)


def test_products_with_the_transpose_are_exact_ones_rounded_once(native):
    weight, grad = numbers(50, 66), numbers(37, 50, dtype=HALF, seed=1)
    found = native.product(grad, Panels(native.pack(weight, HALF, over=True), None, 50, 66))
    torch.testing.assert_close(found.double(), grad.double() @ weight.to(HALF).double(), rtol=2**-8, atol=1e-4)
