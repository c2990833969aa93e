"""What a decoder does to each row alone: norm, rotation, gate; with backward passes that keep an input or nothing.

Given compiled kernels they are one call each on the CPU, in float32 inside as everywhere; for float64, other devices and torch's compiler
they are made of torch's operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from paceline.native.calls import DTYPES, Kernels


def recorded(*tensors: torch.Tensor) -> bool:
    """Whether a backward pass will ask for what is computed from `tensors`. A compiler decides by itself what it keeps for that."""
    return not torch.compiler.is_compiling() and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _compiled(kernels: Kernels | None, x: torch.Tensor) -> Kernels | None:
    """The kernels, where they can compute with x."""
    return kernels if not torch.compiler.is_compiling() and x.device.type == "cpu" and x.dtype in DTYPES else None


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, kernels: Kernels | None = None) -> torch.Tensor:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * weight, accumulated in float32 (float64 for float64)."""
    kernels = _compiled(kernels, x)
    if recorded(x, weight):
        scaled: torch.Tensor = _Norm.apply(x, weight, eps, kernels)  # type: ignore[no-untyped-call]
        return scaled
    return _scaled(x, weight, eps, kernels)


def _scaled(x: torch.Tensor, weight: torch.Tensor, eps: float, kernels: Kernels | None) -> torch.Tensor:
    if kernels is None:
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
    return kernels.add_norm(x.reshape(-1, x.shape[-1]), None, weight.to(x.dtype), eps).view(x.shape)


class _Norm(torch.autograd.Function):
    """Keeps its input alone. With u = x / sqrt(mean(x^2) + eps) and h = gradient * weight: (h - u mean(h u)) / sqrt(mean(x^2) + eps)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, kernels: Kernels | None) -> torch.Tensor:
        """As `norm`."""
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.kernels = eps, kernels
        return _scaled(x, weight, eps, kernels)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """In float32 (float64 for float64), rounded at the end."""
        x, weight = ctx.saved_tensors
        if ctx.kernels is not None:
            rows, given = (part.reshape(-1, x.shape[-1]) for part in (x, grads[0]))
            for_x, for_weight = ctx.kernels.norm_backward(rows, weight.to(x.dtype), given, ctx.eps)
            return for_x.view(x.shape), for_weight.to(weight.dtype), None, None
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale = (length.square() / x.shape[-1] + ctx.eps).rsqrt()
        grad, unit, factors = grads[0].to(wide), x.to(wide) * scale, weight.to(x.dtype).to(wide)
        product = grad * unit
        for_weight = product.flatten(0, -2).sum(0)
        share = product.mul_(factors).mean(-1, keepdim=True)
        for_x = (grad * factors).sub_(unit.mul_(share)).mul_(scale)
        return for_x.to(x.dtype), for_weight.to(weight.dtype), None, None


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kernels: Kernels | None = None) -> torch.Tensor:
    """Rotary embedding of x [T, n, d] by angles [T, 1, d]; pairs are (i, i + d/2). The first half of sin has its sign turned; cos and sin
    are wider than x where x is bfloat16."""
    kernels = _compiled(kernels, x)
    if recorded(x):
        turned: torch.Tensor = _Rotation.apply(x, cos, sin, kernels)  # type: ignore[no-untyped-call]
        return turned
    return _rotated(x, cos, sin, kernels)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kernels: Kernels | None, back: bool = False) -> torch.Tensor:
    if kernels is not None:
        return kernels.turned(gapless(x), cos, sin, back)
    wide = x.to(cos.dtype)
    return (wide * cos).add_(wide.roll(x.shape[-1] // 2, -1).mul_(-sin if back else sin)).to(x.dtype)


class _Rotation(torch.autograd.Function):
    """A rotation, whose gradient is turned back; nothing of x is kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kernels: Kernels | None) -> torch.Tensor:
        """As `rotate`."""
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        return _rotated(x, cos, sin, kernels)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """By the negative angle: both halves of cos and, but for the sign, of sin are equal."""
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, sin, ctx.kernels, back=True), None, None, None


def gapless(x: torch.Tensor) -> torch.Tensor:
    """x [T, n, d] as kernels read it: rows may lie at any distance, the numbers of each next to each other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def gated(gate_up: torch.Tensor, kernels: Kernels | None = None) -> torch.Tensor:
    """[T, 2 x inner], gate beside up -> silu(gate) * up [T, inner]."""
    kernels = _compiled(kernels, gate_up)
    if recorded(gate_up):
        product: torch.Tensor = _Gated.apply(gate_up, kernels)  # type: ignore[no-untyped-call]
        return product
    if kernels is not None:
        return kernels.gate(gate_up.contiguous())
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _Gated(torch.autograd.Function):
    """Keeps its input alone and makes silu(gate) again."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor, kernels: Kernels | None) -> torch.Tensor:
        """As `gated`."""
        ctx.kernels = kernels
        if kernels is not None:
            gate_up = gate_up.contiguous()
            ctx.save_for_backward(gate_up)
            return kernels.gate(gate_up)
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Both halves next to each other."""
        (gate_up,), (grad,) = ctx.saved_tensors, grads
        if ctx.kernels is not None:
            return ctx.kernels.gate_backward(gate_up, grad.contiguous()), None
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        for_gate, for_up = result.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=for_gate)
        torch.mul(grad, F.silu(gate), out=for_up)
        return result, None
