"""The kernels as functions of tensors. They trust their callers: contiguous CPU tensors of the dtypes named, unless stated otherwise."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from paceline.native.build import BuildError, library
from paceline.native.machine import LONGEST_PAGE, MOST_INPUTS
from paceline.types.errors import ConfigError

Choice = Literal["auto", "native", "torch"]
_log = logging.getLogger(__name__)
DTYPES = (torch.bfloat16, torch.float32)
LANES = 16
"""Numbers of a vector; attention in training takes heads of multiples of it."""
_DEPTH = 4096
"""Rows over which the gradient of a matrix is summed up at a time: panels of more would leave a core's cache."""
_TOGETHER = 64
"""Rows whose share of a weight's gradient is added up together."""


class Step(ctypes.Structure):
    """`struct Step` of pages.cpp: what all layers of one step have in common."""

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


class Blocks(ctypes.Structure):
    """`struct Blocks` of training.cpp: packed rows, and what all layers have in common."""

    _fields_ = (
        ("firsts", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("d", ctypes.c_int64),
        ("q_step", ctypes.c_int64),
        ("k_step", ctypes.c_int64),
        ("v_step", ctypes.c_int64),
        ("grad_step", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
        ("longest", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix as `Kernels.pack` lays it out, and a bias."""

    packed: torch.Tensor
    bias: torch.Tensor | None
    """[outs] float32."""
    ins: int
    outs: int

    def addresses(self) -> tuple[int, int | None]:
        """Of both."""
        return self.packed.data_ptr(), None if self.bias is None else self.bias.data_ptr()


class Kernels:
    """The compiled functions, with as many threads as torch has."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        tiles = " with tiles" if compiled.paceline_tiles() else ""
        self.name = f"kernels {hashlib.sha256(Path(compiled._name).read_bytes()).hexdigest()[:16]}{tiles}"
        """Names the code, by its bytes, and what the system allows it."""
        self.panel = int(compiled.paceline_panel())
        """Outputs of a panel."""
        names, ours = ("longest_page", "lanes", "together"), (LONGEST_PAGE, LANES, _TOGETHER)
        agreed = tuple(int(getattr(compiled, f"paceline_{name}")()) for name in names)
        assert agreed == ours, f"{names}: the library has {agreed}, this file {ours}"
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
        self._enter, self._leave = compiled.paceline_enter, compiled.paceline_leave
        self._enter.argtypes, self._leave.argtypes = (pointer, pointer, flag, flag), (pointer, pointer, pointer, flag)
        self._pack, self._matrix_gradient = compiled.paceline_pack, compiled.paceline_matrix_gradient
        self._pack.argtypes = (pointer, pointer, long, long, flag, flag, flag)
        self._matrix_gradient.argtypes = (*[pointer] * 4, *[long] * 3, flag, flag)
        self._gradient_room = compiled.paceline_gradient_room
        self._gradient_room.argtypes, self._gradient_room.restype = (*[long] * 3, flag), long
        self._attend.argtypes = (ctypes.POINTER(Step), long, *[pointer] * 4, long, long, flag)
        self._norm_backward, self._gate_backward = compiled.paceline_norm_backward, compiled.paceline_gate_backward
        self._turned, self._score, self._score_backward = (
            compiled.paceline_turned,
            compiled.paceline_score,
            compiled.paceline_score_backward,
        )
        self._texts, self._texts_backward = compiled.paceline_attend_texts, compiled.paceline_attend_texts_backward
        self._norm_backward.argtypes = (*[pointer] * 6, long, long, real, flag, flag)
        self._gate_backward.argtypes = (*[pointer] * 3, long, long, flag, flag)
        self._turned.argtypes = (pointer, long, pointer, pointer, flag, pointer, *[long] * 3, flag, flag)
        self._score.argtypes = (pointer, pointer, real, pointer, pointer, long, long, flag)
        self._score_backward.argtypes = (*[pointer] * 4, real, pointer, long, long, flag, flag)
        self._texts.argtypes = (ctypes.POINTER(Blocks), *[pointer] * 4, flag)
        self._texts_backward.argtypes = (ctypes.POINTER(Blocks), *[pointer] * 7, flag)

    def __deepcopy__(self, memo: object) -> Kernels:
        """Itself: it holds code, no weights."""
        return self

    @property
    def _parallel(self) -> bool:
        """Whether the kernels have the threads that torch has."""
        return self._threaded or torch.get_num_threads() == 1

    def multiplies(self, weight: torch.Tensor) -> bool:
        """Whether products with this matrix [out, in] are better made here than by a library, on this processor."""
        fits = weight.shape[1] <= MOST_INPUTS and not weight.shape[1] % 2
        return fits and self._parallel and self._multiplies.get(weight.dtype, False)

    def adds_up(self, grad: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether the gradient of a matrix, given that of its products' rows, is better made here: of bfloat16 rows, in float32."""
        return grad.dtype == torch.bfloat16 and weight.dtype == torch.float32 and self._multiplies[grad.dtype] and self._parallel

    def trains(self, shape: tuple[int, int], weight: torch.dtype, rows: torch.dtype) -> bool:
        """Whether products of rows of a dtype with a matrix of this shape [out, in], and with its transpose, are better made here."""
        fits = max(shape) <= MOST_INPUTS and not any(size % 2 for size in shape)
        return fits and rows == torch.bfloat16 and weight in DTYPES and self._multiplies[rows] and self._parallel

    def pack(self, weight: torch.Tensor, dtype: torch.dtype | None = None, over: bool = False) -> torch.Tensor:
        """weight [out, in] in panels, as `product` reads it: [ceil(out / panel), in, panel]; of bfloat16 in / 2 pairs, as int32.

        dtype: of the numbers in it, by default that of the weight. over: of its transpose, and of bfloat16 only.
        """
        dtype = dtype or weight.dtype
        outs, ins = reversed(weight.shape) if over else weight.shape
        if dtype == torch.bfloat16:
            fits = self._multiplies[dtype] and weight.dtype in DTYPES and weight.is_contiguous() and not ins % 2
            assert fits, f"{weight.dtype}, {tuple(weight.shape)} in steps of {weight.stride()}"
            packed = torch.empty(-(-outs // self.panel), ins // 2, self.panel, dtype=torch.int32)
            half = weight.dtype == torch.bfloat16
            self._pack(weight.data_ptr(), packed.data_ptr(), *weight.shape, over, half, torch.get_num_threads())
            return packed
        packed, full = weight.new_empty(-(-outs // self.panel), ins, self.panel), outs // self.panel
        packed[:full] = weight[: full * self.panel].view(full, self.panel, ins).transpose(1, 2)
        if full < len(packed):
            packed[full] = 0
            packed[full, :, : outs - full * self.panel] = weight[full * self.panel :].t()
        return packed

    def matrix_gradient(self, grad: torch.Tensor, x: torch.Tensor, total: torch.Tensor, add: bool) -> None:
        """total [out, in] float32 becomes, or (`add`) grows by, the gradient of a matrix: grad [T, out] and x [T, in] bfloat16."""
        _insist(grad, torch.bfloat16, (len(x), len(total)))
        _insist(x, torch.bfloat16, (len(grad), total.shape[1]))
        _insist(total, torch.float32, (grad.shape[1], x.shape[1]))
        threads, sizes = torch.get_num_threads(), (grad.shape[1], x.shape[1])
        pieces = list(zip(torch.split(grad, _DEPTH), torch.split(x, _DEPTH), strict=True)) if len(x) else []
        if not add and not pieces:
            total.zero_()
        # As much as the longest needs, or the last, which is cut in its own way.
        numbers = max((self._gradient_room(len(rows), *sizes, threads) for _, rows in pieces), default=0)
        room = torch.empty(numbers, dtype=torch.bfloat16)
        for index, (grads, rows) in enumerate(pieces):
            self._matrix_gradient(
                grads.data_ptr(), rows.data_ptr(), total.data_ptr(), room.data_ptr(), len(rows), *sizes, add or index > 0, threads
            )

    def product(self, x: torch.Tensor, panels: Panels, wide: bool = False) -> torch.Tensor:
        """x [T, in] times a matrix, + bias, added up in float32 -> [T, out] in the dtype of x, or float32 if `wide`.

        The bits of a row do not depend on how many there are.
        """
        half = x.dtype == torch.bfloat16
        _insist(x, x.dtype, (len(x), panels.ins))
        _insist(panels.packed, torch.int32 if half else torch.float32, tuple(panels.packed.shape))
        out = torch.empty(x.shape[0], panels.outs, dtype=torch.float32 if wide else x.dtype)
        self._product(
            x.data_ptr(), *panels.addresses(), out.data_ptr(), x.shape[0], panels.ins, panels.outs, half, half and not wide,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def enter(self, layer: ctypes.Structure, rows: ctypes.Structure, added: bool, dtype: torch.dtype) -> None:
        """The part of a layer before the attention (`native.layers`)."""
        self._enter(ctypes.addressof(layer), ctypes.addressof(rows), added, dtype == torch.bfloat16)

    def leave(self, layer: ctypes.Structure, rows: ctypes.Structure, attended: torch.Tensor, dtype: torch.dtype) -> None:
        """The part behind it; attended [T, heads x d] of the dtype."""
        assert attended.dtype == dtype, f"rows of {dtype}, attention of {attended.dtype}"
        self._leave(ctypes.addressof(layer), ctypes.addressof(rows), attended.data_ptr(), dtype == torch.bfloat16)

    def add_norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, width] += added; RMSNorm of x, as `models.rowwise.norm`."""
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
        `models.rowwise.rotate`."""
        q_norm, k_norm = (norm.data_ptr() for norm in norms) if norms else (None, None)
        self._place(
            rows.data_ptr(), q_norm, k_norm, eps, cos.data_ptr(), sin.data_ptr(), rows.shape[0], heads, kv_heads, rows.shape[2],
            rows.dtype == torch.bfloat16, torch.get_num_threads(),
        )  # fmt: skip

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `models.rowwise.gated`."""
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

    def norm_backward(self, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of x [T, width], in its dtype, and of weight [width], float32, given that of RMSNorm's result."""
        for_x, for_weight = torch.empty_like(x), torch.empty(x.shape[1], dtype=torch.float32)
        parts = torch.empty(-(-x.shape[0] // _TOGETHER), x.shape[1], dtype=torch.float32)
        self._norm_backward(
            x.data_ptr(), grad.data_ptr(), weight.data_ptr(), for_x.data_ptr(), for_weight.data_ptr(), parts.data_ptr(),
            x.shape[0], x.shape[1], eps, x.dtype == torch.bfloat16, torch.get_num_threads(),
        )  # fmt: skip
        return for_x, for_weight

    def gate_backward(self, gate_up: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Gradient of gate_up [T, 2 x inner], given that of `gate`'s result [T, inner]."""
        out = torch.empty_like(gate_up)
        self._gate_backward(
            gate_up.data_ptr(), grad.data_ptr(), out.data_ptr(), grad.shape[0], grad.shape[1], grad.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, back: bool = False) -> torch.Tensor:
        """x [T, heads, d], rows at any distance, turned as by `models.rowwise.rotate`, or `back`."""
        out = torch.empty(x.shape, dtype=x.dtype)
        self._turned(
            x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), back, out.data_ptr(), *x.shape, x.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def score(self, logits: torch.Tensor, ids: torch.Tensor, temperature: float, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """logits [n, vocabulary] float32, ids [n] -> of softmax(logits / temperature): log-prob of each id, and the entropy or [0]; each
        [n] float32."""
        _insist(logits, torch.float32, tuple(logits.shape))
        _insist(ids, torch.int64, (len(logits),))
        rows, size = logits.shape
        logp, spread = (torch.empty(n, dtype=torch.float32) for n in (rows, rows if entropy else 0))
        self._score(
            logits.data_ptr(), ids.data_ptr(), temperature, logp.data_ptr(), spread.data_ptr() if entropy else None,
            rows, size, torch.get_num_threads(),
        )  # fmt: skip
        return logp, spread

    def score_backward(
        self, logits: torch.Tensor, ids: torch.Tensor, logp: torch.Tensor, grad: torch.Tensor, temperature: float, dtype: torch.dtype
    ) -> torch.Tensor:
        """Gradient of logits [n, vocabulary], in `dtype`, given that of the log-probs [n]; logp: from `score`."""
        _insist(logits, torch.float32, tuple(logits.shape))
        _insist(ids, torch.int64, (len(logits),))
        for rows in (logp, grad):
            _insist(rows, torch.float32, (len(logits),))
        out = torch.empty(logits.shape, dtype=dtype)
        self._score_backward(
            logits.data_ptr(), ids.data_ptr(), logp.data_ptr(), grad.data_ptr(), temperature, out.data_ptr(), *logits.shape,
            dtype == torch.bfloat16, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def attend_texts(self, blocks: Blocks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of packed rows: q [R, heads, d], k and v [R, kv_heads, d], rows at any distance -> [R, heads, d].

        Every head of d numbers lies without gaps beside the next.
        """
        out = torch.empty(q.shape, dtype=q.dtype)
        self._texts(self._stepped(blocks, q, k, v), *(x.data_ptr() for x in (q, k, v, out)), q.dtype == torch.bfloat16)
        return out

    def attend_texts_backward(
        self, blocks: Blocks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of q, k and v, given that of the result, whose rows may be at any distance too."""
        for_q, for_k, for_v = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
        blocks = self._stepped(blocks, q, k, v, grad)
        self._texts_backward(blocks, *(x.data_ptr() for x in (q, k, v, grad, for_q, for_k, for_v)), q.dtype == torch.bfloat16)
        return for_q, for_k, for_v

    @staticmethod
    def _stepped(blocks: Blocks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor | None = None) -> Blocks:
        for x in (q, k, v, *([] if grad is None else [grad])):
            found = (x.dtype, x.stride()[1:])
            assert found == (q.dtype, (x.shape[2], 1)), f"{found}"
        assert not q.shape[1] % k.shape[1], f"{q.shape[1]} query heads for {k.shape[1]}"  # the rest would stay as it was found
        blocks.q_step, blocks.k_step, blocks.v_step = q.stride(0), k.stride(0), v.stride(0)
        blocks.grad_step = 0 if grad is None else grad.stride(0)
        blocks.threads = torch.get_num_threads()
        return blocks


def _insist(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """That an address which is given away holds what it is taken for; also where assertions are switched off."""
    found = (tensor.dtype, tuple(tensor.shape), tensor.is_contiguous())
    if found != (dtype, shape, True):
        raise AssertionError(f"{found}, wanted {dtype} {shape} without gaps")


def kernels(choice: Choice = "auto", key: str = "kernels") -> Kernels | None:
    """The kernels; None where torch's operators shall do it, or must. ConfigError if `native` is asked for and cannot be had.

    key: the setting that chose, for the error.
    """
    if choice == "torch":
        return None
    found = _built()
    if isinstance(found, Kernels):
        return found
    if choice == "native":
        raise ConfigError(f"{key} = 'native': {found}")
    _log.warning("torch's operators compute, not compiled kernels, which takes longer: %s", found)
    return None


@functools.cache
def _built() -> Kernels | str:
    try:
        return Kernels(library())
    except BuildError as error:
        return str(error)
