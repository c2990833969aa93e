"""Any transformers causal decoder behind the packed seam: its own class runs, its attention calls the caller's attend.

Transformers lets a registered function replace the attention of most model classes. Whether a class goes through that
function for everything it mixes between tokens cannot be read off it, so `TransformersDecoder` proves it at construction:
two texts in one packed run must give what the class itself gives for each alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from paceline.models.attend import causal
from paceline.models.head import Head
from paceline.models.packed import Attend, Shape
from paceline.models.store import copy_into
from paceline.types.errors import ModelError

_PACKED = "paceline_packed"
_BEYOND = ("softcap", "s_aux", "position_bias", "sliding_window")
"""Arguments with which a class asks its attention for more than softmax(q k^T) v."""

_PROOF = (7, 5)
"""Lengths of the two texts of the proof."""
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Relative L2 difference of logits that rounding explains; a text that sees the other one is far outside."""


class KeepDouble(TorchFunctionMode):
    """Inside, float64 tensors stay float64 where a model class asks for float32 (norms, softmax), so float64 means float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Drop the request for float32 from `to`, `float` and `dtype=` of float64 tensors."""
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        return func(*args, **kwargs)


@dataclass(slots=True)
class _Call:
    """One run: the caller's attend, and what the class asked of it."""

    attend: Attend
    scale: float | None
    """Factor of attend on the scores; None = take the class's first."""
    layers: list[int] = field(default_factory=list)
    sizes: tuple[int, int, int] = (0, 0, 0)
    """heads, kv_heads, head_dim"""


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    paceline_call: _Call | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: query [1, heads, T, d], key and value [1, kv_heads, T, d] -> [1, T, heads, d]."""
    if paceline_call is None:
        raise ModelError(f"{type(module).__name__} does not hand its arguments on to the attention")
    call, name = paceline_call, type(module).__name__
    for argument in _BEYOND:
        if kwargs.get(argument) is not None:
            raise ModelError(f"{name} asks its attention for {argument!r}, which packed attention does not compute")
    if query.shape[-1] != value.shape[-1]:
        raise ModelError(
            f"{name} has values of {value.shape[-1]} and keys of {query.shape[-1]} numbers; packed attention needs equal sizes"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if call.scale is None:
        call.scale = scale
    elif scale != call.scale:
        query = query * (scale / call.scale)
    layer: Any = module.layer_idx
    call.layers.append(layer)
    call.sizes = (query.shape[1], key.shape[1], query.shape[-1])
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return call.attend(layer, q, k, v)[None], None


AttentionInterface.register(_PACKED, _attention)


class TransformersDecoder(nn.Module):
    """`PackedModel` around a transformers class, in evaluation mode (no dropout).

    With `parameters` other than `compute` the weights are cast at use, as in the slim decoder.
    """

    def __init__(self, directory: Path, *, compute: torch.dtype, parameters: torch.dtype | None = None, device: str = "cpu") -> None:
        """Load the weights of a Hugging Face directory; ModelError names what packed attention cannot do for this class."""
        super().__init__()
        self.compute = compute
        self.inner = _load_class(directory, parameters or compute).to(device).eval()
        self._casts = (parameters or compute) != compute
        self._head = Head(self.inner.get_output_embeddings())
        self._factor = _logit_factor(self.inner.config)
        try:
            self.shape = _proved_shape(self)
        except (TypeError, AttributeError, RuntimeError) as error:
            raise ModelError(f"{type(self.inner).__name__} cannot run packed in {compute}: {error}") from error

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """ids [T], positions [T] -> final hidden states after the last norm [T, width] in the compute dtype."""
        return self.run(ids, positions, _Call(attend, self.shape.scale))

    def run(self, ids: torch.Tensor, positions: torch.Tensor, call: _Call) -> torch.Tensor:
        """`hidden` with a record of what the class asked of the attention."""
        base = self.inner.base_model
        arguments = {"position_ids": positions[None], "use_cache": False, "paceline_call": call}
        with _exact(self.compute):
            if self._casts:
                cast = {name: tensor.to(self.compute) for name, tensor in base.named_parameters()}
                result = functional_call(base, cast, (ids[None],), arguments)
            else:
                result = base(ids[None], **arguments)
        hidden: torch.Tensor = result.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, width] -> [N, vocabulary] in float32 (float64 for float64)."""
        output = self.inner.get_output_embeddings()
        logits = self._head(hidden)
        if getattr(output, "bias", None) is not None:
            logits = logits + output.bias
        return logits if self._factor == 1.0 else logits * self._factor

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the names of the transformers class, tied ones once."""
        yield from self.inner.named_parameters(prefix, recurse, remove_duplicate)

    def load_tensors(self, path: Path) -> str:
        """Copy a safetensors file into the weights in place; return the fingerprint of what lies in them."""
        return copy_into(dict(self.named_parameters()), path)

    def train(self, mode: bool = True) -> TransformersDecoder:
        """Stay in evaluation mode: dropout would make the trainer's log-probs another model's."""
        return super().train(False)

    def save_checkpoint(self, named: Mapping[str, torch.Tensor], directory: Path) -> None:
        """Write config and weight files the way the class does, in checkpoint names where they differ from those in memory."""
        self.inner.save_pretrained(directory, state_dict=dict(named))


def _exact(compute: torch.dtype) -> AbstractContextManager[object]:
    return KeepDouble() if compute == torch.float64 else nullcontext()


def _logit_factor(config: Any) -> float:
    """What some classes multiply their logits with (Cohere, Granite)."""
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)


def _load_class(directory: Path, dtype: torch.dtype) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{directory}: transformers cannot load it as a causal decoder ({error})") from error


def _proved_shape(model: TransformersDecoder) -> Shape:
    """Sizes of the model, once two short texts in one packed run gave what each gives alone in the class itself; else ModelError.

    The rows of the packed run lie in no order, so a class that mixes rows or counts positions by itself cannot pass.
    """
    inner, name = model.inner, type(model.inner).__name__
    config, weight = inner.config.get_text_config(), inner.get_output_embeddings().weight
    positions = torch.cat([torch.arange(n, device=weight.device) for n in _PROOF])
    ids = (torch.arange(sum(_PROOF), device=weight.device) * 37 + 11) % config.vocab_size
    order = torch.arange(sum(_PROOF), device=weight.device) * 5 % sum(_PROOF)
    back = torch.argsort(order)
    with torch.no_grad(), _exact(model.compute):
        alone = torch.cat([inner(part[None], use_cache=False).logits[0] for part in torch.split(ids, list(_PROOF))])
    inner.set_attn_implementation(_PACKED)
    if config._attn_implementation != _PACKED:
        raise ModelError(f"{name} does not let its attention be replaced, so it cannot run packed")

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention in each text alone, whose rows stand shuffled."""
        return causal(_PROOF, call.scale or 1.0)(layer, q[back], k[back], v[back])[order]

    call = _Call(attend, None)
    with torch.no_grad():
        packed = model.logits(model.run(ids[order], positions[order], call))[back]
    if call.scale is None:
        raise ModelError(f"{name} never called the replaced attention, so it cannot run packed")
    if sorted(call.layers) != list(range(config.num_hidden_layers)):
        raise ModelError(f"{name}: only layers {sorted(call.layers)} of {config.num_hidden_layers} use the replaced attention")
    error, most = float((packed - alone).norm() / alone.norm()), _TOLERANCE[model.compute]
    if not error <= most:
        raise ModelError(
            f"{name}: two texts packed give other logits than alone (relative difference {error:.2g}, at most {most:g}); "
            "it mixes tokens outside its attention or changes the logits after the head"
        )
    heads, kv_heads, head_dim = call.sizes
    return Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=weight.shape[1],
        vocabulary=weight.shape[0],
        max_positions=config.max_position_embeddings,
        scale=call.scale,
        parameters=sum(tensor.numel() for _, tensor in model.named_parameters()),
    )
