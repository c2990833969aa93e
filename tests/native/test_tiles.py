"""Products by tiles: what does not fill them, what stands beside them, and a system that refuses them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from native_help import numbers

from paceline.native.calls import Panels, kernels
from paceline.native.machine import panels, processor

HALF = torch.bfloat16
HAS_TILES = "amx_bf16" in processor()[1] and panels("bfloat16", 16, 64)
pytestmark = pytest.mark.skipif(not HAS_TILES, reason="this processor has no tiles, or there is no C++ compiler")

REFUSED = """
import ctypes, struct, sys
# Linux' BPF: answer EPERM to arch_prctl (158) when asked for the state of an extension (0x1023), allow the rest.
lines = [(0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
import torch
from paceline.native.calls import Panels, kernels
native = kernels("native")
weight, x = torch.randn(50, 100).bfloat16(), torch.randn(33, 100).bfloat16()
found = native.product(x, Panels(native.pack(weight), None, 100, 50), wide=True)
torch.testing.assert_close(found.double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-4)
total = torch.empty(50, 100)
grad = torch.randn(33, 50).bfloat16()
native.matrix_gradient(grad, x, total, add=False)
torch.testing.assert_close(total.double(), grad.double().t() @ x.double(), rtol=1e-5, atol=1e-4)
print(native.name)
"""


@pytest.mark.parametrize("ins", [2, 30, 32, 34, 62, 576])
@pytest.mark.parametrize("outs", [1, 31, 32, 33, 96])
def test_a_row_is_the_exact_sum_whatever_stands_beside_it(native, ins, outs):
    weight, x = numbers(outs, ins, dtype=HALF), numbers(97, ins, dtype=HALF, seed=1)
    matrix = Panels(native.pack(weight), None, ins, outs)
    whole = native.product(x, matrix, wide=True)
    torch.testing.assert_close(whole.double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-5 * ins**0.5)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 48, 64):
        assert torch.equal(native.product(x[:rows], matrix, wide=True), whole[:rows]), rows
        assert torch.equal(native.product(x[-rows:], matrix, wide=True), whole[-rows:]), rows


def test_what_is_no_number_in_a_row_or_in_the_weights_of_an_output_goes_nowhere_else(native):
    weight, x = numbers(64, 34, dtype=HALF), numbers(40, 34, dtype=HALF, seed=1)
    weight[32:] = torch.inf  # the panel behind the first, whose last inputs fill no step
    x[5] = torch.nan
    found = native.product(x, Panels(native.pack(weight), None, 34, 64), wide=True)
    assert [int(row) for row in found[:, :32].isnan().any(dim=1).nonzero()] == [5]
    assert found[torch.arange(40) != 5, :32].isfinite().all()


def test_libraries_that_use_tiles_too_leave_none_of_their_shapes(native):
    weight, x = numbers(96, 64, dtype=HALF), numbers(33, 64, dtype=HALF, seed=1)
    matrix = Panels(native.pack(weight), None, 64, 96)
    whole = native.product(x, matrix, wide=True)
    with torch.inference_mode():
        for rows in (1, 5, 33):
            torch.nn.functional.linear(x[:rows], weight)
            assert torch.equal(native.product(x, matrix, wide=True), whole)


def test_their_use_is_part_of_the_kernels_name():
    assert kernels("native").name.endswith(" with tiles")


def test_where_the_system_refuses_them_products_are_made_without():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == kernels("native").name.removesuffix(" with tiles")
