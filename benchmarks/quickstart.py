"""Does the main job learn? Three seeds and a control with permuted rewards, each through `paceline train recipes/quickstart.toml`.

Every seed evaluates on its own held-out problems (none of them occurs in training), at the start and at the end, inside the run.
A finished run is not run again, so the script can be interrupted. Usage: python benchmarks/quickstart.py [--runs DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence import ROOT, measured
from paceline.core.evaluation import summarize
from paceline.types.results import Answers, EvalResult, Verdict

SEEDS = (0, 1, 2)
CONTROL = "control"
SHARES = ("greedy", "sampled", "greedy_if_parsed", "sampled_if_parsed", "parsed")


def train(name: str, seed: int, runs: Path, *extra: str) -> Path:
    """Run the recipe unless it has run; the wall time of the whole command is kept beside it."""
    directory = runs / name
    done = directory / "seconds.json"
    if not done.exists():
        command = [
            *(str(Path(sys.executable).parent / "paceline"), "train", str(ROOT / "recipes" / "quickstart.toml")),
            *(f"run.dir={directory}", f"run.seed={seed}", f"eval.task.seed={1_000_000 * (seed + 1)}", *extra),
        ]
        start = time.monotonic()
        subprocess.run(command, check=True, cwd=ROOT)
        done.write_text(json.dumps({"seconds": time.monotonic() - start}))
    return directory


def evaluations(directory: Path) -> list[dict[str, Any]]:
    """Rows of a run's evaluations, in order of update."""
    rows = [json.loads(line) for line in (directory / "eval.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: row["update"])


def pooled(rows: list[dict[str, Any]]) -> EvalResult:
    """One result over the problems of several runs; no problem is counted as if its answers were independent."""
    return summarize([answers(record) for row in rows for record in row["answers"]])


def answers(record: dict[str, Any]) -> Answers:
    """Read back one problem's judged answers."""
    greedy = Verdict(**record["greedy"]) if record["greedy"] else None
    return Answers(greedy, tuple(Verdict(**verdict) for verdict in record["samples"]))


def told(result: EvalResult) -> dict[str, Any]:
    """The shares of a result with their intervals."""
    return {name: asdict(share) for name in SHARES if (share := getattr(result, name)) is not None} | {"problems": result.problems}


def rewards(directory: Path) -> list[float]:
    """Mean reward of every update."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [round(row["reward"], 4) for row in rows if row["axis"] == "update"]


def figures(directories: list[Path], control: Path) -> dict[str, Any]:
    """Everything that is claimed of the main job."""
    each = {d.name: evaluations(d) for d in [*directories, control]}
    seconds = {d.name: json.loads((d / "seconds.json").read_text())["seconds"] for d in [*directories, control]}
    before, after = (pooled([each[d.name][i] for d in directories]) for i in (0, -1))
    assert before.sampled is not None, "the recipe samples answers"
    assert after.sampled is not None, "the recipe samples answers"
    assert before.greedy is not None, "the recipe asks for greedy answers"
    assert after.greedy is not None, "the recipe asks for greedy answers"
    return {
        "run_seconds": seconds,
        "run_seconds_median": statistics.median(seconds[d.name] for d in directories),
        "before": told(before),
        "after": told(after),
        "greedy_intervals_apart": after.greedy.low > before.greedy.high,
        "sampled_intervals_apart": after.sampled.low > before.sampled.high,
        "sampled_ratio": after.sampled.value / before.sampled.value,
        "control_before": told(pooled([each[control.name][0]])),
        "control_after": told(pooled([each[control.name][-1]])),
        "rewards": {d.name: rewards(d) for d in [*directories, control]},
        "evaluations": {name: [{"update": row["update"], **told(pooled([row]))} for row in rows] for name, rows in each.items()},
    }


def main() -> None:
    """Run what has not run yet, then write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-quickstart")
    runs = parser.parse_args().runs
    with measured("quickstart", repeats=len(SEEDS)) as found:
        directories = [train(f"seed-{seed}", seed, runs) for seed in SEEDS]
        found.update(figures(directories, train(CONTROL, 0, runs, "run.permute_rewards=true")))
    print(json.dumps({key: found[key] for key in found if key not in ("rewards", "evaluations")}, indent=1))


if __name__ == "__main__":
    main()
