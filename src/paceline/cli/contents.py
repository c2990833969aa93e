"""Fingerprints of the files that a run is made of, so that a resume notices what changed under the same name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from paceline.config.schema import Config
from paceline.rewards.resolve import source

MODEL_FILES = (".safetensors", ".json", ".jinja", ".txt", ".model", ".py")
"""Endings of the files of a model directory that say what the model computes and how it reads text."""


def contents(config: Config, resolve: Callable[[str], Path] | None) -> dict[str, str]:
    """Key and name of a file -> fingerprint of what lies in it now: of the model, the reference model, the source of each reward
    function, the trace of lengths.

    resolve: the directory of a model's name; None = there is no model. Modules that a reward's own file imports are not followed. Every
    byte is read: a second or two per gigabyte. The rows of the task are not among it, `Task.fingerprint` covers them.
    """
    models = {"model.path": config.model.path, "algorithm.reference": config.algorithm.reference}
    found = {key: _model_files(resolve(name)) for key, name in models.items() if name is not None and resolve is not None}
    if config.emulated.lengths:
        found["emulated.lengths"] = [Path(config.emulated.lengths)]
    for index, reward in enumerate(config.reward):
        file = None if reward.function is None else source(reward.function)
        if file is not None:
            found[f"reward.{index}.function"] = [file]
    return {f"contents of {key}, {file.name}": _digest(file) for key, files in found.items() for file in files}


def _model_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.suffix in MODEL_FILES and file.is_file())


def _digest(file: Path) -> str:
    """16 hexadecimal digits over the bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
