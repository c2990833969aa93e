"""How well `frontier = "auto"` chooses, in virtual time: 24 cells of balance, tail, cap and step cost, against fixed F and fifo.

A cell's figure is the mean rollout-to-train-end of a round: from its first admission to the end of its last update, publish excluded. The
first round is left out, since nothing is measured before it and auto is fifo there. Regret is the excess over the best fixed F of the cell.
Beside auto: auto with two reports per round only, and the rule that looks at rates alone (`by_rates`), which is told the truth. The same
cells come once more with most groups filtered away, and with one update per round, in dispatches.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, Literal, NamedTuple

from evidence import measured
from paceline.core.account import account
from paceline.core.schedule import Resume, Schedule
from paceline.sim.driver import Trace, simulate
from paceline.sim.world import FakeInstance, Lengths, World

Frontier = int | Literal["auto"] | None
Refill = Literal["sample", "group"]
R, U, SIZE, ROUNDS = 32, 2, 8, 6
FIXED = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
BASE_S = 0.02
"""A step without work."""
REPORT_S = 5.0
"""As in `runtime.rollout`."""


class Cell(NamedTuple):
    """balance: training / rollout time of a fifo round. tail: sigma of the lengths. cap: slots / trajectories of a round.
    growth: what a step with every slot in use takes beyond an empty one, in empty ones."""

    balance: float
    tail: float
    cap: float
    growth: float


class Setting(NamedTuple):
    """What all cells of a table have in common."""

    update: int = U
    """Groups per update; a dispatch is of U in any case."""
    filtered: float = 0.0
    """Share of the groups that the trainer does not get."""


PLAIN = Setting()
SETTINGS = {"filtered": Setting(filtered=0.6), "one_update": Setting(update=R)}
"""Beside that one."""
CELLS = [Cell(*cell) for cell in product((0.5, 1.0, 2.0), (0.5, 1.2), (0.25, 1.0), (0.5, 4.0))]


def schedule(frontier: Frontier, refill: Refill = "sample", setting: Setting = PLAIN) -> Schedule:
    """Rounds of R groups, dispatches of U."""
    per_round = R // setting.update
    return Schedule(
        "pipelined",
        SIZE,
        R,
        setting.update,
        U,
        per_round,
        "dispatch",
        ROUNDS * per_round,
        frontier=frontier,
        refill=refill,
        no_signal="drop",
    )


def world(cell: Cell, seed: int, group_seconds: float, report: float = REPORT_S, setting: Setting = PLAIN) -> World:
    """One instance, with lengths and step cost of the cell."""
    slots = round(R * SIZE * cell.cap)
    instance = FakeInstance("i0", slots, 1 / BASE_S, cell.growth * BASE_S / slots)
    lengths = Lengths("long_tail", 200, 4000, cell.tail)
    costs = {"group_seconds": group_seconds, "update_seconds": 0.0, "report": report}
    return World((instance,), seed, lengths=lengths, no_signal=setting.filtered, **costs)


def rounds(played: Schedule, trace: Trace) -> list[float]:
    """Rollout-to-train-end of every round but the first, seconds."""
    assert not trace.violations, trace.violations[0]
    assert not trace.stalled, trace.stalled
    _, rows = account(played, Resume(), trace.records)
    return [row.window.seconds(row.trained) for row in rows if row.axis == "publish"][1:]


def mean(
    cell: Cell,
    frontier: Frontier,
    seeds: int,
    group_seconds: float,
    report: float = REPORT_S,
    refill: Refill = "sample",
    setting: Setting = PLAIN,
) -> float:
    """Mean over rounds and seeds, seconds."""
    played = schedule(frontier, refill, setting)
    worlds = [world(cell, seed, group_seconds, report, setting) for seed in range(seeds)]
    return fmean(fmean(rounds(played, simulate(played, each))) for each in worlds)


def by_rates(cell: Cell, seeds: int, group_seconds: float) -> int:
    """The smallest F >= U whose groups per second are a fifth more than the trainer takes, or nearly as many as all of the round's."""
    worlds = [world(cell, seed, group_seconds) for seed in range(seeds)]
    groups = [[w.tokens(g, s) for s in range(SIZE)] for w in worlds for g in range(R * ROUNDS)]
    length, longest = fmean(map(fmean, groups)), fmean(map(max, groups))
    spec = worlds[0].instances[0]

    def rate(frontier: int) -> float:
        running = min(frontier * SIZE * length / longest, spec.slots)
        return running / (SIZE * length * spec.decode.step(running, 0.0))

    enough = min(1.2 / group_seconds, 0.95 * rate(R))
    return next(f for f in range(U, R + 1) if f == R or rate(f) >= enough)


class Common(NamedTuple):
    """What every table has of a cell, in seconds."""

    rollout: float
    group: float
    """Training, per group that trains."""
    fixed: dict[int, float]
    """A round by F."""
    ways: dict[str, float]
    """A round, of fifo and of auto."""


def common(cell: Cell, seeds: int, setting: Setting) -> Common:
    """Play the cell under every fixed F, under fifo and under auto."""
    rollout = mean(cell, None, seeds, 0.0, setting=setting)
    spent = cell.balance * rollout / (R * (1 - setting.filtered))
    fixed = {frontier: mean(cell, frontier, seeds, spent, setting=setting) for frontier in FIXED}
    asked: dict[str, Frontier] = {"fifo": None, "auto": "auto"}
    return Common(rollout, spent, fixed, {way: mean(cell, asked[way], seeds, spent, setting=setting) for way in asked})


def told(cell: Cell, found: Common, ways: Mapping[str, float]) -> dict[str, Any]:
    """The cell's best fixed F, and the regrets in per cent of it."""
    best = min(found.fixed, key=lambda f: found.fixed[f])
    regret = {way: round(100 * (seconds / found.fixed[best] - 1), 2) for way, seconds in ways.items()}
    figures = {**cell._asdict(), "rollout_s": round(found.rollout, 3), "best_F": best, "best_s": round(found.fixed[best], 3)}
    print(figures, regret, flush=True)
    return figures | {"regret_pct": regret}


def row(cell: Cell, seeds: int) -> dict[str, Any]:
    """The plain cell's figures: seconds by F, and the regrets of each way to choose."""
    found = common(cell, seeds, PLAIN)
    strict = {frontier: mean(cell, frontier, seeds, found.group, refill="group") for frontier in (U, *FIXED[3::3])}
    rule = by_rates(cell, seeds, found.group)
    ways = {
        **found.ways,
        "auto_rare_reports": mean(cell, "auto", seeds, found.group, report=found.rollout / 2),
        "by_rates": mean(cell, rule, seeds, found.group),
        "strict_U": strict[U],
        "strict_best": min(strict.values()),
    }
    by_frontier = {f: round(seconds, 3) for f, seconds in found.fixed.items()}
    return told(cell, found, ways) | {"by_rates_F": rule, "seconds_by_F": by_frontier}


def row_of(setting: Setting, cell: Cell, seeds: int) -> dict[str, Any]:
    """The cell's figures in another setting: the regrets of fifo and auto."""
    found = common(cell, seeds, setting)
    return told(cell, found, found.ways)


def regrets(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and worst regret of each way over the cells."""
    found = {way: [cell["regret_pct"][way] for cell in cells] for way in cells[0]["regret_pct"]}
    return {way: {"mean_regret_pct": round(fmean(each), 2), "worst_regret_pct": round(max(each), 2)} for way, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    with measured("frontier-sim", repeats=args.seeds) as figures:
        cells = [row(cell, args.seeds) for cell in CELLS]
        figures |= {"rounds": ROUNDS - 1, "R": R, "U": U, "group_size": SIZE, "report_s": REPORT_S}
        figures |= regrets(cells)
        for name, setting in SETTINGS.items():
            others = [row_of(setting, cell, args.seeds) for cell in CELLS]
            figures[name] = {**setting._asdict(), **regrets(others), "cells": others}
        figures["cells"] = cells


if __name__ == "__main__":
    main()
