"""Tiny models, requests and a full forward to compare engines with."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.config.schema import ModelConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.attend import causal
from paceline.models.load import load, load_tokenizer
from paceline.models.tiny import write_tiny
from paceline.native.calls import kernels as compiled
from paceline.native.machine import compiler
from paceline.ports.rollout import Failure
from paceline.types.records import LOGPROB, Request, Sampling

torch.set_num_threads(1)


def tiny(directory: Path, dtype="float64", implementation="auto", **config):
    """The loaded tiny model and its decode function."""
    path = write_tiny(directory, dtype="float64" if dtype == "float64" else "float32", **config)
    loaded = load(ModelConfig(path=str(path), dtype=dtype, implementation=implementation))
    tokenizer = load_tokenizer(path)
    return loaded, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


KERNELS = [
    "torch",
    pytest.param("native", marks=pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")),
]


def engine(loaded_decode, *, slots=8, kv_tokens=4096, page=4, kernels="torch", **options):
    loaded, decode = loaded_decode
    options["kernels"] = compiled(kernels)
    ticks = itertools.count()
    serving = TorchEngine(
        loaded, instance="e0", slots=slots, kv_tokens=kv_tokens, decode=decode, clock=lambda: float(next(ticks)), page=page, **options
    )
    if kernels == "native" and loaded.model.compute != torch.float64:
        assert not serving.without_kernels, serving.without_kernels
    return serving


def request(group, sample, prompt, *, seed=7, version=0, attempt=1, purpose="train", max_tokens=12, **sampling):
    return Request(group, sample, attempt, np.asarray(prompt, dtype=np.int32), Sampling(max_tokens, **sampling), seed, version, purpose)


def prompt(group, length):
    """Ids of ordinary tokens, different per group."""
    return np.random.default_rng(group).integers(5, 200, size=length).astype(np.int32)


def drain(engine, limit=2000):
    """Every result by (group, sample); fails if the engine does not become idle."""
    results = {}
    for _ in range(limit):
        for result in engine.step():
            results.setdefault((result.group, result.sample), []).append(result)
        state = engine.load_state()
        if not state.running and not state.waiting:
            return {key: only for key, (only,) in results.items()}
    raise AssertionError(f"not idle after {limit} steps: {engine.load_state()}")


@torch.no_grad()
def reference(loaded, trajectory, temperature):
    """Log-probs of a trajectory's tokens by one full causal forward, [n]."""
    ids = torch.from_numpy(np.concatenate([trajectory.prompt_ids, trajectory.ids]).astype(np.int64))
    model = loaded.model
    hidden = model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], model.shape.scale))
    scores = (model.logits(hidden) / (temperature or 1.0)).log_softmax(-1)
    first = len(trajectory.prompt_ids) - 1
    return scores[first:-1].gather(1, ids[first + 1 :, None])[:, 0].numpy()


def largest_gap(loaded, results, temperature_of):
    """Largest difference between recorded and full-forward log-probs over all results."""
    gaps = []
    for key, trajectory in results.items():
        assert not isinstance(trajectory, Failure), trajectory
        gaps.append(np.abs(trajectory.columns[LOGPROB] - reference(loaded, trajectory, temperature_of(key))).max(initial=0.0))
    return max(gaps)
