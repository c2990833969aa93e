"""Each compiled kernel says what torch's operators say, and a row's bits depend on that row alone."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from native_help import numbers

from paceline.engines.paged import PagedAttention
from paceline.engines.pages import PagePool, Span
from paceline.models.packed import Shape
from paceline.models.rowwise import gated, norm, rotate
from paceline.native.calls import Panels, kernels
from paceline.native.machine import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
DTYPES = (torch.float32, torch.bfloat16)
SIZES = ((1, 1), (2, 15), (3, 16), (7, 33), (9, 64), (17, 576), (64, 577))
"""Rows and width: below, at and beside the width of a vector, and enough of them for a second thread."""


def close(found, expected, units=1):
    """Equal up to so many units in the last place of the dtype (float32: a few more, since sums run in another order)."""
    assert found.dtype == expected.dtype
    relative = units * 2.0**-7 if expected.dtype == torch.bfloat16 else units * 4e-6
    torch.testing.assert_close(found, expected, rtol=relative, atol=relative * float(expected.abs().float().mean()) / 4 + 1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_a_sum_and_its_norm_are_those_of_the_operators(native, dtype, rows, width):
    x, added, weight = numbers(rows, width, dtype=dtype), numbers(rows, width, dtype=dtype, seed=1), numbers(width, dtype=dtype, seed=2)
    close(native.add_norm(x.clone(), None, weight, 1e-5), norm(x, weight, 1e-5))
    total = x.clone()
    close(native.add_norm(total, added, weight, 1e-5), norm(x + added, weight, 1e-5))
    assert torch.equal(total, x + added)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("rows", "d"), [(1, 16), (5, 64), (33, 128)])
def test_queries_and_keys_are_normed_and_turned_and_values_left(native, dtype, normed, rows, d):
    heads, kv_heads = 6, 2
    packed = numbers(rows, heads + 2 * kv_heads, d, dtype=dtype)
    angles = numbers(rows, 1, d // 2, seed=3)
    cos, sin = torch.cat((angles.cos(),) * 2, dim=-1), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    norms = (numbers(d, dtype=dtype, seed=4), numbers(d, dtype=dtype, seed=5)) if normed else None
    q, k, v = packed.clone().split([heads, kv_heads, kv_heads], dim=1)
    if norms:
        q, k = norm(q, norms[0], 1e-6), norm(k, norms[1], 1e-6)
    native.place(packed, norms, 1e-6, cos, sin, heads, kv_heads)
    for found, expected in zip(
        packed.split([heads, kv_heads, kv_heads], dim=1), (rotate(q, cos, sin), rotate(k, cos, sin), v), strict=True
    ):
        close(found.contiguous(), expected, units=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), SIZES)
def test_the_gate_is_that_of_the_operators_also_far_from_zero(native, dtype, rows, inner):
    x = numbers(rows, 2 * inner, dtype=dtype, scale=20)
    close(native.gate(x), gated(x))


@pytest.mark.parametrize("x", [0.0, -0.0, 1e-30, -1e4, 1e4, 80.0, -80.0, float("inf"), float("-inf"), float("nan")])
def test_the_gate_of_numbers_at_the_edge_is_that_of_the_operators(native, x):
    rows = torch.tensor([[x, 2.0]])
    torch.testing.assert_close(native.gate(rows), gated(rows), equal_nan=True, rtol=1e-5, atol=1e-34)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("rows", "ins", "outs"), [(1, 2, 1), (2, 64, 47), (7, 66, 48), (8, 64, 49), (9, 576, 960), (130, 1536, 100)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_the_exact_one_rounded_once(native, dtype, wide, rows, ins, outs, biased):
    weight = numbers(outs, ins, dtype=dtype, seed=6)
    if not native.multiplies(weight):
        pytest.skip("this processor leaves the product to a library")
    x, bias = numbers(rows, ins, dtype=dtype), numbers(outs, seed=7) if biased else None
    found = native.product(x, Panels(native.pack(weight), bias, ins, outs), wide)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype == (torch.float32 if wide else dtype)
    bound = 2.0**-8 if found.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=bound, atol=1e-5 * ins**0.5)


def test_panels_are_filled_up_with_zeros(native):
    packed = native.pack(torch.ones(native.panel + 1, 4))
    assert packed.shape == (2, 4, native.panel)
    assert float(packed.sum()) == 4 * (native.panel + 1)


# --- attention over pages


def paged(dtype, lengths, *, heads=6, kv_heads=2, d=16, size=4, seed=0):
    """Rows of texts of these lengths, the last token of each still to be written, and what lies before it."""
    shape = Shape(2, heads, kv_heads, d, heads * d, 99, 999, d**-0.5, 0)
    pool = PagePool(shape, sum(-(-n // size) for n in lengths) + 3, size, dtype)
    texts = [
        (numbers(n, kv_heads, d, dtype=dtype, seed=seed + i), numbers(n, kv_heads, d, dtype=dtype, seed=seed + 50 + i))
        for i, n in enumerate(lengths)
    ]
    spans = [Span("back" if i % 2 else "front") for i in range(len(lengths))]
    for span, n in zip(spans, lengths, strict=True):
        pool.extend(span, pool.needed(n))
    for (k, v), span, n in zip(texts, spans, lengths, strict=True):
        if n > 1:
            pool.write(1, pool.spread(pool.rows(span, 0, n - 1)).flatten(), k[:-1], v[:-1])
    return pool, texts, spans


def attended(native, pool, texts, spans, q):
    where = [pool.rows(span, len(k) - 1, len(k))[0] for (k, _), span in zip(texts, spans, strict=True)]
    attend = PagedAttention(native, pool, where, [[(span, len(k))] for (k, _), span in zip(texts, spans, strict=True)])
    return attend(1, q, torch.stack([k[-1] for k, _ in texts]), torch.stack([v[-1] for _, v in texts]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d"), [(2, 2, 16), (4, 2, 32), (6, 2, 64), (4, 1, 80), (5, 1, 96), (14, 2, 128), (9, 1, 256)]
)
def test_rows_attend_to_their_pages_as_to_a_whole_text(native, dtype, heads, kv_heads, d):
    lengths = (1, 4, 5, 30)
    pool, texts, spans = paged(dtype, lengths, heads=heads, kv_heads=kv_heads, d=d)
    q = numbers(len(lengths), heads, d, dtype=dtype, seed=9)
    found = attended(native, pool, texts, spans, q)
    for row, (k, v) in enumerate(texts):
        keys, values = (x.double().repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1) for x in (k, v))
        weights = (torch.einsum("hd,hnd->hn", q[row].double(), keys) * d**-0.5).softmax(dim=-1)
        close(found[row], torch.einsum("hn,hnd->hd", weights, values).to(dtype), units=2)


@pytest.mark.parametrize("size", [4, 16, 17, 33, 64])
def test_pages_of_any_size_and_rows_at_any_distance_give_the_same(native, size):
    lengths = (1, 15, 16, 17, 31, 64, 65, 200)
    pool, texts, spans = paged(torch.float32, lengths, size=size)
    packed = numbers(len(lengths), 10, 16, seed=9)
    found = attended(native, pool, texts, spans, packed[:, :6])
    for row, (k, v) in enumerate(texts):
        keys, values = (x.double().repeat_interleave(3, dim=1) for x in (k, v))
        weights = (torch.einsum("hd,nhd->hn", packed[row, :6].double(), keys) / 4).softmax(dim=-1)
        close(found[row], torch.einsum("hn,nhd->hd", weights, values).float(), units=2)


def test_neighbours_and_threads_change_no_bit_of_attention():
    lengths = (9, 33, 2, 70, 64, 12)
    pool, texts, spans = paged(torch.float32, lengths, size=32)
    q, before, found = numbers(len(lengths), 6, 16, seed=9), torch.get_num_threads(), []
    for threads, parts in ((2, [range(6)]), (1, [[row] for row in range(6)]), (2, [[5, 4], [0, 1, 2, 3]])):
        torch.set_num_threads(threads)
        result = torch.empty(6, 6, 16)
        for part in map(list, parts):
            result[part] = attended(kernels("native"), pool, [texts[row] for row in part], [spans[row] for row in part], q[part])
        found.append(result)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_scores_too_large_for_an_exponential_give_the_value_of_the_largest(native):
    pool, texts, spans = paged(torch.float32, (9,))
    q = 1e4 * texts[0][0][3].repeat_interleave(3, dim=0)[None]
    close(attended(native, pool, texts, spans, q)[0], texts[0][1][3].repeat_interleave(3, dim=0))


def test_a_number_that_is_none_reaches_the_result(native):
    pool, texts, spans = paged(torch.float32, (5, 5))
    q = numbers(2, 6, 16)
    q[0, 0, 0] = torch.nan
    found = attended(native, pool, texts, spans, q)
    assert bool(found[0, 0].isnan().all())
    assert bool(found[1].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_and_threads_change_no_bit_of_a_row(dtype):
    ins, outs, rows, d = 576, 500, 70, 64
    native, x, weight = kernels("native"), numbers(rows, ins, dtype=dtype), numbers(outs, ins, dtype=dtype, seed=1)
    factors = numbers(ins, dtype=dtype, seed=2)

    angles = numbers(rows, 1, d // 2, seed=3)
    cos, sin = torch.cat((angles.cos(),) * 2, dim=-1), torch.cat((-angles.sin(), angles.sin()), dim=-1)

    def all_of(here):
        rows = x[here]
        heads = rows.clone().view(len(rows), -1, d)
        native.place(heads, (factors[:d], factors[d : 2 * d]), 1e-5, cos[here], sin[here], 5, 2)
        pieces = [native.add_norm(rows.clone(), rows, factors, 1e-5), native.gate(rows), heads.flatten(1)]
        if native.multiplies(weight):
            pieces.append(native.product(rows, Panels(native.pack(weight), None, ins, outs)))
        return torch.cat(pieces, dim=1)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    whole = all_of(slice(0, rows))
    torch.set_num_threads(1)
    assert torch.equal(whole, torch.cat([all_of(slice(row, row + 1)) for row in range(rows)]))
    torch.set_num_threads(before)
