"""Does a long run grow? 6,000 tiny updates through the real runtime: memory and open files of every process, and the disk, by update.

A random tiny model, real processes, checkpoints every --every updates of which `run.keep_last` stay. Every --look updates this script reads
the proportional, resident and private set sizes and the open files of the controller and of each worker (with what it started), and the
bytes of every part of the run directory. Slopes are least squares over the means of BLOCKS blocks of equal length after the warm-up; the
interval is Student's, 95 %, over those means, so that neighbouring looks do not count as independent. What grows by design (ledger,
trajectories, metrics) is told in bytes per update; everything else has a bound. In the end the run goes on from its last checkpoint, which
must work. A bound that is broken is told in the evidence and ends the script with an error.
Usage: python benchmarks/long_run.py [--updates 6000] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from evidence import ROOT, Quiet, measured

UPDATES, WARM_UP, BLOCKS = 6000, 0.25, 10
"""WARM_UP: share of the updates before slopes are taken."""
STUDENT = 2.306
"""97.5 % quantile of Student's distribution with BLOCKS - 2 degrees of freedom."""
BOUNDS = {"private": 2048.0, "rss": 2048.0, "open_files": 0.002, "bounded_disk": 256.0}
"""Largest upper end of a slope's interval, per update: bytes of memory of a process, open files of a process, bytes of what is kept by
`keep_last` (checkpoints) or only passes through (weights, moves)."""
BY_DESIGN = ("ledger", "trajectories", "metrics", "notices", "logs")
"""Parts of the run directory that every update adds to."""
CONFIG = """
[run]
dir = "{run}"
checkpoint_every = {every}
keep_last = 2
[model]
path = "{model}"
dtype = "float32"
[task]
kind = "file"
path = "{rows}"
gold_column = "answer"
[[reward]]
kind = "function"
function = "{reward}:length"
[rollout]
slots = 8
max_prompt_tokens = 100
max_tokens = 6
[schedule]
preset = "pipelined"
group_size = 4
groups_per_update = 2
[pool]
rollout_threads = 1
trainer_threads = 1
"""
REWARD = """
def length(completions, **columns):
    return [float(len(text) % 3 == 0) for text in completions]
"""


def prepare(scratch: Path, every: int) -> Path:
    """Model, rows, reward and configuration; the path of the latter."""
    from paceline.models.tiny import write_tiny

    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    write_tiny(scratch / "model")
    (scratch / "reward.py").write_text(REWARD)
    lines = [json.dumps({"prompt": f"say hello {number}", "answer": str(number)}) for number in range(64)]
    (scratch / "rows.jsonl").write_text("\n".join(lines))
    paths = {"run": scratch / "run", "model": scratch / "model", "rows": scratch / "rows.jsonl", "reward": scratch / "reward.py"}
    config = scratch / "config.toml"
    config.write_text(CONFIG.format(**paths, every=every))
    return config


def control(config: Path, updates: int, resume: bool) -> None:
    """The controller's process: run, and print the number of every update that is done."""
    from paceline.cli import jobs
    from paceline.config.load import load

    def _told(progress: Any) -> None:
        if progress.metrics:
            print(progress.update, flush=True)

    outcome = jobs.train(load(config, [f"run.updates={updates}"]), resume=resume, on_progress=_told)
    assert outcome.ok, outcome.reason
    assert "torch" not in sys.modules, "the controller loaded torch"


def updates_of(config: Path, updates: int, resume: bool = False) -> Iterator[tuple[int, int]]:
    """Run a controller; (its process id, update) after every update. RuntimeError when it fails."""
    command = [sys.executable, __file__, "control", "--config", str(config), "--updates", str(updates), *(["--resume"] if resume else [])]
    log = config.with_name("controller.log")
    with log.open("a") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            yield process.pid, int(line)
    if process.wait():
        raise RuntimeError(f"the run failed: {log.read_text()[-2000:]}")


# --- what is looked at


def processes(controller: int, logs: Path) -> dict[str, list[int]]:
    """Processes by whom they belong to: the controller, and each worker by the log that it and its children write."""
    found: dict[str, list[int]] = defaultdict(list)
    found["controller"] = [controller]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            log = Path(os.readlink(entry / "fd" / "1"))
        except OSError:
            continue  # it has ended, or is not ours
        if log.parent == logs:
            found[log.stem].append(int(entry.name))
    return found


def memory(pid: int) -> dict[str, int]:
    """Proportional and resident set size, and what is this process's alone, bytes. The first depends on who else maps the libraries."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: 1024 * int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return {"pss": sizes["Pss"], "rss": sizes["Rss"], "private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def disk(run: Path) -> dict[str, int]:
    """Bytes of every part of a run directory. What makes way while this looks, directories included, does not count."""
    found: dict[str, int] = defaultdict(int)
    for part in run.iterdir():
        files = [os.path.join(home, name) for home, _, names in os.walk(part) for name in names] if part.is_dir() else [part]
        for file in files:
            with suppress(FileNotFoundError):
                found[part.name.split(".")[0]] += os.stat(file).st_size
    return dict(found)


def look(controller: int, update: int, run: Path) -> dict[str, Any]:
    """Everything at one update; flat names."""
    row: dict[str, Any] = {"update": update}
    for name, pids in processes(controller, (run / "logs").resolve()).items():
        sizes = [memory(pid) for pid in pids]
        row |= {f"{kind}/{name}": sum(size[kind] for size in sizes) for kind in sizes[0]}
        row[f"open_files/{name}"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
    parts = disk(run)
    row |= {f"disk/{name}": parts.get(name, 0) for name in BY_DESIGN}
    return row | {"bounded_disk/checkpoints, weights, moves": sum(parts.get(name, 0) for name in ("checkpoints", "weights", "moves"))}


# --- slopes


def slope(updates: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Per update, with its interval, from the means of blocks."""
    blocks = [
        (float(np.mean(x)), float(np.mean(y))) for x, y in zip(np.array_split(updates, BLOCKS), np.array_split(values, BLOCKS), strict=True)
    ]
    x, y = (np.array(column) for column in zip(*blocks, strict=True))
    x = x - x.mean()
    found = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - found * x
    half = STUDENT * math.sqrt(float((rest * rest).sum()) / (BLOCKS - 2) / float((x * x).sum()))
    return {"per_update": found, "low": found - half, "high": found + half, "mean": float(np.mean(values))}


def slopes(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of everything that was looked at, after the warm-up."""
    steady = [row for row in rows if row["update"] > WARM_UP * rows[-1]["update"]]
    updates = [float(row["update"]) for row in steady]
    return {name: slope(updates, [float(row[name]) for row in steady]) for name in steady[0] if name != "update"}


def verdicts(found: Mapping[str, Mapping[str, float]]) -> dict[str, bool]:
    """Whether each slope that has a bound is surely below it."""
    return {name: one["high"] <= BOUNDS[kind] for name, one in found.items() if (kind := name.split("/")[0]) in BOUNDS}


def measure(scratch: Path, updates: int, every: int, each: int) -> dict[str, Any]:
    """Run, look, go on from the last checkpoint."""
    config, rows, started = prepare(scratch, every), [], time.perf_counter()
    run = scratch / "run"
    with (scratch / "looks.jsonl").open("w") as file:
        for controller, update in updates_of(config, updates):
            if update % each == 0 and update < updates:  # after the last one workers begin to leave
                rows.append(look(controller, update, run))
                file.write(json.dumps(rows[-1]) + "\n")
    seconds = time.perf_counter() - started
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    resumed = [update for _, update in updates_of(config, updates + every, resume=True)]
    assert resumed == list(range(updates + 1, updates + every + 1)), f"updates {resumed} after the resume"
    found = slopes(rows)
    return {
        "updates": updates,
        "seconds": round(seconds),
        "looks": len(rows),
        "checkpoint_every": every,
        "checkpoints_kept": kept,
        "updates_after_the_resume": len(resumed),
        "bounds_per_update": BOUNDS,
        "slopes": found,
        "within_bounds": verdicts(found),
        "grows_by_design_bytes_per_update": {name: round(found[f"disk/{name}"]["per_update"], 1) for name in BY_DESIGN},
    }


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "control"), default="measure")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-long-run")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--every", type=int, default=50, help="updates between checkpoints")
    parser.add_argument("--look", type=int, default=5, help="updates between two looks")
    parser.add_argument("--tiny", action="store_true", help="a smoke test: 60 updates, nothing written")
    arguments = parser.parse_args()
    if arguments.what == "control":
        control(arguments.config, arguments.updates, arguments.resume)
        return
    if arguments.tiny:
        print(json.dumps(measure(arguments.runs / "tiny", 60, 10, 1), indent=1))
        return
    with measured("long-run") as figures:
        with Quiet() as quiet:
            figures |= measure(arguments.runs / "whole", arguments.updates, arguments.every, arguments.look)
        figures["other_load"] = quiet.found
    print(json.dumps({name: figures[name] for name in ("seconds", "within_bounds", "grows_by_design_bytes_per_update")}, indent=1))
    raise SystemExit(0 if all(figures["within_bounds"].values()) else "a bound is broken")


if __name__ == "__main__":
    main()
