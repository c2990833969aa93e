"""The slim decoder: Llama, Qwen2 and Qwen3 over packed rows, with fused projections and the attention supplied by the caller.

Parameters carry their Hugging Face names and are leaves, so optimizers, checkpoints and published files need no mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.models.compiling import compile_parts
from paceline.models.head import Head
from paceline.models.kernels import Projection, bare_linear, lookup
from paceline.models.packed import Attend, Shape
from paceline.models.rowwise import gated, norm, rotate
from paceline.models.served import ServedDecoder
from paceline.models.store import copy_into
from paceline.native.calls import DTYPES, Kernels
from paceline.types.errors import ModelError

FAMILIES = ("llama", "qwen2", "qwen3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary scaling whose frequencies do not depend on the length of the text."""


@dataclass(frozen=True, slots=True)
class SlimSpec:
    """What the slim decoder needs of a Hugging Face config; `of` refuses what it cannot compute exactly."""

    shape: Shape
    intermediate: int
    eps: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    padding_id: int | None
    """Row of the embedding that transformers gives no gradient through the look-up."""
    rope_scale: float
    """Factor on cos and sin (yarn); 1 otherwise."""

    @staticmethod
    def of(config: Any) -> tuple[SlimSpec, torch.Tensor]:
        """The spec and the inverse frequencies [head_dim / 2] float32; ModelError names what does not fit."""
        kind = config.model_type
        if kind not in FAMILIES:
            raise ModelError(f"model_type {kind!r}: the slim decoder computes {', '.join(FAMILIES)}")
        rope: dict[str, Any] = config.rope_parameters
        for what, found, fits in (
            ("rope_type", rope["rope_type"], rope["rope_type"] in _STATIC_ROPE),
            ("partial_rotary_factor", rope.get("partial_rotary_factor"), rope.get("partial_rotary_factor") in (None, 1.0)),
            ("hidden_act", config.hidden_act, config.hidden_act == "silu"),
            ("layer_types", getattr(config, "layer_types", None), _full_attention(config)),
            ("attention_dropout", config.attention_dropout, not config.attention_dropout),
            ("num_key_value_heads", config.num_key_value_heads, not config.num_attention_heads % config.num_key_value_heads),
        ):
            if not fits:
                raise ModelError(f"{what} = {found!r} does not fit the slim decoder; model.implementation = 'transformers' may")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        frequencies, rope_scale = _frequencies(config, head_dim)
        bias = bool(getattr(config, "attention_bias", False))
        spec = SlimSpec(
            shape=Shape(
                layers=config.num_hidden_layers,
                heads=config.num_attention_heads,
                kv_heads=config.num_key_value_heads,
                head_dim=head_dim,
                width=config.hidden_size,
                vocabulary=config.vocab_size,
                max_positions=config.max_position_embeddings,
                scale=head_dim**-0.5,
                parameters=0,
            ),
            intermediate=config.intermediate_size,
            eps=config.rms_norm_eps,
            qkv_bias=kind == "qwen2" or bias,
            out_bias=kind != "qwen2" and bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=kind == "qwen3",
            tied=bool(config.tie_word_embeddings),
            padding_id=config.pad_token_id,
            rope_scale=rope_scale,
        )
        return spec, frequencies


def _full_attention(config: Any) -> bool:
    return all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())


def _frequencies(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies of the rotary embedding, [head_dim / 2] float32, and the factor on cos and sin."""
    if config.rope_parameters["rope_type"] != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)
        return frequencies, float(scale)
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, width: int, eps: float, like: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=like.dtype, device=like.device))
        self.eps = eps
        self.kernels: Kernels | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., width] -> the same shape."""
        return norm(x, self.weight, self.eps, self.kernels)


class Attention(nn.Module):
    """Projections, optional q/k norm and rotation around the caller's attend."""

    def __init__(self, spec: SlimSpec, layer: int, like: torch.Tensor) -> None:
        super().__init__()
        shape = spec.shape
        self.layer, self.shape = layer, shape
        inner, outer = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = bare_linear(shape.width, inner, spec.qkv_bias, like)
        self.k_proj = bare_linear(shape.width, outer, spec.qkv_bias, like)
        self.v_proj = bare_linear(shape.width, outer, spec.qkv_bias, like)
        self.o_proj = bare_linear(inner, shape.width, spec.out_bias, like)
        self.q_norm = Norm(shape.head_dim, spec.eps, like) if spec.qk_norm else None
        self.k_norm = Norm(shape.head_dim, spec.eps, like) if spec.qk_norm else None
        self.qkv = Projection(self.q_proj, self.k_proj, self.v_proj)
        self.out = Projection(self.o_proj)
        self.kernels: Kernels | None = None

    def inputs(self, x: torch.Tensor, norm: Norm, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, width], cos and sin [T, 1, head_dim] -> rotated q [T, heads, d] and k, and v [T, kv_heads, d], of norm(x)."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        rows = self.qkv(x, norm).view(x.shape[0], heads + 2 * kv_heads, self.shape.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = torch.split(rows, [heads, kv_heads, kv_heads], dim=1)
            q, k = (rotate(part, cos, sin, self.kernels) for part in (self.q_norm(q), self.k_norm(k)))
            return q, k, v
        turned, v = torch.split(rows, [heads + kv_heads, kv_heads], dim=1)
        q, k = torch.split(rotate(turned, cos, sin, self.kernels), [heads, kv_heads], dim=1)
        # A backward pass needs v, and not the rows that it is a part of.
        return q, k, v.clone() if torch.is_grad_enabled() else v


class Feedforward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: SlimSpec, like: torch.Tensor) -> None:
        super().__init__()
        width, inner = spec.shape.width, spec.intermediate
        self.gate_proj = bare_linear(width, inner, spec.mlp_bias, like)
        self.up_proj = bare_linear(width, inner, spec.mlp_bias, like)
        self.down_proj = bare_linear(inner, width, spec.mlp_bias, like)
        self.gate_up = Projection(self.gate_proj, self.up_proj)
        self.down = Projection(self.down_proj)
        self.kernels: Kernels | None = None

    def forward(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """x [T, width] -> that of norm(x), [T, width]."""
        return self.down(self.gate_up(x, norm), self._gated)

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gated(gate_up, self.kernels)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, spec: SlimSpec, layer: int, like: torch.Tensor) -> None:
        super().__init__()
        self.input_layernorm = Norm(spec.shape.width, spec.eps, like)
        self.self_attn = Attention(spec, layer, like)
        self.post_attention_layernorm = Norm(spec.shape.width, spec.eps, like)
        self.mlp = Feedforward(spec, like)

    def before(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, width] -> what the attention reads."""
        return self.self_attn.inputs(x, self.input_layernorm, cos, sin)

    def after(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x [T, width] and what the attention gave [T, heads, d] -> [T, width]."""
        x = x + self.self_attn.out(attended.reshape(x.shape[0], -1))
        result: torch.Tensor = x + self.mlp(x, self.post_attention_layernorm)
        return result


class Body(nn.Module):
    """Everything below the head, named as in Hugging Face checkpoints."""

    def __init__(self, spec: SlimSpec, like: torch.Tensor) -> None:
        super().__init__()
        # Not drawn at random and thrown away: torch's way to do that on no device imports its compiler, half a second in every worker.
        empty = torch.empty(spec.shape.vocabulary, spec.shape.width, dtype=like.dtype, device=like.device)
        self.embed_tokens = nn.Embedding.from_pretrained(empty, freeze=False)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(Block(spec, layer, like) for layer in range(spec.shape.layers))
        self.norm = Norm(spec.shape.width, spec.eps, like)


def _of_first(attend: Attend) -> Attend:
    """For two equal rows, of which the first attends."""
    return lambda layer, q, k, v: attend(layer, q[:1], k[:1], v[:1]).expand(2, -1, -1)


class SlimDecoder(nn.Module):
    """`PackedModel` of the Llama / Qwen family. Weights are uninitialised until `load_tensors`.

    `parameters` is the dtype weights are stored in, `compute` the dtype of activations and products.
    """

    frequencies: torch.Tensor

    def __init__(self, config: Any, *, compute: torch.dtype, parameters: torch.dtype | None = None, device: str = "cpu") -> None:
        """config: a transformers config object; ModelError where its architecture does not fit."""
        super().__init__()
        spec, frequencies = SlimSpec.of(config)
        like = torch.empty(0, dtype=parameters or compute, device=device)
        self.spec, self.compute = spec, compute
        self.model = Body(spec, like)
        self.lm_head = None if spec.tied else bare_linear(spec.shape.width, spec.shape.vocabulary, False, like)
        self.head = Head(self.lm_head or self.model.embed_tokens)
        self._before: Callable[..., Any] = Block.before
        self._after: Callable[..., Any] = Block.after
        self._layers_again = False
        self._kernels: Kernels | None = None
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        self.shape = replace(spec.shape, parameters=sum(tensor.numel() for tensor in self.parameters()))

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """ids [T], positions [T] -> final hidden states after the last norm [T, width] in the compute dtype."""
        if len(ids) == 1:  # added up as one of many (`Projection`)
            return self.hidden(ids.repeat(2), positions.repeat(2), _of_first(attend))[:1]
        cos, sin = self.angles(positions)
        x = lookup(ids, self.model.embed_tokens.weight, self.spec.padding_id, self.compute)
        for block in self.model.layers:
            if self._layers_again and torch.is_grad_enabled():
                x = checkpoint(self._layer, block, x, cos, sin, attend, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self._layer(block, x, cos, sin, attend)
        result: torch.Tensor = self.model.norm(x)
        return result

    def _layer(self, block: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend) -> torch.Tensor:
        attended = attend(block.self_attn.layer, *self._before(block, x, cos, sin))
        result: torch.Tensor = self._after(block, x, attended)
        return result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, width] -> [N, vocabulary] in float32 (float64 for float64)."""
        return self.head(hidden)

    def scores(
        self, hidden: torch.Tensor, ids: torch.Tensor, temperature: float, *, entropy: bool, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As `Tunable`."""
        if self._kernels is None or hidden.device.type != "cpu" or hidden.dtype not in DTYPES:
            return None
        return self.head.scores(hidden, ids, temperature, entropy=entropy, keep=keep, kernels=self._kernels)

    def tune(self, *, layers_again: bool, compiled: bool, kernels: Kernels | None) -> None:
        """As `Tunable`. What lies around the attention is compiled, once for all layers and any number of rows."""
        self._layers_again, self._kernels = layers_again, kernels
        for module in self.modules():
            if isinstance(module, Norm | Attention | Feedforward):
                module.kernels = kernels
            for projection in vars(module).values():
                if isinstance(projection, Projection):
                    projection.kernels = kernels
        self._before, self._after = (
            compile_parts(self.frequencies.device, Block.before, Block.after) if compiled else (Block.before, Block.after)
        )

    def served(self, kernels: Kernels) -> ServedDecoder:
        """As `Serving`."""
        return ServedDecoder(self, kernels)

    def load_tensors(self, path: Path) -> str:
        """Copy a safetensors file into the weights in place; return the fingerprint of what lies in them."""
        return copy_into(dict(self.named_parameters()), path)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `rotate` wants them, [T, 1, head_dim]; angles in float32 as in transformers, so that every dtype turns by the same angle."""
        angles = positions[:, None, None].float() * self.frequencies
        wide = torch.float64 if self.compute == torch.float64 else torch.float32
        cos, sin = ((part * self.spec.rope_scale).to(wide) for part in (angles.cos(), angles.sin()))
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
