"""The dense kernels of the decoders: projections, and what the head (`models.head`) shares with them.

Weights may be stored in another dtype than the one computed in: they are cast where they are used, so a float32 master
weight receives its gradient in float32 while the numbers equal, bit for bit, those of an engine that stores the cast weights.

Frozen bfloat16 and float32 weights on the CPU are computed from copies in panels, by compiled kernels, or in oneDNN's own layout, made at
first use. A copy is keyed by the version counter and the address of its weights, so whatever changes weights in place also makes the copy
anew. Compiled kernels make panels of bfloat16 rows' trained weights at every use.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.models.rowwise import recorded
from paceline.native.calls import Kernels, Panels

Make = Callable[[torch.Tensor], torch.Tensor]

_ROWS_HINT = 64
"""Number of rows the layout of a packed copy is chosen for; it works for any."""


def bare_linear(inputs: int, outputs: int, bias: bool, like: torch.Tensor) -> nn.Linear:
    """A linear layer with uninitialised storage of the dtype and device of `like`."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta", dtype=like.dtype)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=like.dtype, device=like.device))
    if bias:
        layer.bias = nn.Parameter(torch.empty(outputs, dtype=like.dtype, device=like.device))
    return layer


class Derived:
    """A tensor computed from weights, kept until they change."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._value: torch.Tensor | None = None

    def get(self, parts: Sequence[torch.Tensor], kind: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The kept tensor; `make` it when `parts` were written to, moved, or another `kind` is asked for."""
        key = (kind, *((part.data_ptr(), part._version) for part in parts))
        if self._value is None or key != self._key:
            self._value = None  # its memory serves the next one
            self._key, self._value = key, make()
        return self._value

    def __getstate__(self) -> dict[str, None]:
        """Copies and pickles of a model start without derived tensors."""
        return {"_key": None, "_value": None}


class Projection:
    """One or more linear layers that read the same input, run as one product: the one place where the body multiplies matrices.

    The layers' parameters keep their own names but lie next to each other in one storage, also in deep copies. The product
    reads that storage, or a packed copy of it. After something moved a parameter elsewhere (`.to`, a wrapper), and for a
    compiler, the parts are concatenated at use.
    """

    def __init__(self, *layers: nn.Linear) -> None:
        self.layers = layers
        self.kernels: Kernels | None = None
        """Compiled ones, for weights that train and for frozen ones beside them."""
        self._packed = Derived()
        self._outs = sum(layer.out_features for layer in layers)
        if len(layers) > 1:
            sizes = [layer.out_features for layer in layers]
            for kind in ("weight", "bias"):
                parts = [getattr(layer, kind) for layer in layers]
                if parts[0] is not None:
                    together = torch.cat([part.detach() for part in parts])
                    for layer, old, part in zip(layers, parts, torch.split(together, sizes), strict=True):
                        setattr(layer, kind, nn.Parameter(part, requires_grad=old.requires_grad))

    def __deepcopy__(self, memo: dict[int, Any]) -> Projection:
        """One of the copied layers: copying parameters one by one takes them apart."""
        copied = Projection(*copy.deepcopy(self.layers, memo))
        copied.kernels = self.kernels
        return copied

    def __call__(self, source: torch.Tensor, make: Make | None = None) -> torch.Tensor:
        """source x [T, in] -> the outputs side by side [T, sum(out)], in the dtype of x; with `make` those of make(x).

        A lone row may be added up in another order than one of many: let it come twice. With `make` a backward pass needs x alone
        and makes make(x) again: for cheap functions whose own gradient keeps x anyway.
        """
        x = source if make is None else make(source)
        weights = [layer.weight for layer in self.layers]
        biases = [layer.bias for layer in self.layers if layer.bias is not None]
        if torch.compiler.is_compiling():
            return F.linear(x, _side_by_side(weights, x.dtype), _side_by_side(biases, x.dtype) if biases else None)
        if recorded(x, *weights):
            given = (None, None) if make is None else (make, source.detach())
            result: torch.Tensor = _Product.apply(x, *given, self.kernels, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
            return result
        return self._frozen(x, weights, biases) if servable(x, weights) else _times(x, weights, biases, self.kernels)

    def _frozen(self, x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> torch.Tensor:
        """From a copy of the weights in another layout, that is kept until they change."""
        if (kernels := _trains(self.kernels, weights, x.dtype)) and (panels := self.panels(kernels)):
            return kernels.product(x.contiguous(), panels)  # as weights of the same values that train
        packed = self._packed.get(weights, "packed", lambda: library_pack(_joined(weights, x.dtype)))
        return packed_product(x, packed, _joined(biases, x.dtype) if biases else None)

    def panels(self, kernels: Kernels) -> Panels | None:
        """The matrix as compiled kernels multiply by it, until the weights change; None where they do not multiply better."""
        weights = [layer.weight for layer in self.layers]
        if not kernels.multiplies(weights[0]):
            return None
        packed = self._packed.get(weights, "panels", lambda: kernels.pack(_joined(weights, weights[0].dtype)))
        biases = [layer.bias for layer in self.layers if layer.bias is not None]
        return Panels(packed, _joined(biases, torch.float32) if biases else None, weights[0].shape[1], self._outs)

    def served(self, kernels: Kernels) -> Make:
        """As a call without gradient on the CPU, until the weights change: by compiled kernels, where they multiply better."""
        panels = self.panels(kernels)
        return functools.partial(in_company, self) if panels is None else functools.partial(kernels.product, panels=panels)


class _Product(torch.autograd.Function):
    """x W^T + b of layers side by side. Neither the weights in the dtype of x are kept nor, where it can be made again, x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        make: Make | None,
        source: torch.Tensor | None,
        kernels: Kernels | None,
        count: int,
        *parts: torch.Tensor,
    ) -> torch.Tensor:
        """x [T, in] = make(source) where these are given; parts: `count` weights [out, in], then as many biases [out] or none."""
        ctx.save_for_backward(x if source is None else source)
        # Themselves, for their gradients grow in place: what was saved comes back as another tensor where a layer is computed again.
        ctx.parts, ctx.make, ctx.kernels, ctx.count = parts, make, kernels, count
        return _times(x, parts[:count], parts[count:], kernels)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """In the dtype of x, but for what compiled kernels add up: the gradient of the weights, in float32."""
        (x,), parts, grad = ctx.saved_tensors, ctx.parts, grads[0].contiguous()
        weights, biases = parts[: ctx.count], parts[ctx.count :]
        kernels = _trains(ctx.kernels, weights, grad.dtype)
        for_x = _times_transposed(grad, weights, kernels) if ctx.needs_input_grad[0] else None
        found: list[torch.Tensor | None] = [None] * len(parts)
        wanted = ctx.needs_input_grad[5 : 5 + ctx.count]
        if any(wanted):
            rows = x if ctx.make is None else ctx.make(x)
            if all(wanted) and kernels is not None and kernels.adds_up(grad, weights[0]):
                add_gradient(kernels, grad, rows.contiguous(), weights)
            else:
                for_weights = (grad.t() @ rows).to(weights[0].dtype)
                found[: ctx.count] = torch.split(for_weights, [weight.shape[0] for weight in weights])
        if biases:
            found[ctx.count :] = torch.split(grad.sum(0).to(biases[0].dtype), [bias.shape[0] for bias in biases])
        return for_x, None, None, None, None, *found


def _trains(kernels: Kernels | None, weights: Sequence[torch.Tensor], dtype: torch.dtype) -> Kernels | None:
    """The kernels, if they multiply rows of a dtype by these weights."""
    if kernels is None or weights[0].device.type != "cpu":
        return None
    return kernels if kernels.trains((sum(map(len, weights)), weights[0].shape[1]), weights[0].dtype, dtype) else None


def _times(x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], kernels: Kernels | None) -> torch.Tensor:
    """x [T, in] W^T + b in the dtype of x."""
    bias = _joined(biases, x.dtype) if biases else None
    kernels = _trains(kernels, weights, x.dtype)
    if kernels is not None:
        whole = _joined(weights, weights[0].dtype)
        panels = Panels(kernels.pack(whole, x.dtype), None if bias is None else bias.float(), whole.shape[1], whole.shape[0])
        return kernels.product(x.contiguous(), panels)
    return F.linear(x, _joined(weights, x.dtype), bias)


def _times_transposed(grad: torch.Tensor, weights: Sequence[torch.Tensor], kernels: Kernels | None) -> torch.Tensor:
    """grad [T, out] W, by kernels that multiply by these weights, if any."""
    if kernels is None:
        return grad @ _joined(weights, grad.dtype)
    whole = _joined(weights, weights[0].dtype)
    return kernels.product(grad, Panels(kernels.pack(whole, grad.dtype, over=True), None, whole.shape[0], whole.shape[1]))


def add_gradient(kernels: Kernels, grad: torch.Tensor, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    """Add grad^T x to the gradients of leaves in place: these lie one behind the other, so no second tensor of their size is made."""
    assert all(weight.is_leaf for weight in weights), "their gradients would be lost"
    known = [weight.grad for weight in weights if weight.grad is not None]
    total = _view(known) if len(known) == len(weights) else None
    if total is not None:
        kernels.matrix_gradient(grad, x, total, add=True)
        return
    part = torch.empty(grad.shape[1], x.shape[1], dtype=torch.float32)
    kernels.matrix_gradient(grad, x, part, add=False)
    for weight, rows in zip(weights, torch.split(part, [weight.shape[0] for weight in weights]), strict=True):
        weight.grad = rows if weight.grad is None else weight.grad.add_(rows)


def lookup(ids: torch.Tensor, weight: torch.Tensor, padding: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Rows `ids` [T] of weight [vocabulary, width] in `dtype`; row `padding` receives no gradient.

    On the CPU the gradient is added to the rows of `weight.grad` that were looked up, instead of to all as a matrix of mostly zeros. Other
    devices take torch's way, which adds up in a fixed order there.
    """
    if recorded(weight) and weight.device.type == "cpu":
        rows: torch.Tensor = _Lookup.apply(ids, weight, padding, dtype)  # type: ignore[no-untyped-call]
        return rows
    return F.embedding(ids, weight, padding).to(dtype)


class _Lookup(torch.autograd.Function):
    """weight[ids]."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight: torch.Tensor, padding: int | None, dtype: torch.dtype) -> torch.Tensor:
        """As `lookup`."""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return F.embedding(ids, weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        """Adds to the gradient in place."""
        (ids,), weight = ctx.saved_tensors, ctx.weight
        rows = grads[0].to(weight.dtype)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, None], 0)
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids, rows)
        return None, None, None, None


def in_company(product: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """The product of rows; a single one is doubled, since libraries add up a lone row in another order than one of many."""
    return product(rows) if rows.shape[0] != 1 else product(torch.cat([rows, rows]))[:1]


def servable(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Whether a packed copy may stand for these weights: a CPU that computes in their dtype, no gradient asked for, changes tracked."""
    return (
        x.device.type == "cpu"
        and all(tensor.dtype == x.dtype and not tensor.requires_grad and not tensor.is_inference() for tensor in weights)
        and not (x.requires_grad and torch.is_grad_enabled())
        and _onednn_computes(x.dtype)
    )


@functools.cache
def _onednn_computes(dtype: torch.dtype) -> bool:
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def library_pack(weight: torch.Tensor) -> torch.Tensor:
    """weight [out, in] in oneDNN's layout."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    return packed


def packed_product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, in] W^T + b by a matrix that `library_pack` laid out."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return result


def _joined(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The parts as one tensor along the first dimension, in `dtype`, without gradient: a view where their storage allows it."""
    whole = _view(parts)
    return _side_by_side([part.detach() for part in parts], dtype) if whole is None else whole.to(dtype)


def _view(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The parts as one tensor along the first dimension, without gradient, if they lie one behind the other in one storage."""
    first = parts[0].detach()
    end, storage = first.data_ptr(), first.untyped_storage()._cdata
    for part in parts:
        if part.data_ptr() != end or part.untyped_storage()._cdata != storage or not part.is_contiguous():
            return None
        end += part.nbytes
    return first.as_strided((sum(part.shape[0] for part in parts), *first.shape[1:]), first.stride())


def _side_by_side(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A copy of the parts along the first dimension, in `dtype`."""
    return torch.cat([part.to(dtype) for part in parts])


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """float32 matrix products on the CPU round their inputs to bfloat16 and accumulate and return float32."""
    backend: Any = torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    backend.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        backend.matmul.fp32_precision = before
