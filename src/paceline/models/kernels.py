"""The few dense kernels of the slim decoder: linear layers, fused groups of them, and the head.

Weights may be stored in another dtype than the one computed in: they are cast where they are used, so a float32 master
weight receives its gradient in float32 while the numbers equal those of an engine that stores the cast weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, in], weight [out, in], bias [out] -> [T, out] in the dtype of x. The one place where the body multiplies matrices."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * weight, accumulated in float32 (float64 for float64)."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def bare_linear(inputs: int, outputs: int, bias: bool, like: torch.Tensor) -> nn.Linear:
    """A linear layer with uninitialised storage of the dtype and device of `like`."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta", dtype=like.dtype)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=like.dtype, device=like.device))
    if bias:
        layer.bias = nn.Parameter(torch.empty(outputs, dtype=like.dtype, device=like.device))
    return layer


class Fused:
    """Linear layers that read the same input, run as one product.

    Their parameters keep their own names but lie next to each other in one storage. Without gradients the product reads
    that storage directly: there is no copy that could go stale. With gradients, or after something moved a parameter
    elsewhere (deepcopy, `.to`, a wrapper), the parts are concatenated at use.
    """

    def __init__(self, *layers: nn.Linear) -> None:
        self.layers = layers
        self.sizes = [layer.out_features for layer in layers]
        for kind in ("weight", "bias"):
            parts = [getattr(layer, kind) for layer in layers]
            if parts[0] is not None:
                for layer, part in zip(layers, torch.split(torch.cat([p.detach() for p in parts]), self.sizes), strict=True):
                    setattr(layer, kind, nn.Parameter(part))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] -> the outputs side by side [T, sum(out)]."""
        weights = [layer.weight for layer in self.layers]
        biases = [layer.bias for layer in self.layers]
        bias = None if biases[0] is None else _joined(biases, x.dtype)
        return linear(x, _joined(weights, x.dtype), bias)


def _joined(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The parts as one tensor along the first dimension, in `dtype`: a view where their storage allows it."""
    first = parts[0]
    if torch.is_grad_enabled() and first.requires_grad:
        return torch.cat([part.to(dtype) for part in parts])
    end = first.data_ptr()
    for part in parts:
        if part.data_ptr() != end:
            return torch.cat([part.detach().to(dtype) for part in parts])
        end += part.nbytes
    rows = sum(part.shape[0] for part in parts)
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride()).to(dtype)


@contextmanager
def _bfloat16_products() -> Iterator[None]:
    """float32 matrix products on the CPU round their inputs to bfloat16 and accumulate and return float32."""
    backend: Any = torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    backend.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        backend.matmul.fp32_precision = before


class _Head(torch.autograd.Function):
    """logits = h W^T with bfloat16 inputs, float32 accumulation and a float32 result, forward and backward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """hidden [N, width] bfloat16, weight [vocabulary, width] -> [N, vocabulary] float32."""
        ctx.save_for_backward(hidden, weight)
        with _bfloat16_products():
            return F.linear(hidden.float(), _rounded(weight))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Gradients in the dtypes of hidden and weight."""
        hidden, weight = ctx.saved_tensors
        (grad,) = grads
        with _bfloat16_products():
            for_hidden = (grad @ _rounded(weight)).to(hidden.dtype) if ctx.needs_input_grad[0] else None
            for_weight = (grad.t() @ hidden.float()).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return for_hidden, for_weight


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    """Values of bfloat16 in float32 storage, whatever a CPU would round to by itself."""
    return weight.to(torch.bfloat16).float()


def head(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """hidden [N, width], weight [vocabulary, width] -> logits [N, vocabulary] in float32 (float64 for float64).

    bfloat16 inputs are multiplied exactly and added up in float32: a bfloat16 *result* would move a logit of 16 by up to 0.06.
    """
    if hidden.dtype == torch.bfloat16:
        result: Callable[..., torch.Tensor] = _Head.apply
        return result(hidden, weight)
    return F.linear(hidden, weight.to(hidden.dtype))
