"""Does every schedule learn? Reward per update of the quickstart's task under each preset, three seeds, in smaller updates.

A run is `paceline train recipes/quickstart.toml` with a few overrides, one thread per process. It records the mean reward of every update,
the staleness of every group at its consumption (from the ledger), and greedy accuracy on held-out problems before and after. A finished
run is a file RUNS/NAME-SEED.json and is not run again, so the script can be interrupted. --beside 2 runs two at once, since nothing is
timed.

    python benchmarks/learning.py [--runs DIR] [--beside 2] [--only NAME ...] [--seeds 0 1 2] [--updates 40]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from evidence import ROOT, measured, sources
from paceline.cli import jobs
from paceline.core.commands import Dispatch
from paceline.runtime.ledger import LedgerReader

UPDATES, SEEDS = 40, (0, 1, 2)
GROUPS_PER_UPDATE, GROUP_SIZE = 16, 4
COMMON = (
    *(f"schedule.groups_per_update={GROUPS_PER_UPDATE}", f"schedule.group_size={GROUP_SIZE}", "trainer.learning_rate=1e-5"),
    *("pool.rollout_threads=1", "pool.trainer_threads=1"),
    *("eval.samples=0", "eval.problems=100"),
)
SCHEDULES: Mapping[str, Sequence[str]] = {
    "serial": (),
    "pipelined": ("schedule.preset=pipelined", f"schedule.groups_per_round={4 * GROUPS_PER_UPDATE}"),
    **{f"streaming S={s}": ("schedule.preset=streaming", f"schedule.staleness={s}") for s in (1, 2, 4)},
    **{
        f"multiversion W={w}": ("schedule.preset=multiversion", f"schedule.version_window={w}", f"rollout.versions_held={w}")
        for w in (2, 3)
    },
}
"""Name -> overrides of the recipe."""
LAST = 8
"""Updates at the end of a run that its mean reward is quoted over."""


def learn(name: str, seed: int, runs: Path, updates: int) -> dict[str, Any]:
    """One run, unless its file is there, made by this code."""
    path = runs / f"{name.replace(' ', '-')}-{seed}.json"
    asked = {"updates": updates, "overrides": [*COMMON, *SCHEDULES[name]], "sources": sources()}
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if all(found.get(key) == value for key, value in asked.items()):
            return found
    directory = path.with_suffix("")
    shutil.rmtree(directory, ignore_errors=True)
    started = time.monotonic()
    command = [
        *(sys.executable, "-m", "paceline.cli.main", "train", str(ROOT / "recipes" / "quickstart.toml")),
        *(f"run.dir={directory}", f"run.seed={seed}", f"run.updates={updates}", f"eval.every={updates}"),
        *(f"eval.task.seed={1_000_000 * (seed + 1)}", *COMMON, *SCHEDULES[name]),
    ]
    with path.with_suffix(".log").open("w") as log:
        subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=log)
    found = {
        **asked,
        "seconds": round(time.monotonic() - started),
        **recorded(directory),
    }
    path.write_text(json.dumps(found))
    shutil.rmtree(directory)
    print(
        f"{name}, seed {seed}: {found['seconds']} s, reward of the last {LAST} updates {statistics.fmean(found['rewards'][-LAST:]):.3f}",
        flush=True,
    )
    return found


def recorded(directory: Path) -> dict[str, Any]:
    """Rewards, staleness and accuracy of a run that has ended well."""
    broken = jobs.audit(directory).violations
    assert not broken, broken
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    evaluations = [json.loads(line) for line in (directory / "eval.jsonl").read_text().splitlines()]
    staleness = Counter(versions for dispatch in dispatches(directory) for versions in dispatch.staleness)
    return {
        "rewards": [round(row["reward"], 4) for row in rows if row["axis"] == "update"],
        "staleness": {str(versions): staleness[versions] for versions in sorted(staleness)},
        "greedy": [round(row["greedy"]["value"], 4) for row in sorted(evaluations, key=lambda row: row["update"])],
    }


def dispatches(directory: Path) -> Iterator[Dispatch]:
    """Everything that the run gave to its trainer."""
    reader = LedgerReader(directory / "ledger.sqlite")
    try:
        for lineage in reader.lineages():
            yield from (record.value for record in reader.records(lineage.id) if isinstance(record.value, Dispatch))
    finally:
        reader.close()


def figures(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What is claimed of each schedule: the curves, how it ends, how stale its groups were."""
    return {
        name: {
            "rewards": [run["rewards"] for run in each],
            "last_reward": [round(statistics.fmean(run["rewards"][-LAST:]), 4) for run in each],
            "greedy_before": [run["greedy"][0] for run in each],
            "greedy_after": [run["greedy"][-1] for run in each],
            "staleness": dict(sorted(sum((Counter(run["staleness"]) for run in each), Counter()).items())),
            "seconds": [run["seconds"] for run in each],
        }
        for name, each in runs.items()
    }


def main() -> None:
    """Run what has not run yet; with everything there, write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-learning")
    parser.add_argument("--beside", type=int, default=1, help="runs at the same time")
    parser.add_argument("--only", nargs="*", choices=SCHEDULES, help="some schedules; no evidence is written")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--updates", type=int, default=UPDATES)
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    names = arguments.only or list(SCHEDULES)
    one = partial(learn, runs=arguments.runs, updates=arguments.updates)

    def _all() -> dict[str, list[dict[str, Any]]]:
        pairs = [(name, seed) for seed in arguments.seeds for name in names]
        with ThreadPoolExecutor(arguments.beside) as side:
            found = list(side.map(one, *zip(*pairs, strict=True)))
        return {name: [run for pair, run in zip(pairs, found, strict=True) if pair[0] == name] for name in names}

    if arguments.only:
        _all()
        return
    with measured("learning", repeats=len(arguments.seeds)) as found:
        found.update(updates=arguments.updates, samples_per_update=GROUPS_PER_UPDATE * GROUP_SIZE, schedules=figures(_all()))
    print(json.dumps({name: one["last_reward"] for name, one in found["schedules"].items()}, indent=1))


if __name__ == "__main__":
    main()
