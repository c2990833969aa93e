"""Rows on their way through decoder layers, two calls each: one before the attention, one after it."""

from __future__ import annotations

import ctypes

import torch

from paceline.native.calls import Kernels, Panels


class _Matrix(ctypes.Structure):
    """`struct Matrix` of kernels.cpp."""

    _fields_ = (("panels", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("ins", ctypes.c_int64), ("outs", ctypes.c_int64))


class _Layer(ctypes.Structure):
    """`struct Layer` of kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("before", "q_norm", "k_norm", "after")),
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
    )


class _Pass(ctypes.Structure):
    """`struct Pass` of kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "added", "normed", "qkv", "gate_up", "gated", "cos", "sin")),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "kv_heads", "d")),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int32),
    )


class LayerWeights:
    """Of one layer, all of whose matrices lie in panels."""

    def __init__(
        self, before: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor] | None, qkv: Panels, out: Panels, after: torch.Tensor,
        gate_up: Panels, down: Panels,
    ) -> None:  # fmt: skip
        """Norms are in the dtype of the rows: before the attention, of queries and keys (each [d], if any), before the gate."""
        self.qkv, self.gate_up, self.down = qkv, gate_up, down
        self._held = (before, norms, qkv, out, after, gate_up, down)  # addresses alone keep nothing alive
        q_norm, k_norm = (norm.data_ptr() for norm in norms) if norms else (None, None)
        matrices = (_Matrix(*panels.addresses(), panels.ins, panels.outs) for panels in (qkv, out, gate_up, down))
        self.there = _Layer(before.data_ptr(), q_norm, k_norm, after.data_ptr(), *matrices)


class Pass:
    """One forward of T rows. `enter` and `leave` take turns, layer after layer; every layer computes in the same memory."""

    def __init__(
        self, kernels: Kernels, x: torch.Tensor, layer: LayerWeights, heads: tuple[int, int, int], cos: torch.Tensor, sin: torch.Tensor,
        eps: float,
    ) -> None:  # fmt: skip
        """x [T, width] is written to; layer: any, for its sizes. heads: query heads, key-value heads, size of a head; cos and sin as in
        `Kernels.place`."""
        rows, sizes = len(x), (x.shape[1], x.shape[1], layer.qkv.outs, layer.gate_up.outs, layer.down.ins)
        self._kernels, self._x, self._eps = kernels, x, eps
        self._added, normed, qkv, gate_up, gated = (x.new_empty(rows, size) for size in sizes)
        self._held = (x, self._added, normed, qkv, gate_up, gated, cos, sin)
        self._there = _Pass(*(tensor.data_ptr() for tensor in self._held), rows, *heads, eps, torch.get_num_threads())
        self._parts: tuple[torch.Tensor, ...] = torch.split(qkv.view(rows, -1, heads[2]), [heads[0], heads[1], heads[1]], dim=1)
        self._begun = False

    def enter(self, layer: LayerWeights) -> tuple[torch.Tensor, ...]:
        """q [T, heads, d], k and v [T, kv_heads, d] of a layer, normed and turned; the next layer's will take their place."""
        self._kernels.enter(layer.there, self._there, self._begun, self._x.dtype)
        self._begun = True
        return self._parts

    def leave(self, layer: LayerWeights, attended: torch.Tensor) -> None:
        """attended [T, heads, d]: what the attention made of them."""
        self._kernels.leave(layer.there, self._there, attended.reshape(len(attended), -1).contiguous(), self._x.dtype)

    def end(self, weight: torch.Tensor) -> torch.Tensor:
        """The last norm [T, width]."""
        return self._kernels.add_norm(self._x, self._added, weight, self._eps)
