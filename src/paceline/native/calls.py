"""The kernels as functions of tensors. They trust their callers: contiguous CPU tensors of the dtypes named, unless stated otherwise."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import Literal

import torch

from paceline.native.build import BuildError, library
from paceline.types.errors import ConfigError

Choice = Literal["auto", "native", "torch"]
_log = logging.getLogger(__name__)
DTYPES = (torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
LONGEST_PAGE = 64
PANEL = 48
"""Outputs of a panel."""
_MOST_INPUTS = 8192
"""A panel of more does not stay in a core's cache."""


class Step(ctypes.Structure):
    """`struct Step` of kernels.cpp: what all layers of one step have in common."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("where", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("d", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("layer", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    )


class Kernels:
    """The compiled functions, with as many threads as torch has."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        self.name = Path(compiled._name).stem
        """Names the code: of the source, the compiler and the processor."""
        pointer, long, real, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
        self._add_norm, self._place = compiled.paceline_add_norm, compiled.paceline_place
        self._gate, self._attend = compiled.paceline_gate, compiled.paceline_attend
        self._add_norm.argtypes = (*[pointer] * 4, long, long, real, flag, flag)
        self._place.argtypes = (*[pointer] * 3, real, pointer, pointer, *[long] * 4, flag, flag)
        self._gate.argtypes = (pointer, pointer, long, long, flag, flag)
        self._product, multiplies = compiled.paceline_product, compiled.paceline_multiplies
        self._product.argtypes = (*[pointer] * 4, *[long] * 3, *[flag] * 3)
        self._multiplies = {dtype: bool(multiplies(dtype == torch.bfloat16)) for dtype in DTYPES}
        self._attend.argtypes = (ctypes.POINTER(Step), long, *[pointer] * 4, long, long, flag)

    def __deepcopy__(self, memo: object) -> Kernels:
        """Itself: it holds code, no weights."""
        return self

    def multiplies(self, weight: torch.Tensor) -> bool:
        """Whether products with this matrix [out, in] are better made here than by a library, on this processor."""
        return self._multiplies.get(weight.dtype, False) and weight.shape[1] <= _MOST_INPUTS and not weight.shape[1] % 2

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [out, in] in panels, as `product` reads it: [ceil(out / PANEL), in, PANEL]; of bfloat16 in / 2 pairs, as int32."""
        numbers = weight.view(torch.int32) if weight.dtype == torch.bfloat16 else weight  # a pair is moved as one number
        missing = -len(numbers) % PANEL
        whole = torch.cat([numbers, numbers.new_zeros(missing, numbers.shape[1])]) if missing else numbers
        return whole.view(-1, PANEL, numbers.shape[1]).transpose(1, 2).contiguous()

    def product(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outs: int, wide: bool = False) -> torch.Tensor:
        """x [T, in] times a packed matrix, + bias [out] float32, added up in float32 -> [T, out] in the dtype of x, or float32 if `wide`.

        The bits of a row do not depend on how many there are.
        """
        out = torch.empty(x.shape[0], outs, dtype=torch.float32 if wide else x.dtype)
        half = x.dtype == torch.bfloat16
        self._product(
            x.data_ptr(), packed.data_ptr(), bias.data_ptr() if bias is not None else None, out.data_ptr(),
            x.shape[0], x.shape[1], outs, half, half and not wide, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def add_norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, width] += added; RMSNorm of x, as `models.kernels.norm`."""
        out = torch.empty_like(x)
        self._add_norm(
            x.data_ptr(), added.data_ptr() if added is not None else None, weight.data_ptr(), out.data_ptr(),
            x.shape[0], x.shape[1], eps, x.dtype == torch.bfloat16, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def place(
        self, rows: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float, cos: torch.Tensor, sin: torch.Tensor,
        heads: int, kv_heads: int,
    ) -> None:  # fmt: skip
        """rows [T, heads + 2 kv_heads, d] in place: q and k normed (`norms`, each [d]) and turned by cos and sin [T, 1, d] float32, as
        `models.kernels.rotate`."""
        q_norm, k_norm = (norm.data_ptr() for norm in norms) if norms else (None, None)
        self._place(
            rows.data_ptr(), q_norm, k_norm, eps, cos.data_ptr(), sin.data_ptr(), rows.shape[0], heads, kv_heads, rows.shape[2],
            rows.dtype == torch.bfloat16, torch.get_num_threads(),
        )  # fmt: skip

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `models.kernels.gated`."""
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, inner)
        self._gate(gate_up.data_ptr(), out.data_ptr(), rows, inner, gate_up.dtype == torch.bfloat16, torch.get_num_threads())
        return out

    def attend(self, step: Step, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, d], k and v [T, kv_heads, d], rows at any distance -> [T, heads, d]; writes k and v to their places first."""
        out = torch.empty(q.shape, dtype=q.dtype)
        refused = self._attend(
            step, layer, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), q.stride(0), k.stride(0), q.dtype == torch.bfloat16
        )
        assert not refused, f"heads of {q.shape[2]}"
        return out


def kernels(choice: Choice = "auto") -> Kernels | None:
    """The kernels; None where torch's operators shall do it, or must. ConfigError if `native` is asked for and cannot be had."""
    if choice == "torch":
        return None
    found = _built()
    if isinstance(found, Kernels):
        return found
    if choice == "native":
        raise ConfigError(f"rollout.kernels = 'native': {found}")
    _log.warning("decoding runs on torch's operators, which takes longer: %s", found)
    return None


@functools.cache
def _built() -> Kernels | str:
    try:
        return Kernels(library())
    except BuildError as error:
        return str(error)
