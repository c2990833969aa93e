"""The trainer's state on disk: master weights and moments as safetensors, counters as JSON. No pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.durable import whole
from paceline.models.store import fingerprint, write_tensors
from paceline.types.errors import CheckpointDamaged

MASTER, MOMENTS, COUNTERS = "master.safetensors", "optimizer.safetensors", "trainer.json"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a trainer counts."""

    update: int = 0
    """Updates issued."""
    skipped: int = 0
    """Updates skipped for a non-finite value, ever."""
    skipped_in_a_row: int = 0
    version: int | None = 0
    """Version that the weights are exactly; None once an update moved them."""


def save(directory: Path, master: Mapping[str, torch.Tensor], moments: Mapping[str, torch.Tensor], counters: Counters) -> None:
    """Write the three files, fsynced. The counters come last, with the fingerprints of the tensors: without them nothing is complete."""
    dtype = next(iter(master.values())).dtype
    written = {name: write_tensors(tensors.items(), directory / name, dtype) for name, tensors in ((MASTER, master), (MOMENTS, moments))}
    with whole(directory / COUNTERS) as aside:
        aside.write_text(json.dumps({"counters": asdict(counters), "fingerprints": written}))


def read(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Counters]:
    """Master weights, moments and counters; CheckpointDamaged names the file that is missing or damaged."""
    path = directory / COUNTERS
    try:
        state = json.loads(path.read_text())
        counters = Counters(**state["counters"])
        master, moments = (str(state["fingerprints"][name]) for name in (MASTER, MOMENTS))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointDamaged(f"{path}: missing or damaged ({error})") from error
    return _tensors(directory / MASTER, master), _tensors(directory / MOMENTS, moments), counters


def _tensors(path: Path, written: str) -> dict[str, torch.Tensor]:
    """The tensors of a file; a flipped bit changes the fingerprint, and nothing else would show it."""
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointDamaged(f"{path}: missing or damaged ({error})") from error
    if fingerprint(tensors.items()) != written:
        raise CheckpointDamaged(f"{path}: damaged: its tensors are not those that were written")
    return tensors
