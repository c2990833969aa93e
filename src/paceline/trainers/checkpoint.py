"""The trainer's state on disk: master weights and moments as safetensors, counters as JSON. No pickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.durable import sealed, undamaged, unsealed, whole
from paceline.models.store import fingerprint, write_tensors
from paceline.types.errors import CheckpointDamaged, CheckpointError

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
        aside.write_bytes(sealed({"counters": asdict(counters), "fingerprints": written}))


def read(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Counters]:
    """Master weights, moments and counters. CheckpointDamaged names the file that is missing or damaged, CheckpointError one that another
    version of paceline wrote, OSError one that cannot be read now."""
    path = directory / COUNTERS
    with undamaged(path, ValueError):
        state = unsealed(path.read_bytes())
    try:
        counters = Counters(**state["counters"])
        master, moments = (str(state["fingerprints"][name]) for name in (MASTER, MOMENTS))
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: whole, but another version of paceline wrote it ({error})") from error
    return _tensors(directory / MASTER, master), _tensors(directory / MOMENTS, moments), counters


def _tensors(path: Path, written: str) -> dict[str, torch.Tensor]:
    """The tensors of a file; a flipped bit changes the fingerprint, and nothing else would show it."""
    with undamaged(path, SafetensorError):
        path.open("rb").close()  # whatever keeps the library from opening a file, it says that there is none
        tensors: dict[str, torch.Tensor] = load_file(path)
    if fingerprint(tensors.items()) != written:
        raise CheckpointDamaged(f"{path}: damaged: its tensors are not those that were written")
    return tensors
