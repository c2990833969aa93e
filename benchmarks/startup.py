"""How long the command line takes before it has anything to compute: help, a plan, and an error in a configuration."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from evidence import ROOT, measured

RECIPE = "recipes/quickstart.toml"
COMMANDS = {"help": ("--help",), "plan": ("plan", RECIPE), "error": ("plan", RECIPE, "run.updatez=3")}
REPEATS = 15


def seconds(*arguments: str) -> float:
    """Wall time of one command, interpreter start included."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "paceline", *arguments], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return time.monotonic() - began


def main() -> None:
    """Measure in turn and write the evidence; one round more comes first."""
    with measured("startup", repeats=REPEATS) as figures:
        rounds = [{name: seconds(*arguments) for name, arguments in COMMANDS.items()} for _ in range(REPEATS + 1)][1:]
        for name in COMMANDS:
            found = sorted(one[name] for one in rounds)
            figures[name] = {"median_s": round(statistics.median(found), 3), "least_s": round(found[0], 3), "most_s": round(found[-1], 3)}


if __name__ == "__main__":
    main()
