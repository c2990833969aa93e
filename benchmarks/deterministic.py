"""What `run.deterministic` costs: sampled tokens per second and seconds per update, beside the normal mode, with the real model.

Per batch size, both modes decode the same requests in turn (answers of forced lengths, half to all of --tokens, one prompt per group of
eight), then both trainers take the same groups, accumulate them and step. `same_tokens` is the share of answers that are equal token for
token in both modes; `same_bits_in_other_order` the share of those whose tokens and log-probs are equal to the last bit when they are asked
for in the reverse order: all of them in deterministic mode. Each repeat runs both modes; medians.
Usage: python benchmarks/deterministic.py [--model DIRECTORY] [--dtype bfloat16] [--threads 1] [--repeats 5] ...
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from evidence import measured
from paceline.config.memory import kv_tokens_needed
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.load import load
from paceline.ports.rollout import Failure
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB, Prompt, Request, Sampling, Score, ScoredGroup, Trajectory

PROMPT, GROUP = 48, 8
MODES = {"normal": False, "deterministic": True}


def requests(batch: int, tokens: int) -> list[Request]:
    """A batch of answers in groups of `GROUP`; ends are forced by their lengths."""
    generator = np.random.default_rng(0)
    prompts = generator.integers(5, 200, size=(batch, PROMPT)).astype(np.int32)
    lengths = generator.integers(tokens // 2, tokens, size=batch, endpoint=True)
    return [Request(i // GROUP, i % GROUP, 1, prompts[i // GROUP], Sampling(int(lengths[i])), seed=1, version=0) for i in range(batch)]


def made_engine(model: ModelConfig, batch: int, tokens: int, deterministic: bool) -> TorchEngine:
    """An engine that never meets an end-of-sequence token."""
    loaded = load(model)
    loaded = type(loaded)(loaded.model, loaded.directory, (), loaded.pad_id)
    capacity = batch * kv_tokens_needed(PROMPT, tokens)
    return TorchEngine(
        loaded, instance="e", slots=batch, kv_tokens=capacity, decode=str, clock=time.perf_counter, deterministic=deterministic
    )  # fmt: skip


def decode(engine: TorchEngine, work: Sequence[Request]) -> tuple[float, list[Trajectory]]:
    """Sampled tokens per second, prefill included, and the answers in order of (group, sample)."""
    engine.submit(work)
    found: list[Trajectory] = []
    started = time.perf_counter()
    while len(found) < len(work):
        for result in engine.step():
            assert not isinstance(result, Failure), result
            found.append(result)
    seconds = time.perf_counter() - started
    return sum(len(t.ids) for t in found) / seconds, sorted(found, key=lambda t: (t.group, t.sample))


def scored(answers: Sequence[Trajectory]) -> list[ScoredGroup]:
    """Whole groups; every second answer is right."""
    groups = []
    for start in range(0, len(answers), GROUP):
        members = tuple(answers[start : start + GROUP])
        values = tuple(float(index % 2) for index in range(len(members)))
        prompt = Prompt(members[0].group, members[0].group, members[0].prompt_ids, "", None)
        scores = tuple(Score(value, parsed=True) for value in values)
        groups.append(ScoredGroup(members[0].group, prompt, members, values, values, {"r": values}, {"r": scores}))
    return groups


def made_trainer(model: ModelConfig, tokens: int, deterministic: bool) -> TorchTrainer:
    """A trainer with the defaults."""
    return TorchTrainer(
        load(model, train=True),
        algorithm=AlgorithmConfig(gap_stop=1e9),
        trainer=TrainerConfig(warmup_updates=0),
        rollout=RolloutConfig(max_tokens=tokens),
        model=model,
        total_updates=1000,
        deterministic=deterministic,
    )


def update(trainer: TorchTrainer, groups: Sequence[ScoredGroup]) -> float:
    """Seconds of one update."""
    started = time.perf_counter()
    trainer.accumulate(groups)
    trainer.step()
    return time.perf_counter() - started


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def decoding(model: ModelConfig, batch: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Both modes at one batch size, in turn."""
    engines = {mode: made_engine(model, batch, tokens, flag) for mode, flag in MODES.items()}
    work = requests(batch, tokens)
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    answers: dict[str, list[Trajectory]] = {}
    for engine in engines.values():
        decode(engine, work)
    for _ in range(repeats):
        for mode, engine in engines.items():
            rate, answers[mode] = decode(engine, work)
            rates[mode].append(rate)
    same = [np.array_equal(a.ids, b.ids) for a, b in zip(*answers.values(), strict=True)]
    other = {mode: share_of_bits(answers[mode], decode(engine, work[::-1])[1]) for mode, engine in engines.items()}
    assert other["deterministic"] == 1.0, other
    ratios = [slow / fast for fast, slow in zip(rates["normal"], rates["deterministic"], strict=True)]
    figures = {mode: spread(values) for mode, values in rates.items()}
    return {
        "batch": batch,
        "tokens_per_s": figures,
        "ratio": spread(ratios),
        "same_tokens": round(float(np.mean(same)), 3),
        "same_bits_in_other_order": other,
    }


def share_of_bits(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> float:
    """Answers whose tokens and log-probs are equal to the last bit."""
    pairs = list(zip(ours, theirs, strict=True))
    equal = [np.array_equal(a.ids, b.ids) and np.array_equal(a.columns[LOGPROB], b.columns[LOGPROB]) for a, b in pairs]
    return round(float(np.mean(equal)), 3)


def training(model: ModelConfig, batch: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Both trainers on the same groups, in turn."""
    _, answers = decode(made_engine(model, batch, tokens, False), requests(batch, tokens))
    trainers = {mode: made_trainer(model, tokens, flag) for mode, flag in MODES.items()}
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    groups = scored(answers)
    for trainer in trainers.values():
        update(trainer, groups)
    for _ in range(repeats):
        for mode, trainer in trainers.items():
            times[mode].append(update(trainer, groups))
    ratios = [slow / fast for fast, slow in zip(times["normal"], times["deterministic"], strict=True)]
    return {"groups": len(groups), "seconds_per_update": {mode: spread(values) for mode, values in times.items()}, "ratio": spread(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = ModelConfig(path=chosen.model, dtype=chosen.dtype)
    with measured("deterministic", repeats=chosen.repeats) as figures:
        figures |= {"model": chosen.model, "dtype": chosen.dtype, "threads": chosen.threads, "tokens": chosen.tokens}
        figures["decoding"] = [decoding(model, batch, chosen.tokens, chosen.repeats) for batch in chosen.batches]
        figures["training"] = training(model, max(chosen.batches), chosen.tokens, chosen.repeats)


if __name__ == "__main__":
    main()
