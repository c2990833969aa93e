"""Thousands of random runs per preset: each must stop, break no rule, not stall. `python benchmarks/core_properties.py --runs 5000`."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, get_args

from evidence import measured
from paceline.core.schedule import Preset
from paceline.sim import cases
from paceline.sim.trials import trial


def one(preset: Preset, seed: int) -> tuple[str, int]:
    """What is wrong with one random run ("" = nothing), and how many records it made. Half of the runs are killed and resumed."""
    pick = cases.Chooser(random.Random(f"{preset} {seed}").choice)
    schedule = cases.schedule(preset, pick)
    world = cases.world(pick, schedule)
    kills = [float(pick.upto(1, 60)) for _ in range(pick.of(0, 0, 0, 1, 2, 3))]
    found = trial(schedule, world, kills)
    return "; ".join(found.wrong[:2]), found.records


def many(preset: Preset, runs: int, first: int) -> dict[str, Any]:
    """`runs` random runs of a preset from seed `first` on; prints each that is wrong."""
    start, records, wrong = time.perf_counter(), 0, []
    for seed in range(first, first + runs):
        try:
            message, size = one(preset, seed)
        except Exception as error:  # noqa: BLE001 - whatever a random run raises is a finding, and the others must still run
            message, size = f"{type(error).__name__}: {error}", 0
        records += size
        if message:
            wrong.append({"seed": seed, "what": message})
            print(f"{preset} seed {seed}: {message}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{preset}: {runs} runs, {records} records, {seconds:.1f} s, {len(wrong)} wrong", flush=True)
    return {"runs": runs, "records": records, "seconds": round(seconds, 1), "violations": len(wrong), "wrong": wrong[:20]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--preset", choices=get_args(Preset), action="append")
    parser.add_argument("--no-evidence", action="store_true")
    args = parser.parse_args()
    presets = args.preset or get_args(Preset)
    if args.no_evidence:
        for preset in presets:
            many(preset, args.runs, args.first)
        return
    with measured("core-properties") as figures:
        figures |= {preset: many(preset, args.runs, args.first) for preset in presets}


if __name__ == "__main__":
    main()
