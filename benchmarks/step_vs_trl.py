"""One update of paceline against one of TRL's GRPOTrainer: seconds of generation and of training, and peak memory.

Both sides: the same model, prompts, group size, AdamW (fused), threads, float32 weights computed in bfloat16, every completion exactly
max_tokens long. Each side is a whole run in processes of its own, in turn, REPEATS times; the first update of a run is warm-up. An update's
seconds are all that pass until the next one; of those, training is forward, backward, step and, in paceline, bringing the weights to the
engine. Memory is the peak of the proportional set size, summed over all processes of a side, in runs of their own, since looking takes
time. TRL gets the fastest of the settings in TRIED on this machine, measured first, with the allocator's variables that paceline sets for
its workers if these help; it is timed a second time with the fastest of its own settings, without them. Its memory is the smaller of what
the two take. It has an environment of its own
(made at --venv if it is not there) with the torch and the transformers of this one. The ceiling, measured beside it, is what dense products
and reading the weights would take at this machine's speed. A finished run is a line of RUNS/runs.jsonl and does not run again.
Usage: python benchmarks/step_vs_trl.py [--tiny] [--venv DIR]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evidence import ROOT, Quiet, commit, measured
from paceline.models.load import load_tokenizer, resolve
from paceline.models.smollm2 import NAME
from paceline.runtime.process import MEMORY
from serving import Kept, product_rate, read_bandwidth, spread

TRL = ("trl==1.16.0", "gguf")
KEEPS = "keeps memory"
"""Value of the setting `allocator` with paceline's variables."""
TRIED = {"attention": ("sdpa", "eager"), "micro_batch": (4, 8, 16, 32), "allocator": ("default", KEEPS)}
"""Settings of TRL that are tried in every combination: attention implementation, completions per forward and backward, and the allocator's
variables that paceline sets for its workers, which a user of TRL could set too."""
QUESTIONS = (
    "Tell me a long story about {}.",
    "Explain in detail how {} works.",
    "List many facts about {}.",
    "Write a long letter about {}.",
)
TOPICS = ("the sea", "a clock", "bread", "the moon", "a library", "rain", "a train", "gardens")
TARGETS = {"trl_seconds_over_ours": 3.0, "our_memory_over_trl": 1.3}
OWN = "trl with its own settings"
"""The side without the allocator's variables."""
WARMUP = 1
WATCHED = 2
"""Runs of each side whose memory is looked at; their seconds do not count."""


@dataclass(frozen=True)
class Job:
    """What both sides do in one run."""

    groups: int
    group_size: int
    max_tokens: int
    updates: int
    threads: int
    rate: float = 1e-6

    @property
    def batch(self) -> int:
        """Completions of an update."""
        return self.groups * self.group_size


def prompts(job: Job) -> list[str]:
    """Questions in the chat template, enough for every update."""
    tokenizer = load_tokenizer(resolve(NAME))
    asked = [question.format(topic) for topic, question in itertools.product(TOPICS, QUESTIONS)]
    chats = [[{"role": "user", "content": text}] for text in asked]
    texts = [str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)) for chat in chats]
    return [texts[i % len(texts)] for i in range(job.groups * job.updates)]


def pss(root: int) -> dict[str, int]:
    """Proportional set size of a process and all its descendants, bytes by the names of the files that they log to."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    found: Counter[str] = Counter()
    for pid in family:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            name = Path(os.readlink(f"/proc/{pid}/fd/1")).stem
        except OSError:
            continue
        found[name] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return dict(found)


def ended(command: list[str], environment: dict[str, str], log: Path, watched: bool) -> dict[str, Any]:
    """Run a command to its end: how busy others were, its peak memory if `watched`. RuntimeError with the end of its log if it fails."""
    peak: dict[str, int] = {}
    with Quiet() as quiet, log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=output, stderr=output)
        while process.poll() is None:
            if watched:
                peak = max(peak, pss(process.pid), key=lambda found: sum(found.values()))
            time.sleep(0.3)
    if process.returncode:
        raise RuntimeError(f"{command}: {log.read_text()[-2000:]}")
    memory = {"peak_pss_bytes": sum(peak.values()), "peak_by_process": peak} if watched else {}
    return memory | {"other_load": quiet.found}


def trl(job: Job, python: Path, scratch: Path, watched: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """A run of TRL's."""
    file, out = scratch / "job.json", scratch / "trl.json"
    given = {
        **asdict(job),
        **settings,
        "model": str(resolve(NAME)),
        "prompts": prompts(job),
        "scratch": str(scratch / "trl"),
        "out": str(out),
    }
    file.write_text(json.dumps(given))
    variables = _threads(job) | (MEMORY if settings["allocator"] == KEEPS else {})
    seen = ended([str(python), str(ROOT / "benchmarks" / "trl_side.py"), str(file)], variables, scratch / "trl.log", watched)
    return seen | {"rows": json.loads(out.read_text())["rows"][WARMUP:]}


def ours(job: Job, scratch: Path, watched: bool) -> dict[str, Any]:
    """A run of paceline's: serial, one engine and one trainer process that take turns on all threads."""
    directory, file = scratch / "run", scratch / "job.json"
    shutil.rmtree(directory, ignore_errors=True)
    given = {**asdict(job), "model": NAME, "prompts": prompts(job), "dir": str(directory), "task": str(scratch / "prompts.jsonl")}
    file.write_text(json.dumps(given))
    seen = ended([sys.executable, str(ROOT / "benchmarks" / "our_side.py"), str(file)], _threads(job), scratch / "ours.log", watched)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found = [_row(row) for row in rows if row["axis"] == "update"]
    return seen | {"rows": found[WARMUP:]}


def _row(row: dict[str, Any]) -> dict[str, float]:
    """Of an update: `seconds` is all the time since the update before, publishing, loading, rewards and waiting included."""
    training = row["train_seconds"] + row["publish_seconds"]
    return {"seconds": row["step_time"], "generation": row["rollout_seconds"], "training": training}


def _threads(job: Job) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(directory: Path) -> Path:
    """Python of an environment with TRL beside the packages of this one, made if it is not there."""
    python, done = directory / "bin" / "python", directory / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        beside = next(directory.glob("lib/python*/site-packages")) / "beside.pth"
        beside.write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *TRL], check=True)
        done.touch()
    return python


def versions(python: Path) -> dict[str, str]:
    """Of the packages that decide TRL's side."""
    modules = ("torch", "transformers", "trl", "accelerate")
    code = f"import json, {', '.join(modules)}; print(json.dumps({{m.__name__: m.__version__ for m in ({', '.join(modules)})}}))"
    return dict(json.loads(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout))


Run = Callable[..., dict[str, Any]]
"""(side, job, repeat, **settings) -> what was seen of that run."""


def best_settings(job: Job, run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fastest of the settings tried, by the second of two updates, and all that were tried."""
    short, tried = Job(**{**asdict(job), "updates": WARMUP + 1}), []

    def attempt(**settings: Any) -> None:
        found = run("trl", short, 0, **settings)
        tried.append({"settings": settings, **found["rows"][0]})
        print(tried[-1], flush=True)

    sizes = sorted({size for size in (*TRIED["micro_batch"], job.batch) if size <= job.batch and job.batch % size == 0})
    for attention, size, allocator in itertools.product(TRIED["attention"], sizes, TRIED["allocator"]):
        attempt(attention=attention, micro_batch=size, allocator=allocator)
    return _fastest(tried), tried


def _fastest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(min(tried, key=lambda one: one["seconds"])["settings"])


def ceiling(job: Job) -> dict[str, float]:
    """This machine's speed, and what an update would take if nothing but dense products and reading the weights took time."""
    torch.set_num_threads(job.threads)
    flops, bandwidth = product_rate(torch.bfloat16), read_bandwidth()
    parameters, head = 134_515_008, 49_152 * 576
    tokenizer = load_tokenizer(resolve(NAME))
    prompt = statistics.mean(len(tokenizer(text)["input_ids"]) for text in prompts(job)[: job.groups])
    sampled, rows = job.batch * job.max_tokens, job.groups * prompt + job.batch * (job.max_tokens - 1)
    step = max(2 * parameters / bandwidth, 2 * parameters * job.batch / flops)
    return {
        "bfloat16_flop_per_s": flops,
        "read_bytes_per_s": bandwidth,
        "generation_seconds": job.max_tokens * step,
        "training_seconds": 6 * ((parameters - head) * rows + head * sampled) / flops,
        "decode_tokens_per_s": job.batch / step,
    }


Sides = dict[str, list[dict[str, Any]]]
"""Runs by side, in turn."""


def times(runs: Sides) -> dict[str, Any]:
    """Medians over the updates of each repeat, with their spread, and ratios TRL / paceline, repeat by repeat."""
    found: dict[str, Any] = {}
    for part in ("seconds", "generation", "training"):
        each = {name: [statistics.median(row[part] for row in run["rows"]) for run in sides] for name, sides in runs.items()}
        ratios = [theirs / mine for theirs, mine in zip(each["trl"], each["paceline"], strict=True)]
        found[part] = {**{name: spread(values) for name, values in each.items()}, "ratio": spread(ratios)}
    return found


def peaks(watched: Sides) -> dict[str, Any]:
    """Largest memory of each run, and what paceline takes of the smaller of TRL's two."""
    each = {name: [run["peak_pss_bytes"] for run in sides] for name, sides in watched.items()}
    shares = [mine / min(theirs) for mine, *theirs in zip(each["paceline"], each["trl"], each[OWN], strict=True)]
    return {**{name: spread(values) for name, values in each.items()}, "paceline_over_trl": spread(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / "runs" / "trl-venv")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-step-vs-trl")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tiny", action="store_true", help="a smoke test: one repeat of 2 x 4 completions of 8 tokens, nothing written")
    arguments = parser.parse_args()
    job = Job(2, 4, 8, 2, arguments.threads) if arguments.tiny else Job(4, 8, 64, 4, arguments.threads)
    repeats = 1 if arguments.tiny else arguments.repeats
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if arguments.tiny:
        shutil.rmtree(arguments.runs / "tiny", ignore_errors=True)
        print(json.dumps(compare(job, repeats, arguments.venv, arguments.runs / "tiny"), indent=1))
        return
    with measured("step-vs-trl", repeats=repeats) as figures:
        figures |= compare(job, repeats, arguments.venv, arguments.runs)
    told = (
        "trl_settings",
        "ceiling",
        "share_of_ceiling",
        "seconds",
        "generation",
        "training",
        "trl_with_its_own_settings",
        "peak_pss_bytes",
        "holds",
    )
    print(json.dumps({name: figures[name] for name in told}, indent=1))


def compare(job: Job, repeats: int, venv: Path, scratch: Path) -> dict[str, Any]:
    """Everything that is claimed."""
    python, kept = environment(venv), Kept(scratch / "runs.jsonl")

    def run(side: str, job: Job, repeat: int, watched: bool = False, **settings: Any) -> dict[str, Any]:
        key = {"side": side, **asdict(job), **settings, "repeat": repeat, "watched": watched, "commit": commit()}
        made = partial(ours, job, scratch, watched) if side == "paceline" else partial(trl, job, python, scratch, watched, settings)
        return dict(kept.once(key, made))

    limits = ceiling(job)
    settings, tried = best_settings(job, run)
    own = _fastest([one for one in tried if one["settings"]["allocator"] != KEEPS])
    timed: Sides = {"trl": [], "paceline": [], OWN: []}
    watched: Sides = {"trl": [], "paceline": [], OWN: []}
    for sides, turns in ((timed, repeats), (watched, min(repeats, WATCHED))):
        for repeat in range(turns):
            sides["trl"].append(run("trl", job, repeat, sides is watched, **settings))
            sides["paceline"].append(run("paceline", job, repeat, sides is watched))
            sides[OWN].append(run("trl", job, repeat, sides is watched, **own))
            print({name: found[-1] for name, found in sides.items()}, flush=True)
    result = {**times({side: timed[side] for side in ("trl", "paceline")}), "peak_pss_bytes": peaks(watched)}
    shares = {part: limits[f"{part}_seconds"] / result[part]["paceline"]["median"] for part in ("generation", "training")}
    return {
        "job": asdict(job),
        "trl_versions": versions(python),
        "trl_settings": settings,
        "trl_settings_tried": tried,
        "ceiling": limits,
        "targets": TARGETS,
        "holds": {
            "time": result["seconds"]["ratio"]["median"] >= TARGETS["trl_seconds_over_ours"],
            "memory": result["peak_pss_bytes"]["paceline_over_trl"]["median"] <= TARGETS["our_memory_over_trl"],
        },
        "share_of_ceiling": shares,
        **result,
        "trl_with_its_own_settings": {"settings": own, **times({"trl": timed[OWN], "paceline": timed["paceline"]})},
        "runs": timed,
        "watched_runs": watched,
    }


if __name__ == "__main__":
    main()
