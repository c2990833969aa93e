"""GSM8K through the command line: a few updates of `paceline train`, then `paceline eval` on rows of the test file.

Usage: python benchmarks/gsm8k.py [--data DIR] [--updates 3] [--problems 50] [KEY=VALUE ...]: keys go to the training run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evidence import ROOT, measured

UPDATE_COLUMNS = ("step", "reward", "logprob_gap/mean", "logprob_gap/max", "completions/mean_length", "completions/clipped_ratio")
SHARE = re.compile(
    r"^\s*(greedy accuracy|sampled accuracy|given a parsable answer|parsable answers)\s+([\d.]+)\s+([\d.]+) to ([\d.]+)\s+(\d+)"
)


def paceline(*words: str) -> tuple[str, float]:
    """Run the command; its output, which is shown too, and the seconds it took. CalledProcessError when it fails."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "paceline.cli.main", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, words)
    return "".join(lines), time.monotonic() - start


def updates(run: Path) -> list[dict[str, Any]]:
    """What is recorded of every update."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in UPDATE_COLUMNS if name in row} for row in rows if row["axis"] == "update"]


def shares(output: str) -> dict[str, dict[str, float]]:
    """The table that `paceline eval` prints."""
    found: dict[str, dict[str, float]] = {}
    above = ""
    for match in filter(None, map(SHARE.match, output.splitlines())):
        name, value, low, high, count = match.groups()
        above = name if name.endswith("accuracy") else above
        name = f"{above}, {name}" if name.startswith("given") else name
        found[name] = {"value": float(value), "low": float(low), "high": float(high), "count": int(count)}
    assert found, "paceline eval printed no shares"
    return found


def main() -> None:
    """Train, evaluate, write the evidence; without the data, say so and stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "gsm8k")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    files = [arguments.data / name for name in ("train.jsonl", "test.jsonl")]
    if missing := [str(path) for path in files if not path.is_file()]:
        print(f"skipped: {', '.join(missing)} not found; name the directory with --data")
        return
    with tempfile.TemporaryDirectory() as scratch, measured("gsm8k") as figures:
        run = Path(scratch) / "run"
        common = (f"task.path={files[0]}", f"eval.task.path={files[1]}", f"eval.problems={arguments.problems}")
        recipe = str(ROOT / "recipes" / "gsm8k.toml")
        _, seconds = paceline("train", recipe, *common, f"run.dir={run}", f"run.updates={arguments.updates}", *arguments.words)
        figures |= {"train_seconds": round(seconds, 1), "updates": updates(run)}
        output, seconds = paceline("eval", str(run))
        figures |= {"eval_seconds": round(seconds, 1), "eval": shares(output)}
    assert len(figures["updates"]) == arguments.updates, "every update has a line in metrics.jsonl"


if __name__ == "__main__":
    main()
