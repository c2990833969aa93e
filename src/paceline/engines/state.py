"""State files: unfinished trajectories with their KV cache, one safetensors file per move.

KV is stored by token, so engines of other page sizes can take it in, and a prompt's once for all trajectories that share it. What is
plain (requests, tokens, columns) is JSON in the file's metadata. The file is for two engines that live now: it is not synced to disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paceline.engines.pages import KV
from paceline.engines.scheduler import Saved, SavedPrompt
from paceline.types.errors import StateFileError
from paceline.types.moving import Carried

FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """What a file holds."""

    fits: Mapping[str, str]
    """What the KV is made of and for; it must be equal where it is taken in."""
    trajectories: Sequence[tuple[Carried, Saved | None]]


def write(state: State, location: str) -> None:
    """Write a file. A part of one, which a process that was killed may leave, `read` refuses. StateFileError where it cannot be written."""
    tensors: dict[str, torch.Tensor] = {}
    prompts: list[SavedPrompt] = []
    items = []
    for number, (carried, saved) in enumerate(state.trajectories):
        item = carried.as_json() | {"prompt": None}
        if saved is not None:
            if not any(saved.prompt is prompt for prompt in prompts):
                _put(tensors, f"prompt.{len(prompts)}", saved.prompt.kv)
                tensors[f"prompt.{len(prompts)}.last"] = saved.prompt.last.cpu().contiguous()
                prompts.append(saved.prompt)
            item["prompt"] = next(place for place, prompt in enumerate(prompts) if prompt is saved.prompt)
            _put(tensors, f"trajectory.{number}", saved.own)
        items.append(item)
    plain = {
        "format": FORMAT,
        "fits": dict(state.fits),
        "prompt_versions": [prompt.version for prompt in prompts],
        "trajectories": items,
    }
    try:
        save_file(tensors, location, metadata={"paceline": json.dumps(plain)})
    except (OSError, SafetensorError) as error:
        Path(location).unlink(missing_ok=True)
        raise StateFileError(f"cannot write the state of trajectories to {location} ({error})") from error


def read(location: str, dtype: torch.dtype) -> State:
    """Read a file, KV in `dtype`. Raises StateFileError for one that is missing, damaged or of another format."""
    try:
        with safe_open(location, framework="pt") as opened:
            plain = json.loads(opened.metadata()["paceline"])
            if plain["format"] != FORMAT:
                raise StateFileError(f"{location}: state of format {plain['format']}, this engine reads format {FORMAT}")

            def _kv(name: str) -> KV:
                keys, values = (opened.get_tensor(f"{name}.{part}").to(dtype, copy=True) for part in ("keys", "values"))
                return keys, values

            prompts = [
                SavedPrompt(version, _kv(f"prompt.{place}"), opened.get_tensor(f"prompt.{place}.last").clone())
                for place, version in enumerate(plain["prompt_versions"])
            ]
            found: list[tuple[Carried, Saved | None]] = []
            for number, item in enumerate(plain["trajectories"]):
                place = item.pop("prompt")
                saved = None if place is None else Saved(_kv(f"trajectory.{number}"), prompts[place])
                found.append((Carried.of_json(item), saved))
            return State(plain["fits"], found)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise StateFileError(f"{location}: cannot read the state of trajectories ({error!r})") from error


def _put(tensors: dict[str, torch.Tensor], name: str, kv: KV) -> None:
    for part, memory in zip(("keys", "values"), kv, strict=True):
        tensors[f"{name}.{part}"] = _narrow(memory).cpu().contiguous()


def _narrow(memory: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where that loses nothing: what bfloat16 models write is exact in half the bytes."""
    if memory.dtype != torch.float32:
        return memory
    narrow = memory.to(torch.bfloat16)
    return narrow if torch.equal(narrow.float(), memory) else memory
