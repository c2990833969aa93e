"""The kernels as functions of tensors. They trust their callers: contiguous CPU tensors of the dtypes named, unless stated otherwise."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from pathlib import Path
from typing import Literal

import torch

from paceline.native.build import BuildError, library
from paceline.native.machine import LONGEST_PAGE, MOST_INPUTS
from paceline.types.errors import ConfigError

Choice = Literal["auto", "native", "torch"]
_log = logging.getLogger(__name__)
DTYPES = (torch.bfloat16, torch.float32)
PANEL = 48
"""Outputs of a panel."""


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
        self.name = f"kernels {hashlib.sha256(Path(compiled._name).read_bytes()).hexdigest()[:16]}"
        """Names the code, by its bytes."""
        agreed = (compiled.paceline_panel(), compiled.paceline_longest_page())
        assert agreed == (PANEL, LONGEST_PAGE), f"kernels.cpp has panels and pages of {agreed}"
        self._threaded = bool(compiled.paceline_threaded())
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
        fits = weight.shape[1] <= MOST_INPUTS and not weight.shape[1] % 2 and (self._threaded or torch.get_num_threads() == 1)
        return fits and self._multiplies.get(weight.dtype, False)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [out, in] in panels, as `product` reads it: [ceil(out / PANEL), in, PANEL]; of bfloat16 in / 2 pairs, as int32."""
        numbers = weight.view(torch.int32) if weight.dtype == torch.bfloat16 else weight  # a pair is moved as one number
        (outs, ins), full = numbers.shape, len(numbers) // PANEL
        packed = numbers.new_empty(-(-outs // PANEL), ins, PANEL)
        packed[:full] = numbers[: full * PANEL].view(full, PANEL, ins).transpose(1, 2)
        if full < len(packed):
            packed[full] = 0
            packed[full, :, : outs - full * PANEL] = numbers[full * PANEL :].t()
        return packed

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
        assert {q.dtype, k.dtype, v.dtype} in ({torch.bfloat16}, {torch.float32}), f"{q.dtype}, {k.dtype}, {v.dtype}"
        out = torch.empty(q.shape, dtype=q.dtype)
        refused = self._attend(
            step, layer, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), q.stride(0), k.stride(0), q.dtype == torch.bfloat16
        )
        if refused:
            raise ValueError(f"attention is not compiled for heads of {q.shape[2]}")
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
