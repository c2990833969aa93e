"""Peak memory of engine and trainer in real runs against what `paceline train --dry-run` says before: at most 15 % apart.

Each case is a run of three updates of the packaged model in the runtime's own processes; prompts and answers have their full length, for
which the estimate is made. Peaks are the kernel's own (`ru_maxrss`), so nothing is sampled.

Usage: python benchmarks/memory.py [--case NAME]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence import ROOT, measured
from lengths import REWARD, Lengths, workers
from paceline.cli import jobs
from paceline.config.inspect import model_shape
from paceline.config.load import load
from paceline.config.memory import memory
from paceline.config.plan import schedule
from paceline.models.load import load_tokenizer, resolve
from paceline.models.smollm2 import NAME
from paceline.native.machine import panels
from paceline.ports.pool import WorkerBody, WorkerSpec, make_body
from paceline.runtime.session import Workers

WITHIN = 0.15
PROMPT, ANSWER, UPDATES = 64, 64, 3
SIZES = (
    *(f"rollout.max_prompt_tokens={PROMPT}", f"rollout.max_tokens={ANSWER}", f"run.updates={UPDATES}", "run.keep_last=1"),
    *("task.template=plain", "task.shuffle=false", "trainer.warmup_updates=0", "rollout.slots=32"),
)
FOUR, EIGHT = "schedule.groups_per_update=4", "schedule.groups_per_update=8"
"""An update of 2,272 rows (4 prompts, 32 answers), of 4,544."""
CASES: Mapping[str, Sequence[str]] = {
    "4 x 8 answers, two micro-batches": (FOUR, "trainer.micro_batch_tokens=1150"),
    "4 x 8, one micro-batch": (FOUR, "trainer.micro_batch_tokens=2300"),
    "8 x 8, two micro-batches": (EIGHT, "rollout.slots=64", "trainer.micro_batch_tokens=2300"),
    "8 x 8, checkpointing": (EIGHT, "trainer.micro_batch_tokens=2300", "trainer.checkpoint_activations=true"),
    "4 x 8, a reference": (FOUR, "trainer.micro_batch_tokens=1150", "algorithm.kl=k3", "algorithm.kl_weight=0.1"),
    "4 x 8, float32": (FOUR, "trainer.micro_batch_tokens=1150", "model.dtype=float32"),
    "8 x 8, pipelined": (EIGHT, "rollout.slots=64", "schedule.preset=pipelined"),
    "4 x 8, long answers": (FOUR, "trainer.micro_batch_tokens=2112", "rollout.max_tokens=512", "run.updates=2"),
}
"""Micro-batches are nearly full, or dispatches of one group: the estimate is an upper limit, and takes them for full."""


class Peak:
    """A worker's body that writes its process's largest resident set to a file after every call: some workers are killed in the end."""

    def __init__(self, body: WorkerBody, out: str) -> None:
        self._call, self.tick, self.close, self._out = body.call, body.tick, body.close, Path(out)

    def call(self, method: str, *arguments: Any) -> Any:
        """As the body; `ru_maxrss` is in KiB on Linux."""
        answer = self._call(method, *arguments)
        self._out.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
        return answer


def body(spec: WorkerSpec, out: str) -> Peak:
    """Factory of such a worker."""
    return Peak(make_body(spec), out)


def watched(spec: WorkerSpec, scratch: Path) -> WorkerSpec:
    """The same worker, which leaves its peak in `scratch`."""
    return replace(spec, factory="memory:body", arguments={"spec": spec, "out": str(scratch / f"{spec.name}.peak")})


def run(overrides: Sequence[str], scratch: Path) -> dict[str, Any]:
    """One run: bytes measured and estimated per process."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    reward = [f"reward.0.{key}={value}" for key, value in REWARD.items()]
    config = load(None, [f"run.dir={scratch / 'run'}", f"model.path={NAME}", *SIZES, *reward, *_task(scratch), *overrides])
    most = config.rollout.max_tokens
    usual = workers(config, Lengths(median=most, sigma=1.0, least=most, most=most))
    specs = Workers(watched(usual.trainer, scratch), tuple(watched(spec, scratch) for spec in usual.rollout), usual.reward)
    outcome = jobs.train(config, workers=specs)
    assert outcome.ok, outcome.reason
    shape = model_shape(NAME)
    assert shape is not None
    found: dict[str, Any] = {}
    for process, name in (("engine", "rollout-0"), ("trainer", "trainer")):
        native = panels(config.model.dtype, shape.head_dim, shape.intermediate)
        estimate = memory(config, shape, schedule(config).groups_per_dispatch, panels=native, trainer_panels=native)
        items = [item for item in estimate if item.process == process]
        estimated, peak = sum(item.bytes for item in items), int((scratch / f"{name}.peak").read_text())
        found[process] = {
            "peak_bytes": peak,
            "estimated_bytes": estimated,
            "estimated_over_peak": estimated / peak,
            "items": {item.what: item.bytes for item in items},
        }
    return found


def _task(scratch: Path) -> list[str]:
    """Prompts of exactly PROMPT tokens, enough for every case."""
    tokenizer = load_tokenizer(resolve(NAME))
    lines = []
    for number in range(8 * UPDATES):
        ids = tokenizer(f"{number}:" + " word" * PROMPT)["input_ids"][:PROMPT]
        lines.append(json.dumps({"prompt": tokenizer.decode(ids)}) + "\n")
    file = scratch / "prompts.jsonl"
    file.write_text("".join(lines))
    return ["task.kind=file", f"task.path={file}"]


def main() -> None:
    """Measure every case; exit 1 when an estimate is further away than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-memory")
    parser.add_argument("--case", choices=CASES, help="this one only; nothing is written")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run(CASES[arguments.case], arguments.runs), indent=1))
        return
    with measured("memory") as figures:
        for name, overrides in CASES.items():
            figures[name] = run(overrides, arguments.runs)
            print(name, {process: round(row["estimated_over_peak"], 3) for process, row in figures[name].items()}, flush=True)
        apart = [abs(row["estimated_over_peak"] - 1) for case in figures.values() for row in case.values()]
        figures |= {"largest_difference": max(apart), "at_most": WITHIN, "holds": max(apart) <= WITHIN}
    raise SystemExit(0 if max(apart) <= WITHIN else f"an estimate is {max(apart):.0%} off")


if __name__ == "__main__":
    main()
