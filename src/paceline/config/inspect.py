"""What can be known of a model and a task without loading either: a decoder's sizes from its config.json, rows of a text file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.faults import Fault, show
from paceline.config.schema import Config, TaskConfig
from paceline.types.errors import DataError, ModelError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama-like decoder, as its config.json states them."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    """Whether input embedding and output head are one matrix."""

    @property
    def parameters(self) -> int:
        """Weights, tied ones once: embeddings, attention, gated MLP, two norms per layer and a last one; biases are left out."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_dim
        layer = attention + 3 * self.width * self.intermediate + 2 * self.width
        return (1 if self.tied else 2) * self.vocabulary * self.width + self.layers * layer + self.width


PACKAGED = {"smollm2-135m": ModelShape(30, 576, 9, 3, 64, 1536, 49152, True)}
"""Shapes of the models that come as packages."""


_SIZES = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"}
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def model_shape(path: str, key: str = "model.path") -> ModelShape | None:
    """The shape of a packaged model or of a local directory; None for a hub id (`name` or `owner/name`), whose files are not here, and
    for an architecture that names its sizes otherwise (GPT-2, OPT).

    Raises ModelError when there is no such directory, or its config.json is missing or describes no model. key: the setting that named it.
    """
    if path in PACKAGED:
        return PACKAGED[path]
    if Path(path).is_dir():
        return _read_shape(Path(path) / "config.json")
    if _HUB_ID.fullmatch(path):
        return None
    raise ModelError(f"{key} = {path}: no such directory, nor a packaged model ({', '.join(PACKAGED)}) or a hub id")


def _read_shape(file: Path) -> ModelShape | None:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        sizes = config.get("text_config", config)
        if config.get("model_type") and not sizes.keys() >= _SIZES:
            return None
        return _shape(sizes)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror})") from error
    except KeyError as error:
        raise ModelError(f"{file}: has no {error}") from error
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{file}: is no model configuration ({error})") from error


def _shape(config: dict[str, Any]) -> ModelShape:
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelShape(
        layers=int(config["num_hidden_layers"]),
        width=width,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or width // heads),
        intermediate=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def missing_files(config: Config) -> list[Fault]:
    """Data files and reward files that are named and not there."""
    named = _task_files(config) | _reward_files(config) | ({"emulated.lengths": lengths} if (lengths := config.emulated.lengths) else {})
    return [Fault(((key, show(file)),), "no such file") for key, file in named.items() if not Path(file).exists()]


def task_sections(config: Config) -> dict[str, TaskConfig]:
    """Every task by where it stands: `task`, `mix.0` and so on, `eval.task`."""
    mix = {f"mix.{index}": task for index, task in enumerate(config.mix)}
    return {"task": config.task, **mix, **({} if config.eval.task is None else {"eval.task": config.eval.task})}


def _task_files(config: Config) -> dict[str, str]:
    return {f"{section}.path": task.path for section, task in task_sections(config).items() if task.kind == "file"}


def _reward_files(config: Config) -> dict[str, str]:
    files = [(reward.function or "").rpartition(":")[0] for reward in config.reward]
    return {f"reward.{index}.function": file for index, file in enumerate(files) if file.endswith(".py")}


def task_rows(task: TaskConfig, key: str = "task") -> int | None:
    """Rows of an epoch at most, before duplicates and bad rows are removed; None where the file would have to be read (Parquet).

    Raises DataError when the file cannot be opened; `key` is where the task stands in the configuration.
    """
    rows = task.size if task.kind != "file" else _lines(Path(task.path), key)
    return rows if rows is None or task.limit is None else min(rows, task.limit)


def _lines(path: Path, key: str) -> int | None:
    """Lines that are not blank; None for a Parquet file or a directory."""
    if path.is_dir():
        return None
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return None
            file.seek(0)
            return sum(1 for line in file if line.strip())
    except OSError as error:
        raise DataError(f"{key}.path = {path}: cannot be opened ({error.strerror})") from error
