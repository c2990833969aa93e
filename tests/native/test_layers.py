"""Whole layers by compiled kernels give, bit for bit, what their parts give one by one."""

import functools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from native_help import numbers

from paceline.models.served import _Parts, _PassInParts
from paceline.native.calls import Panels
from paceline.native.layers import LayerWeights, Pass
from paceline.native.machine import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
HEADS, KV_HEADS, D, WIDTH, INNER, EPS = 6, 2, 16, 130, 514, 1e-5


def layers(native, dtype, *, biased, normed, count=2):
    """As kernels take them at once, and in parts."""
    sizes = ((WIDTH, (HEADS + 2 * KV_HEADS) * D), (HEADS * D, WIDTH), (WIDTH, 2 * INNER), (INNER, WIDTH))
    whole, parts = [], []
    for layer in range(count):
        matrices = [numbers(outs, ins, dtype=dtype, seed=10 * layer + i, scale=ins**-0.5) for i, (ins, outs) in enumerate(sizes)]
        if not native.multiplies(matrices[0]):
            pytest.skip("this processor leaves products to a library")
        biases = [numbers(outs, seed=10 * layer + 5 + i) if biased else None for i, (_, outs) in enumerate(sizes)]
        panels = [Panels(native.pack(one), bias, *size) for one, bias, size in zip(matrices, biases, sizes, strict=True)]
        norms = (numbers(D, dtype=dtype, seed=layer + 20), numbers(D, dtype=dtype, seed=layer + 30)) if normed else None
        before, after = (numbers(WIDTH, dtype=dtype, seed=layer + seed) for seed in (40, 50))
        whole.append(LayerWeights(before, norms, panels[0], panels[1], after, panels[2], panels[3]))
        products = [functools.partial(native.product, panels=one) for one in panels]
        parts.append(_Parts(before, norms, products[0], products[1], after, products[2], products[3]))
    return whole, parts


def run(kind, native, dtype, weights, rows):
    """Through all layers, with an attention that mixes what it gets."""
    angles = numbers(rows, 1, D // 2, seed=3)
    cos, sin = torch.cat((angles.cos(),) * 2, dim=-1), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    passing = kind(native, numbers(rows, WIDTH, dtype=dtype), weights[0], (HEADS, KV_HEADS, D), cos, sin, EPS)
    for layer in weights:
        q, k, v = passing.enter(layer)
        assert [part.shape for part in (q, k, v)] == [(rows, HEADS, D), (rows, KV_HEADS, D), (rows, KV_HEADS, D)]
        passing.leave(layer, q + (k * v).repeat_interleave(HEADS // KV_HEADS, dim=1))
    return passing.end(numbers(WIDTH, dtype=dtype, seed=60))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 33, 300])
@pytest.mark.parametrize(("biased", "normed"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_layer_in_two_calls_is_the_layer_in_nine(native, dtype, rows, biased, normed):
    whole, parts = layers(native, dtype, biased=biased, normed=normed)
    found = run(Pass, native, dtype, whole, rows)
    assert bool(found.isfinite().all())
    assert torch.equal(found, run(_PassInParts, native, dtype, parts, rows))


def test_what_a_layer_reads_lives_as_long_as_it(native):
    whole, parts = layers(native, torch.float32, biased=True, normed=True)
    expected = run(_PassInParts, native, torch.float32, parts, 9)
    del parts
    rubbish = [torch.full((size,), torch.nan) for size in (D, WIDTH, WIDTH * 192, 2 * INNER) for _ in range(20)]
    assert torch.equal(run(Pass, native, torch.float32, whole, 9), expected)
    assert len(rubbish) == 80
