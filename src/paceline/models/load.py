"""From a name to a model: find the directory, choose the implementation, load the weights, collect the ids that end a text."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from paceline.config.schema import ModelConfig
from paceline.models.packed import LoadedModel, PackedModel
from paceline.models.slim import SlimDecoder
from paceline.types.errors import ModelError

_log = logging.getLogger(__name__)
PACKAGED = {"smollm2-135m": "paceline.models.smollm2"}
"""Models that a Python package carries: name -> module whose `directory()` makes it on first use. Imported for those who name it."""
_ANY_CLASS = "paceline.models.hf"
"""Imported for the models that need it alone: it brings the model code of transformers along, which takes longer than all else."""
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
"""Files of a hub repository that a model directory needs."""
_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
"""Names that files of a tokenizer have."""
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eom_id|>")
"""Tokens with which chat templates close the assistant's turn."""


def resolve(name: str) -> Path:
    """The Hugging Face directory of a model; ModelError names the three ways when `name` is none of them.

    A packaged model's name, a local directory, or a hub id: its snapshot, downloaded unless HF_HUB_OFFLINE is set.
    """
    if name in PACKAGED:
        made: Path = importlib.import_module(PACKAGED[name]).directory()
        return made
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model.path = {name!r}: the directory has no config.json")
        return path
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=constants.HF_HUB_OFFLINE))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        absent = "HF_HUB_OFFLINE is set, and the hub's cache does not hold it"
        why = absent if constants.HF_HUB_OFFLINE else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise ModelError(
            f"model.path = {name!r} is not a local directory, not a packaged model ({', '.join(PACKAGED)}), "
            f"and not a hub id that can be had here ({why})"
        ) from error


def load(config: ModelConfig, *, parameters: torch.dtype | None = None, device: str = "cpu", train: bool = False) -> LoadedModel:
    """Load the model that `config` names.

    Activations have `config.dtype`. Weights are stored in `parameters`; by default that is the compute dtype, and for
    training (`train`: gradients required) float32, or float64 for float64. ModelError for a device that torch cannot use here.
    """
    _try(device)
    directory = resolve(config.path)
    compute: torch.dtype = getattr(torch, config.dtype)
    master = torch.float64 if compute == torch.float64 else torch.float32
    stored = parameters or (master if train else compute)
    model = _build(config, _described(directory), directory, compute, stored, device)
    for _, tensor in model.named_parameters():
        tensor.requires_grad_(train)
    tokenizer = load_tokenizer(directory)
    ends = tuple(sorted(set(_end_ids(directory, tokenizer))))
    if not ends:
        raise ModelError(f"{directory}: neither config.json, generation_config.json nor the tokenizer names an end-of-sequence token")
    pad = tokenizer.pad_token_id
    return LoadedModel(model=model, directory=directory, eos_ids=ends, pad_id=ends[0] if pad is None else pad)


def _try(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ModelError(f"device {device!r}: torch cannot use it here ({str(error).splitlines()[0]})") from error


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face directory; ModelError when there is none."""
    if not any(path for pattern in _TOKENIZERS for path in directory.glob(pattern)):
        raise ModelError(f"{directory}: holds no tokenizer ({', '.join(_TOKENIZERS)}); copy the files of the model's tokenizer there")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise ModelError(f"{directory}: no usable tokenizer ({error})") from error
    return tokenizer


def positions(directory: Path) -> int | None:
    """Tokens that the model of a Hugging Face directory can hold in one text; None where its config does not say."""
    return getattr(_described(directory).get_text_config(), "max_position_embeddings", None)


def _described(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{directory}: transformers cannot read its config.json ({error})") from error


def _build(config: ModelConfig, described: Any, directory: Path, compute: torch.dtype, stored: torch.dtype, device: str) -> PackedModel:
    """The implementation that `config` asks for; `auto` takes the slim decoder where it fits, and says so where it does not."""
    if config.implementation != "transformers":
        try:
            slim = SlimDecoder(described, compute=compute, parameters=stored, device=device)
        except ModelError as refusal:
            if config.implementation == "slim":
                raise
            _log.warning("%s runs through its transformers class, which takes longer: %s", directory, refusal)
        else:
            slim.load_tensors(directory)
            return slim
    decoder: PackedModel = importlib.import_module(_ANY_CLASS).TransformersDecoder(
        directory, compute=compute, parameters=stored, device=device
    )
    return decoder


def _end_ids(directory: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """Every id that ends a text, from all places that name one."""
    for name in ("config.json", "generation_config.json"):
        if (directory / name).is_file():
            ids = json.loads((directory / name).read_text()).get("eos_token_id")
            yield from ids if isinstance(ids, list) else () if ids is None else (ids,)
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id
    template = tokenizer.chat_template or ""
    vocabulary = tokenizer.get_vocab()
    yield from (vocabulary[token] for token in _TURN_ENDS if token in str(template) and token in vocabulary)
