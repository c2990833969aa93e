"""What the benchmarks of the engine share: the quickstart's prompts, engines, the machine's limits, results that are kept."""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evidence import ROOT, best_seconds
from paceline.config.load import load as load_config
from paceline.config.memory import kv_tokens_needed
from paceline.config.schema import ModelConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.load import load, load_tokenizer, resolve
from paceline.models.packed import LoadedModel
from paceline.native.calls import kernels
from paceline.tasks.task import RowTask
from paceline.tasks.task import load as load_task
from paceline.types.records import Prompt

RECIPE = ROOT / "recipes" / "quickstart.toml"
MOST_PROMPT = 64
"""Tokens of the longest prompt of the recipe, about."""


def prompts(first: int, count: int) -> list[Prompt]:
    """Prompts of the quickstart's task from position `first` of its data order."""
    return [_task().prompt(index) for index in range(first, first + count)]


@functools.cache
def _task() -> RowTask:
    config = load_config(RECIPE)
    tokenizer = load_tokenizer(resolve(config.model.path))
    return load_task(config.task, tokenizer, seed=config.run.seed, max_prompt_tokens=config.rollout.max_prompt_tokens)


def loaded(model: ModelConfig, *, ends: bool = True) -> LoadedModel:
    """A model; without `ends` no token ends an answer."""
    found = load(model)
    return found if ends else replace(found, eos_ids=())


def engine(model: LoadedModel, slots: int, tokens: int, **options: Any) -> TorchEngine:
    """An engine with memory for `slots` answers of `tokens` tokens, none of which shares a prompt."""
    capacity = slots * kv_tokens_needed(MOST_PROMPT, tokens)
    return TorchEngine(
        model, instance="e", slots=slots, kv_tokens=capacity, decode=str, clock=time.perf_counter, **{"kernels": kernels()} | options
    )


def read_bandwidth() -> float:
    """Bytes per second of a sum over 1 GiB, with the present number of threads."""
    big = torch.ones(2**28)
    return big.nbytes / best_seconds(big.sum)


def copy_bandwidth(size: int) -> float:
    """Bytes per second of copying so many bytes in memory, each counted once."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    return size / best_seconds(lambda: target.copy_(source))


def product_rate(dtype: torch.dtype) -> float:
    """FLOP per second of a product of matrices of 2,048 x 2,048."""
    a, b = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    return 2 * 2048**3 / best_seconds(lambda: a @ b)


def spread(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Median, least, most and all values."""
    found = [round(value, digits) for value in values]
    return {"median": round(statistics.median(values), digits), "least": min(found), "most": max(found), "values": found}


class Kept:
    """Results by what they depend on, code included, one line each in a file, so that a script can be interrupted."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._found: dict[str, Any] = {line["key"]: line["result"] for line in map(json.loads, lines)}

    def once(self, settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The result for these settings; `make` it if it is not there."""
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        if key not in self._found:
            self._found[key] = result = make()
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "settings": settings, "result": result}) + "\n")
        return self._found[key]
