"""What `run.deterministic` gives and costs, with the real model, in bfloat16 and float32.

Per batch size, both modes decode the same requests in turn (answers of forced lengths, half to all of --tokens, one prompt per group of
eight), then both trainers take the same groups, accumulate them and step. `same_tokens` is the share of answers that are equal token for
token in both modes; `same_bits_in_other_order` the share of those whose tokens and log-probs are equal to the last bit when they are asked
for in the reverse order: all of them in deterministic mode. Each repeat runs both modes; medians. Then whole runs of the quickstart's
recipe, a few updates long, with rewards that differ within every group, in deterministic mode: serial, serial again, and pipelined with
other slots and dispatches; which of them have every bit of the first one's weights and moments. Exits with 1 where bits differ that may
not. A run needs 3 GB of disk while it lasts.
Usage: python benchmarks/deterministic.py [--tiny] [--dtypes float32] [--threads 1] [--repeats 3] ...
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence import ROOT, Quiet, measured
from lengths import REWARD
from paceline.cli import jobs
from paceline.config.load import load as load_config
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.load import load
from paceline.models.smollm2 import NAME
from paceline.native.calls import kernels
from paceline.ports.rollout import Failure
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB, Prompt, Request, Sampling, Score, ScoredGroup, Trajectory
from serving import RECIPE, engine, loaded, prompts, spread

GROUP, TRAINED = 8, 32
"""Answers of a group, answers of an update."""
MODES = {"normal": False, "deterministic": True}
UPDATES = 2
RUNS: Mapping[str, Sequence[str]] = {
    "serial": (),
    "serial, again": (),
    "pipelined": ("schedule.preset=pipelined", "schedule.groups_per_dispatch=1", "rollout.slots=12"),
}
"""Runs of a few updates with U = R = 4 groups; the first is what the others are compared with."""
KEPT = ("master.safetensors", "optimizer.safetensors")


def requests(batch: int, tokens: int) -> list[Request]:
    """A batch of answers to the quickstart's prompts in groups of `GROUP`; ends are forced by their lengths."""
    asked = [prompt.ids for prompt in prompts(0, -(-batch // GROUP))]
    lengths = np.random.default_rng(0).integers(tokens // 2, tokens, size=batch, endpoint=True)
    return [Request(i // GROUP, i % GROUP, 1, asked[i // GROUP], Sampling(int(lengths[i])), seed=1, version=0) for i in range(batch)]


def decode(serving: TorchEngine, work: Sequence[Request]) -> tuple[float, list[Trajectory]]:
    """Sampled tokens per second, prefill included, and the answers in order of (group, sample)."""
    serving.submit(work)
    found: list[Trajectory] = []
    started = time.perf_counter()
    while len(found) < len(work):
        for result in serving.step():
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
        kernels=kernels(),
    )


def update(trainer: TorchTrainer, groups: Sequence[ScoredGroup]) -> float:
    """Seconds of one update."""
    started = time.perf_counter()
    trainer.accumulate(groups)
    trainer.step()
    return time.perf_counter() - started


def decoding(model: ModelConfig, batch: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Both modes at one batch size, in turn."""
    weights, work = loaded(model, ends=False), requests(batch, tokens)
    engines = {mode: engine(weights, batch, tokens, deterministic=flag) for mode, flag in MODES.items()}
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    answers: dict[str, list[Trajectory]] = {}
    for serving in engines.values():
        decode(serving, work)
    for _ in range(repeats):
        for mode, serving in engines.items():
            rate, answers[mode] = decode(serving, work)
            rates[mode].append(rate)
    same = [np.array_equal(a.ids, b.ids) for a, b in zip(*answers.values(), strict=True)]
    other = {mode: share_of_bits(answers[mode], decode(serving, work[::-1])[1]) for mode, serving in engines.items()}
    return {
        "batch": batch,
        "tokens_per_s": {mode: spread(values, 1) for mode, values in rates.items()},
        "ratio": _ratio(rates),
        "same_tokens": round(float(np.mean(same)), 3),
        "same_bits_in_other_order": other,
    }


def _ratio(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Deterministic over normal, repeat by repeat."""
    return spread([exact / usual for usual, exact in zip(values["normal"], values["deterministic"], strict=True)])


def share_of_bits(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> float:
    """Answers whose tokens and log-probs are equal to the last bit."""
    pairs = list(zip(ours, theirs, strict=True))
    equal = [np.array_equal(a.ids, b.ids) and np.array_equal(a.columns[LOGPROB], b.columns[LOGPROB]) for a, b in pairs]
    return round(float(np.mean(equal)), 3)


def training(model: ModelConfig, tokens: int, repeats: int) -> dict[str, Any]:
    """Both trainers on the same groups, in turn."""
    _, answers = decode(engine(loaded(model, ends=False), TRAINED, tokens), requests(TRAINED, tokens))
    trainers = {mode: made_trainer(model, tokens, flag) for mode, flag in MODES.items()}
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    groups = scored(answers)
    for trainer in trainers.values():
        update(trainer, groups)
    for _ in range(repeats):
        for mode, trainer in trainers.items():
            times[mode].append(update(trainer, groups))
    return {"groups": len(groups), "seconds_per_update": {mode: spread(values) for mode, values in times.items()}, "ratio": _ratio(times)}


def runs(model: ModelConfig, threads: int, scratch: Path) -> dict[str, Any]:
    """Whole runs in deterministic mode: seconds, and whether weights and moments have the bits of the first one's."""
    words = [f"run.dir={scratch}", "run.deterministic=true", f"run.updates={UPDATES}", "schedule.groups_per_update=4", "eval.every=0"]
    words += [f"model.path={model.path}", f"model.dtype={model.dtype}", *(f"reward.0.{key}={value}" for key, value in REWARD.items())]
    words += [f"pool.rollout_threads={threads}", f"pool.trainer_threads={threads}"]
    found: dict[str, Any] = {}
    for name, how in RUNS.items():
        shutil.rmtree(scratch, ignore_errors=True)
        started = time.perf_counter()
        outcome = jobs.train(load_config(RECIPE, [*words, *how]))
        assert outcome.ok, outcome.reason
        seconds = round(time.perf_counter() - started, 1)
        rows = [json.loads(line) for line in (scratch / "metrics.jsonl").read_text().splitlines()]
        norms = [row["grad_norm"] for row in rows if row["axis"] == "update"]
        assert len(norms) == UPDATES, norms
        assert all(norms), "an update without a gradient would prove nothing"
        checkpoint = scratch / "checkpoints" / f"step-{UPDATES}"
        bits = {file: hashlib.sha256((checkpoint / file).read_bytes()).hexdigest() for file in KEPT}
        found[name] = {"seconds": seconds, "gradient_norms": norms, "sha256": bits}
    shutil.rmtree(scratch)
    return found


def measure(model: ModelConfig, threads: int, tokens: int, batches: Sequence[int], repeats: int, scratch: Path) -> dict[str, Any]:
    """Everything in one dtype."""
    with Quiet() as quiet:
        found = {
            "decoding": [decoding(model, batch, tokens, repeats) for batch in batches],
            "training": training(model, tokens, repeats),
            "runs": runs(model, threads, scratch),
        }
    exact = all(row["same_bits_in_other_order"]["deterministic"] == 1.0 for row in found["decoding"])
    equal = len({json.dumps(run["sha256"]) for run in found["runs"].values()}) == 1
    found |= {"runs_have_equal_bits": equal, "holds": exact and equal, "other_load": quiet.found}
    print(model.dtype, json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-deterministic", help="where the runs lie")
    parser.add_argument("--tiny", action="store_true", help="a smoke test: one repeat of a few tokens, nothing written")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)

    def _all(tokens: int, batches: Sequence[int], repeats: int) -> dict[str, Any]:
        models = [ModelConfig(path=chosen.model, dtype=dtype) for dtype in chosen.dtypes]
        return {model.dtype: measure(model, chosen.threads, tokens, batches, repeats, chosen.runs) for model in models}

    if chosen.tiny:
        found = _all(6, (1, 8), 1)
    else:
        with measured("deterministic", repeats=chosen.repeats) as figures:
            found = _all(chosen.tokens, chosen.batches, chosen.repeats)
            figures |= {"model": chosen.model, "threads": chosen.threads, "tokens": chosen.tokens, "dtypes": found}
    raise SystemExit(0 if all(one["holds"] for one in found.values()) else "bits differ that deterministic mode promises to be equal")


if __name__ == "__main__":
    main()
