"""Thousands of games of an adversary against the machine, per preset, each with fresh seeds: none may break a rule or stall.

A game that is lost prints its seed; `python benchmarks/core_orders.py --first SEED --games 1 --preset P --no-evidence` repeats it.
"""

from __future__ import annotations

import argparse
import random
import secrets
import time
from collections import Counter
from typing import Any, get_args

from evidence import measured
from paceline.core.schedule import Preset
from paceline.sim import cases
from paceline.sim.adversary import Game, play


def one(preset: Preset, seed: int) -> Game:
    """One game; what the machine itself objects to counts as lost."""
    choose = random.Random(f"{preset} {seed}")
    try:
        return play(preset, cases.Chooser(choose.choice), moves=choose.choice((15, 40, 80, 160)))
    except Exception as error:  # noqa: BLE001 - whatever a game raises is a finding, and the others must still be played
        return Game(f"{type(error).__name__}: {error}", 0, Counter(), 0)


def many(preset: Preset, games: int, first: int) -> dict[str, Any]:
    """`games` games against a preset from seed `first` on; prints each that is lost."""
    start, lost = time.perf_counter(), []
    moves = lineages = 0
    records: Counter[str] = Counter()
    for seed in range(first, first + games):
        game = one(preset, seed)
        moves, lineages = moves + game.moves, lineages + game.lineages
        records += game.records
        if game.wrong:
            lost.append({"seed": seed, "what": game.wrong[:400]})
            print(f"{preset} seed {seed}: {game.wrong}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{preset}: {games} games, {moves} moves, {records.total()} records, {seconds:.1f} s, {len(lost)} lost", flush=True)
    figures = {"games": games, "moves": moves, "lineages": lineages, "records": records.total(), "seconds": round(seconds, 1)}
    return figures | {"by_kind": dict(sorted(records.items())), "lost": len(lost), "first_lost": lost[:20]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=5000, help="per preset")
    parser.add_argument("--first", type=int, default=secrets.randbelow(10**9), help="first seed; a fresh one when not given")
    parser.add_argument("--preset", choices=get_args(Preset), action="append")
    parser.add_argument("--no-evidence", action="store_true")
    args = parser.parse_args()
    presets = args.preset or get_args(Preset)
    if args.no_evidence:
        for preset in presets:
            many(preset, args.games, args.first)
        return
    with measured("core-orders") as figures:
        figures["first_seed"] = args.first
        figures |= {preset: many(preset, args.games, args.first) for preset in presets}


if __name__ == "__main__":
    main()
