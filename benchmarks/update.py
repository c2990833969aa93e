"""What an update of SmolLM2-135M costs the trainer: seconds, share of the machine's dense products, memory, by micro-batch and option.

4 groups of 8 answers of 64 tokens behind prompts of 64: forward, backward and optimizer step, without generation or publishing. Every way
is a process of its own; its first update is warm-up (with compilation, whose cost it shows). FLOP are those of the products that an update
needs, 6 per weight and row: what is computed again does not count. The ceiling is a square bfloat16 product. "small" is an update of
2 groups of 4 answers of 20 tokens on one thread, in which memory traffic counts for as much as products.

Usage: python benchmarks/update.py [--tiny] [--only WAY...] [--profile WAY]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from evidence import Quiet, measured
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.load import load
from paceline.models.smollm2 import NAME
from paceline.native.calls import kernels
from paceline.ports.fakes.training import scored_group
from paceline.runtime.process import MEMORY
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import ScoredGroup

PROMPT = 64
PARTS = ("forward", "backward", "optimizer")
WAYS: Mapping[str, Mapping[str, Any]] = {
    "micro-batches of 512": {"micro_batch_tokens": 512},
    "micro-batches of 1024": {"micro_batch_tokens": 1024},
    "default": {},
    "torch's operators": {"kernels": "torch"},
    "one micro-batch": {"micro_batch_tokens": 4096},
    "chunks of 256 logits": {"head_chunk": 256},
    "chunks of 512 logits": {"head_chunk": 512},
    "checkpointing": {"checkpoint_activations": True},
    "compiled": {"compile": True},
    "compiled, checkpointing": {"compile": True, "checkpoint_activations": True},
    "float32": {},
    "small": {},
}


@dataclass(frozen=True)
class Size:
    """Of an update."""

    groups: int
    samples: int
    answer: int
    """Tokens of every answer."""
    threads: int

    def batch(self, update: int) -> list[ScoredGroup]:
        """Random tokens, and log-probs of no engine: an update's cost does not depend on them."""
        random = np.random.default_rng(update)
        found = []
        for index in range(self.groups):
            answers = random.integers(5, 40_000, (self.samples, self.answer)).tolist()
            found.append(scored_group(index, random.integers(5, 40_000, PROMPT), answers, random.random(self.samples).tolist(), version=99))
        return found

    @property
    def products(self) -> float:
        """FLOP of the dense products of an update; attention is left out."""
        parameters, head = 134_515_008, 49_152 * 576
        rows, tokens = self.groups * (PROMPT + self.samples * (self.answer - 1)), self.groups * self.samples * self.answer
        return 6 * (parameters - head) * rows + 6 * head * tokens


def size_of(way: str, threads: int, tiny: bool) -> Size:
    """What an update of this way is."""
    size = Size(2, 4, 20, 1) if way == "small" else Size(4, 8, 64, threads)
    return replace(size, answer=4) if tiny else size


def side(way: str, size: Size, updates: int, profiled: bool) -> dict[str, Any]:
    """One way, in this process."""
    torch.set_num_threads(size.threads)
    model = ModelConfig(path=NAME, dtype="float32" if way == "float32" else "bfloat16")
    config = TrainerConfig(warmup_updates=0, **WAYS[way])
    trainer = TorchTrainer(
        load(model, train=True),
        algorithm=AlgorithmConfig(gap_stop=1e9),
        trainer=config,
        rollout=RolloutConfig(max_prompt_tokens=PROMPT, max_tokens=size.answer),
        model=model,
        total_updates=updates,
        kernels=kernels(config.kernels),
    )
    walls, busy, parts = [], [], []
    if profiled:  # memory is faulted in during the first update
        trainer.accumulate(size.batch(updates))
        trainer.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=False) if profiled else nullcontext() as recorded:
        for update in range(updates):
            batch, started, used = size.batch(update), time.perf_counter(), time.process_time()
            trainer.accumulate(batch)
            metrics = trainer.step().metrics
            walls.append(time.perf_counter() - started)
            busy.append(time.process_time() - used)
            parts.append({part: metrics[f"seconds/{part}"] for part in PARTS})
    if profiled:
        print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=45))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"first": walls[0], "walls": walls[1:], "cpu": busy[1:], "parts": parts[1:], "peak_bytes": peak}


def ceiling(threads: int) -> float:
    """FLOP/s of a bfloat16 product of squares, the best of several."""
    torch.set_num_threads(threads)
    a, b = torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    seconds = []
    for _ in range(9):
        started = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds)


def measure(way: str, threads: int, updates: int, tiny: bool = False) -> dict[str, Any]:
    """One way, in a process like a worker's."""
    size = size_of(way, threads, tiny)
    command = [sys.executable, __file__, "--side", way, "--threads", str(threads), "--updates", str(updates), *(["--tiny"] if tiny else [])]
    done = subprocess.run(
        command, env={**MEMORY, **os.environ, "OMP_NUM_THREADS": str(size.threads)}, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = statistics.median(found["walls"])
    return {
        "seconds": seconds,
        "cpu_seconds": statistics.median(found["cpu"]),
        "part_seconds": {part: statistics.median(one[part] for one in found["parts"]) for part in PARTS},
        "all_seconds": found["walls"],
        "first_update_more_seconds": found["first"] - seconds,
        "flop_per_s": size.products / seconds,
        "peak_bytes": found["peak_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--side", choices=WAYS)
    parser.add_argument("--profile", choices=WAYS)
    parser.add_argument("--only", choices=WAYS, nargs="*", help="these only; nothing is written")
    parser.add_argument("--tiny", action="store_true", help="a smoke test: two updates of answers of 4 tokens, nothing written")
    arguments = parser.parse_args()
    updates = 2 if arguments.tiny else arguments.updates
    if arguments.profile and not MEMORY.items() <= os.environ.items():  # as a worker's
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MEMORY, "OMP_NUM_THREADS": str(arguments.threads)})
    if arguments.side or arguments.profile:
        way = arguments.side or arguments.profile
        print(json.dumps(side(way, size_of(way, arguments.threads, arguments.tiny), updates, bool(arguments.profile))))
        return
    if arguments.tiny or arguments.only:
        for way in arguments.only or WAYS:
            print(way, json.dumps(measure(way, arguments.threads, updates, arguments.tiny)), flush=True)
        return
    with measured("update", repeats=arguments.updates - 1) as figures:
        figures |= {"threads": arguments.threads, "ceiling_flop_per_s": ceiling(arguments.threads), "ways": {}}
        with Quiet() as quiet:
            for way in WAYS:
                figures["ways"][way] = measure(way, arguments.threads, updates)
                print(way, figures["ways"][way], flush=True)
        figures["other_load"] = quiet.found


if __name__ == "__main__":
    main()
