"""The head of a decoder: from hidden states to logits and to log-probs, with gradients that add up where they lie."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paceline.models.kernels import Derived, Make, add_gradient, bfloat16_products, in_company, library_pack, packed_product, servable
from paceline.native.calls import Kernels, Panels

_ROWS_TOGETHER = 2048
"""Rows of a gradient that are added at a time."""


class Head:
    """hidden states -> logits in float32 (float64 for float64) with the matrix of `owner.weight` [vocabulary, width].

    bfloat16 inputs are multiplied exactly and added up in float32, forward and backward: a bfloat16 *result* would move a
    logit of 16 by up to 0.06. A float32 copy of the bfloat16 values is kept for that.
    """

    def __init__(self, owner: nn.Module) -> None:
        self._owner = owner
        self._copy, self._rounded = Derived(), Derived()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, width] -> [N, vocabulary]."""
        return in_company(self._product, hidden)

    def served(self, kernels: Kernels) -> Make:
        """As a call without gradient on the CPU, until the weights change: by compiled kernels, where they multiply better."""
        weight: torch.Tensor = self._owner.weight  # type: ignore[assignment]
        if not kernels.multiplies(weight):
            return self
        return functools.partial(kernels.product, panels=self._panels(weight.detach(), kernels), wide=True)

    def scores(
        self, hidden: torch.Tensor, ids: torch.Tensor, temperature: float, *, entropy: bool, keep: bool, kernels: Kernels
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the logits of hidden [n, width] on the CPU: log-probs of ids [n] at the temperature and entropies, [n] or [0], float32.

        keep: the backward pass reads the logits again; else it makes them again. IndexError for an id that is none of the vocabulary.
        """
        vocabulary, ids = len(self._owner.weight), ids.to(torch.int64).contiguous()  # type: ignore[arg-type]
        odd = ids[(ids < 0) | (ids >= vocabulary)].tolist()
        if odd:  # the kernels would read what lies beside the row
            raise IndexError(f"token {odd[0]} is none of a vocabulary of {vocabulary}")
        found: tuple[torch.Tensor, torch.Tensor] = _HeadScores.apply(  # type: ignore[no-untyped-call]
            hidden, self._owner.weight, ids, temperature, entropy, keep, self, kernels
        )
        return found

    def logits(self, hidden: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        """As a call, in training and without a record for a backward pass."""
        weight = self.rounded(hidden.dtype)
        if hidden.dtype == torch.bfloat16 and kernels.multiplies(weight):
            return kernels.product(hidden.contiguous(), self._panels(weight, kernels), wide=True)
        return self(hidden)

    def _panels(self, matrix: torch.Tensor, kernels: Kernels) -> Panels:
        """matrix: the weights, or what they are rounded to."""
        packed = self._copy.get([self._owner.weight], f"panels {matrix.dtype}", lambda: kernels.pack(matrix))  # type: ignore[list-item]
        return Panels(packed, None, matrix.shape[1], matrix.shape[0])

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix in `dtype`, without gradient: a copy that is kept until the weights change."""
        weight: torch.Tensor = self._owner.weight  # type: ignore[assignment]
        if weight.dtype == dtype:
            return weight.detach()
        return self._rounded.get([weight], str(dtype), lambda: weight.detach().to(dtype))

    def _product(self, hidden: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self._owner.weight  # type: ignore[assignment]
        packable = servable(hidden, [weight])
        if hidden.dtype != torch.bfloat16:
            if packable:
                return packed_product(hidden, self._copy.get([weight], "packed", lambda: library_pack(weight.detach())), None)
            return _head_product(hidden, weight, weight.detach().to(hidden.dtype))
        if packable:
            with bfloat16_products():
                packed = self._copy.get([weight], "packed", lambda: library_pack(weight.detach().float()))
                return packed_product(hidden.float(), packed, None)
        return _head_product(hidden, weight, self._copy.get([weight], "rounded", lambda: weight.detach().to(torch.bfloat16).float()))


def _head_product(hidden: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _HeadProduct.apply(hidden, weight, matrix)  # type: ignore[no-untyped-call]
    return result


class _HeadProduct(torch.autograd.Function):
    """logits = h W^T, from bfloat16 inputs with float32 accumulation and result. Gradients are products in the dtype of h, as everywhere.

    That of W adds up in place (`_grow`): chunk after chunk, and the look-up's in the end, in one tensor of its size.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """hidden [N, width], weight [vocabulary, width], matrix its values: rounded to bfloat16 and in float32 where hidden is bfloat16,
        else in the dtype of hidden -> [N, vocabulary] in the dtype of matrix."""
        ctx.save_for_backward(hidden)
        ctx.weight = weight
        if hidden.dtype != torch.bfloat16:
            return F.linear(hidden, matrix)
        with bfloat16_products():
            return F.linear(hidden.float(), matrix)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradient of hidden in its dtype."""
        (hidden,), weight = ctx.saved_tensors, ctx.weight
        grad = grads[0].to(hidden.dtype)
        return _through_head(ctx, grad, hidden, weight, lambda: weight.detach().to(hidden.dtype)), None, None


class _HeadScores(torch.autograd.Function):
    """Log-probs and entropies from hidden states: of numbers as large as the logits there are the logits and, backward, their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        temperature: float,
        entropy: bool,
        keep: bool,
        head: Head,
        kernels: Kernels,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Head.scores`."""
        logits = head.logits(hidden, kernels)
        logp, spread = kernels.score(logits, ids, temperature, entropy)
        ctx.save_for_backward(hidden, ids, logp, logits if keep else None)
        ctx.weight, ctx.temperature, ctx.head, ctx.kernels = weight, temperature, head, kernels
        ctx.mark_non_differentiable(spread)
        return logp, spread

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradient of hidden in its dtype; that of the weights as in `_HeadProduct`."""
        hidden, ids, logp, logits = ctx.saved_tensors
        if logits is None:
            with torch.no_grad():
                logits = ctx.head.logits(hidden, ctx.kernels)
        grad = ctx.kernels.score_backward(logits, ids, logp, grads[0].contiguous(), ctx.temperature, hidden.dtype)
        del logits
        return _through_head(ctx, grad, hidden, ctx.weight, lambda: ctx.head.rounded(hidden.dtype), ctx.kernels), *[None] * 7


def _through_head(
    ctx: Any,
    grad: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    matrix: Callable[[], torch.Tensor],
    kernels: Kernels | None = None,
) -> torch.Tensor | None:
    """Gradient of hidden [N, width], the first input, given that of the logits in its dtype; that of the weights, the second, adds up."""
    for_hidden = grad @ matrix() if ctx.needs_input_grad[0] else None
    if ctx.needs_input_grad[1] and kernels is not None and kernels.adds_up(grad, weight):
        add_gradient(kernels, grad, hidden.contiguous(), [weight])
    elif ctx.needs_input_grad[1]:
        _grow(weight, grad.t() @ hidden)
    return for_hidden


def _grow(weight: torch.Tensor, part: torch.Tensor) -> None:
    """Add `part`, of any dtype, to the gradient of a leaf, some rows at a time: no second tensor of the gradient's size is made."""
    assert weight.is_leaf, "its gradient would be lost"
    if weight.grad is None:
        weight.grad = part.to(weight.dtype)
        return
    for total, rows in zip(torch.split(weight.grad, _ROWS_TOGETHER), torch.split(part, _ROWS_TOGETHER), strict=True):
        total += rows
