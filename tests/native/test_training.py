"""Each compiled backward pass says what autograd says in float64, and threads change no bit of it."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from native_help import numbers

from paceline.models.rowwise import gapless, gated, norm, rotate
from paceline.native.calls import kernels
from paceline.native.machine import compiler
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
DTYPES = (torch.float32, torch.bfloat16)
SIZES = ((1, 1), (2, 15), (3, 16), (65, 33), (130, 64), (9, 577))
"""Rows and width: at and beside the width of a vector and the number of rows that are added up together."""


def close(found, expected, dtype, units=1.0):
    """found, of `dtype`, beside float64: equal up to so many roundings; where terms cancel, up to as many of an average number."""
    assert found.dtype == dtype
    relative = units * (2.0**-8 if dtype == torch.bfloat16 else 2e-6)
    torch.testing.assert_close(found.double(), expected, rtol=relative, atol=relative * float(expected.abs().mean()) + 1e-30)


def gradients(function, grad, *inputs):
    """By autograd in float64."""
    wide = [x.double().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*wide), wide, grad.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_the_gradient_of_a_norm_is_that_of_autograd(native, dtype, rows, width):
    x, weight, grad = (numbers(*size, dtype=dtype, seed=i) for i, size in enumerate(((rows, width), (width,), (rows, width))))
    exact = gradients(lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w, grad, x, weight)
    for_x, for_weight = native.norm_backward(x, weight, grad, 1e-5)
    if width > 1:  # of one number the norm is its sign: the gradient is what eps leaves, smaller than the terms' rounding
        close(for_x, exact[0], dtype, units=4)
    close(for_weight, exact[1], torch.float32, units=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), SIZES)
def test_the_gradient_of_a_gate_is_that_of_autograd_also_far_from_zero(native, dtype, rows, inner):
    x, grad = numbers(rows, 2 * inner, dtype=dtype, scale=20), numbers(rows, inner, dtype=dtype, seed=1)
    exact = gradients(lambda x: F.silu(x[:, :inner]) * x[:, inner:], grad, x)[0]
    found = native.gate_backward(x, grad)
    close(found[:, :inner].contiguous(), exact[:, :inner], dtype, units=2)
    close(found[:, inner:].contiguous(), exact[:, inner:], dtype, units=3)


@pytest.mark.parametrize("x", [0.0, -1e4, 1e4, 80.0, -80.0, float("nan")])
def test_the_gradient_of_a_gate_at_the_edge_is_that_of_autograd(native, x):
    rows, grad = torch.tensor([[x, 2.0]]), torch.tensor([[3.0]])
    exact = gradients(lambda x: F.silu(x[:, :1]) * x[:, 1:], grad, rows)[0]
    torch.testing.assert_close(native.gate_backward(rows, grad).double(), exact, equal_nan=True, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "d"), [(1, 1, 2), (5, 3, 16), (40, 5, 64)])
def test_a_rotation_is_that_of_the_operators_and_its_way_back_undoes_it(native, dtype, rows, heads, d):
    packed = numbers(rows, heads + 2, d, dtype=dtype)
    x = packed[:, 1 : 1 + heads]
    angles = numbers(rows, 1, d // 2, seed=3)
    cos, sin = torch.cat((angles.cos(),) * 2, dim=-1), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    found = native.turned(x, cos, sin)
    close(found, rotate(x.double(), cos.double(), sin.double()), dtype, units=2)
    close(native.turned(found, cos, sin, back=True), x.double(), dtype, units=4)


# --- log-probs


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 15), (5, 16), (4, 1025), (2, 50_001)])
def test_log_probs_entropies_and_their_gradient_are_those_of_a_log_softmax(native, temperature, rows, size):
    logits, ids = numbers(rows, size, scale=6), torch.arange(rows) * 7 % size
    grad = numbers(rows, seed=1)
    every = (logits.double() / temperature).log_softmax(-1)
    logp, entropy = native.score(logits, ids, temperature, entropy=True)
    close(logp, every.gather(-1, ids[:, None])[:, 0], torch.float32, units=2)
    torch.testing.assert_close(entropy.double(), -(every.exp() * every).sum(-1), rtol=1e-5, atol=1e-6)
    exact = gradients(lambda z: (z / temperature).log_softmax(-1).gather(-1, ids[:, None])[:, 0], grad, logits)[0]
    for dtype in DTYPES:
        found = native.score_backward(logits, ids, logp, grad, temperature, dtype)
        torch.testing.assert_close(found.double(), exact, rtol=2.0**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_the_gradient_of_log_probs_is_as_exact_at_low_temperatures(native, temperature):
    logits = numbers(64, 5000, scale=6)
    every = (logits.double() / temperature).log_softmax(-1)
    ids = every.exp().multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    logp, _ = native.score(logits, ids, temperature, entropy=False)
    found = native.score_backward(logits, ids, logp, torch.ones(64), temperature, torch.float32).double()
    exact = (F.one_hot(ids, 5000) - every.exp()) / temperature
    assert float((found - exact).norm() / exact.norm()) <= 1e-6


def test_tokens_that_cannot_be_have_no_share_and_no_gradient(native):
    logits = numbers(2, 40)
    logits[:, 5:] = -torch.inf
    ids = torch.tensor([1, 2])
    logp, entropy = native.score(logits, ids, 1.0, entropy=True)
    every = logits[:, :5].double().log_softmax(-1)
    torch.testing.assert_close(logp.double(), every.gather(-1, ids[:, None])[:, 0])
    torch.testing.assert_close(entropy.double(), -(every.exp() * every).sum(-1))
    assert not native.score_backward(logits, ids, logp, torch.ones(2), 1.0, torch.float32)[:, 5:].any()


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_makes_its_own_row_nan(native, odd):
    logits = numbers(3, 40)
    logits[1, 30] = odd
    logp, entropy = native.score(logits, torch.zeros(3, dtype=torch.int64), 1.0, entropy=True)
    for found in (logp, entropy):
        assert found.isnan().tolist() == [False, True, False]
    found = native.score_backward(logits, torch.zeros(3, dtype=torch.int64), logp, torch.ones(3), 1.0, torch.float32)
    assert found.isnan().any(-1).tolist() == [False, True, False]


# --- attention over shared prompts

BLOCKS = (
    (Block(1, ()),),
    (Block(0, (3,)), Block(2, (1,))),
    (Block(5, (3, 1, 4)), Block(6, ()), Block(1, (2, 2))),
    (Block(33, (70, 2, 17)), Block(50, ()), Block(0, (20, 20))),
)


def attention(blocks, dtype, heads, kv_heads, d, native=None, seed=0):
    """Result and gradients of q, k and v, which are views of wider rows."""
    rows = sum(block.prefix + sum(block.own) for block in blocks)
    packed = numbers(rows, heads + 2 * kv_heads, d, dtype=torch.bfloat16, seed=seed).to(dtype).requires_grad_()
    grad = numbers(rows, heads, d, dtype=torch.bfloat16, seed=seed + 1).to(dtype)
    q, k, v = torch.split(packed, [heads, kv_heads, kv_heads], dim=1)
    out = block_attend(blocks, 0.3, torch.device("cpu"), kernels=native)(0, q, k, v)
    return torch.cat([out.detach(), torch.autograd.grad(out, packed, grad)[0]], dim=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(2, 2, 16), (3, 1, 48), (6, 2, 64), (5, 1, 80), (14, 2, 32)])
def test_attention_over_shared_prompts_is_that_of_float64(native, dtype, blocks, heads, kv_heads, d):
    exact = attention(blocks, torch.float64, heads, kv_heads, d)
    close(attention(blocks, dtype, heads, kv_heads, d, native), exact, dtype, units=6)


def test_rows_and_gradients_with_gaps_between_their_heads_are_taken_too(native):
    blocks, across = (Block(5, (3, 4)),), [numbers(heads, 12, 16).requires_grad_() for heads in (4, 2, 2)]
    attend = block_attend(blocks, 0.3, torch.device("cpu"), kernels=native)
    out = attend(0, *(x.transpose(0, 1) for x in across))
    found = torch.autograd.grad(out.transpose(0, 1), across, numbers(4, 12, 16, seed=7))
    q, k, v = (gapless(x.detach().transpose(0, 1)).requires_grad_() for x in across)
    right = torch.autograd.grad(attend(0, q, k, v), (q, k, v), numbers(4, 12, 16, seed=7).transpose(0, 1))
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one.transpose(0, 1), other)


def test_scores_too_large_for_an_exponential_give_the_value_of_the_largest_and_finite_gradients(native):
    q, k, v = (numbers(9, 1, 16, seed=i).requires_grad_() for i in range(3))
    out = block_attend([Block(9, ())], 1e4, torch.device("cpu"), kernels=native)(0, q, k, v)
    scores = (q[:, 0] @ k[:, 0].t()).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert torch.equal(out[:, 0], v[scores.argmax(-1), 0])
    assert all(bool(found.isfinite().all()) for found in torch.autograd.grad(out.sum(), (q, k, v)))


def test_other_heads_and_float64_take_the_operators(native):
    for dtype, d in ((torch.float64, 16), (torch.float32, 8)):
        assert torch.equal(attention(BLOCKS[2], dtype, 4, 2, d, native), attention(BLOCKS[2], dtype, 4, 2, d))


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype):
    native, rows, width = kernels("native"), 200, 128
    x, grad, weight = numbers(rows, width, dtype=dtype), numbers(rows, width, dtype=dtype, seed=1), numbers(width, dtype=dtype, seed=2)
    logits, ids = numbers(rows, 500, seed=3), torch.arange(rows)

    def everything():
        logp, entropy = native.score(logits, ids, 0.7, entropy=True)
        return [
            *native.norm_backward(x, weight, grad, 1e-5),
            native.gate_backward(torch.cat([x, grad], dim=1), grad),
            logp, entropy,
            native.score_backward(logits, ids, logp, numbers(rows, seed=4), 0.7, dtype),
            attention(BLOCKS[3], dtype, 6, 2, 64, native),
        ]  # fmt: skip

    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(everything())
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# --- as parts of a graph


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_takes_rows_and_gradients_with_gaps(native, dtype):
    packed, square, weight = numbers(70, 5, 32, dtype=dtype), numbers(32, 70, dtype=dtype), numbers(32, seed=1).requires_grad_()
    for x in (packed[:, 4:], packed[:, 1:3], packed[:, 0], square.t()):
        for grad in (torch.ones((), dtype=dtype).expand(x.shape), numbers(*x.shape[::-1], dtype=dtype).permute(*range(x.dim())[::-1])):
            source = x.detach().requires_grad_()
            found, right = (torch.autograd.grad(norm(source, weight, 1e-5, which), (source, weight), grad) for which in (native, None))
            torch.testing.assert_close(norm(x, weight.detach(), 1e-5, native), norm(x, weight.detach(), 1e-5), rtol=0.02, atol=1e-5)
            for one, other in zip(found, right, strict=True):
                torch.testing.assert_close(one, other, rtol=0.02, atol=0.03 if dtype == torch.bfloat16 else 1e-4)


def test_a_lone_head_may_have_any_stride(native):
    across, blocks = [numbers(heads, 12, 16, seed=heads) for heads in (2, 1, 1)], (Block(5, (3, 4)),)
    found, right = (
        block_attend(blocks, 0.3, torch.device("cpu"), kernels=which)(0, *(x.transpose(0, 1) for x in across)) for which in (native, None)
    )
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_kernels_a_graph_gives_the_gradients_of_the_operators(native, dtype):
    """Shapes of queries: [rows, heads, d], not contiguous."""
    packed, weight = numbers(40, 9, 32, dtype=dtype).requires_grad_(), numbers(32, seed=1).requires_grad_()
    angles = numbers(40, 1, 16, seed=3)
    cos, sin = torch.cat((angles.cos(),) * 2, dim=-1), torch.cat((-angles.sin(), angles.sin()), dim=-1)

    def run(with_kernels):
        turned = rotate(norm(packed[:, 1:7], weight, 1e-5, with_kernels), cos, sin, with_kernels)
        out = gated(turned.flatten(1), with_kernels)
        return out, *torch.autograd.grad(out, (packed, weight), numbers(40, 96, dtype=dtype, seed=5))

    for found, right in zip(run(native), run(None), strict=True):
        torch.testing.assert_close(
            found, right, rtol=0.02 if dtype == torch.bfloat16 else 1e-5, atol=0.03 if dtype == torch.bfloat16 else 1e-5
        )
