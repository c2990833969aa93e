"""What does pipelining gain? Serial, fifo, frontiers and `auto` on one core for rollout and one for training, at three balances.

Real model, real processes, real prompts; lengths are long-tailed and the same in every schedule (benchmarks/lengths.py). Only the
engine's slots, and slightly the lengths, differ between the balances: the fewer sequences decode together, the longer rollout takes
beside the same training. Two serial runs say what that takes here (benchmarks/balance.py). A round's window is the run's own
`rollout_to_train_end_seconds`: publish, checkpoint and evaluation lie outside. The best possible window is the longer of the two times as
serial takes them; beside it stands the longer of the two as fifo takes them: two busy cores slow each other (they share caches and
memory), and no schedule undoes that. The first round of every run is warm-up (`auto` has measured nothing before it): shown, not counted.

Schedules take turns, the whole sequence again in every repeat. Each finished run is a line of RUNS/cells.jsonl, and a run that has its line
is not run again, so the script can be interrupted. Usage:

    python benchmarks/schedules.py                                        all of it
    python benchmarks/schedules.py cell --slots 6 --schedule auto         one run, shown and kept
    python benchmarks/schedules.py balance                                slots and lengths of each balance on this machine
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from balance import Choice, Serial, chosen
from cells import COUNTED, GROUP_SIZE, GROUPS_PER_ROUND, GROUPS_PER_UPDATE, MEDIAN, SCHEDULES, Cells, Key, Round, lengths
from evidence import ROOT, measured
from paceline.core.frontier import ends

BALANCES = {"1:2": 1 / 2, "1:1": 1.0, "2:1": 2.0}
"""Rollout time over training time."""
TRIED = (2, 24)
"""Slots of the two serial runs that the balances follow from."""
MEDIANS = (12, 11, 13, 10, 14, 9, 15)
PROMPT_TOKENS = 35
"""Of one prompt, about: the balance that came of it stands beside every figure."""
REPEATS = 2
DEFAULTS, SHARE, CHANGE = ("fifo", "auto"), 0.85, -0.42
"""Targets: with each of these, at least this share of the best possible at every balance, and this change of the window at 1:1."""


def choices(cells: Cells) -> dict[str, Choice]:
    """Slots and lengths that bring this machine to each balance, from two serial runs and one at what these two say of it."""
    tried = [_serial(cells, Choice(slots, MEDIAN)) for slots in TRIED]
    found = {}
    for name, balance in BALANCES.items():
        first = _nearest(balance, *tried)
        near = _serial(cells, first)
        # A step's time is no straight line from few sequences to many: the nearer of the two runs says more about it.
        other = min((one for one in tried if one.slots != near.slots), key=lambda one: abs(math.log(one.slots / near.slots)))
        found[name] = _nearest(balance, near, other)
    return found


def _nearest(balance: float, one: Serial, other: Serial) -> Choice:
    return chosen(balance, one, other, _lengths, PROMPT_TOKENS * GROUPS_PER_ROUND, MEDIANS)


def _serial(cells: Cells, choice: Choice) -> Serial:
    key = _key(choice, "serial", 0)
    cells.run(key)
    first = Round(**cells.done[key]["rounds"][1])
    return Serial(choice.slots, _lengths(choice.median), first.rollout, first.train)


def _lengths(median: int) -> list[int]:
    """Of the first round that counts."""
    groups = range(GROUPS_PER_ROUND, 2 * GROUPS_PER_ROUND)
    return [lengths(median).of(group, sample) for group in groups for sample in range(GROUP_SIZE)]


def binds(choice: Choice, frontier: int, refill: str = "sample") -> bool:
    """Whether this frontier ever holds back a sample that fifo would start. Where it never does, the commands are those of fifo."""
    strict = refill == "group"
    for first in range(0, (1 + COUNTED) * GROUPS_PER_ROUND, GROUPS_PER_ROUND):
        groups = [[lengths(choice.median).of(first + g, s) for s in range(GROUP_SIZE)] for g in range(GROUPS_PER_ROUND)]
        slots, together = min(choice.slots, frontier * GROUP_SIZE), frontier if strict else len(groups)
        if list(ends(groups, slots, together)) != list(ends(groups, choice.slots, len(groups))):
            return True
    return False


def compared(choice: Choice) -> list[str]:
    """Schedules that differ at these slots and lengths."""
    fixed = {name: one for name, one in SCHEDULES.items() if isinstance(one.get("frontier"), int)}
    return [name for name in SCHEDULES if name not in fixed or binds(choice, fixed[name]["frontier"], fixed[name]["refill"])]


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and single values."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        found = tuple(round(value, 4) for value in values)
        low, _, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else (found[0],) * 3
        return cls(round(statistics.median(found), 4), round(low, 4), round(high, 4), found)


def balance_figures(cells: Cells, choice: Choice, repeats: int) -> dict[str, Any]:
    """Every schedule at one balance: ratios are taken round by round, between rounds of the same prompts and lengths.

    Where no frontier that `auto` chose ever held anything back, its runs were fifo's: both rows have the runs of both.
    """
    runs = {name: [cells.done[_key(choice, name, repeat)] for repeat in range(repeats)] for name in compared(choice)}
    each = {name: [Round(**one) for run in found for one in run["rounds"][1:]] for name, found in runs.items()}
    serial = each["serial"]
    free = not any(frontier is not None and binds(choice, frontier) for run in runs["auto"] for frontier, _ in run["frontiers"])
    if free:
        each["fifo"] = each["auto"] = each["fifo"] + each["auto"]
    best = statistics.median(max(one.rollout, one.train) / (one.rollout + one.train) for one in serial)
    busy = statistics.median(max(one.rollout, one.train) / (was.rollout + was.train) for one, was in zip(each["fifo"], cycle(serial)))
    told = {name: _figures(found, serial, each["fifo"], best, busy) for name, found in each.items()}
    fixed = [name for name in each if name == "fifo" or name.startswith("F=")]
    winner = min(fixed, key=lambda name: told[name]["to_serial"]["median"])
    return {
        "slots": choice.slots,
        "lengths": asdict(lengths(choice.median)),
        "rollout_to_training": round(statistics.median(one.rollout / one.train for one in serial), 3),
        "best_possible_change": round(best - 1, 3),
        "best_possible_change_with_both_cores_busy": round(busy - 1, 3),
        "schedules": told,
        "same_as_fifo": [*(name for name in SCHEDULES if name not in each), *(["auto"] if free else [])],
        "best_fixed": winner,
        "auto_to_best_fixed": asdict(Spread.of(_ratios(each["auto"], each[winner]))),
        "auto_to_fixed_chosen_elsewhere": asdict(Spread.of(_elsewhere({name: each[name] for name in fixed}, each["auto"], serial))),
        "loses_to_fifo": [name for name in fixed if told[name]["to_fifo"]["low"] > 1],
        "warm_up_windows": {name: [round(run["rounds"][0]["window"], 2) for run in found] for name, found in runs.items()},
        "frontiers_of_auto": [[words for _, words in run["frontiers"]] for run in runs["auto"]],
    }


def _figures(found: Sequence[Round], serial: Sequence[Round], fifo: Sequence[Round], best: float, busy: float) -> dict[str, Any]:
    """Pooled runs come one after the other, so their rounds go with those of `serial` over and over."""
    ratio = Spread.of(_ratios(found, serial))
    return {
        "window_seconds": asdict(Spread.of(one.window for one in found)),
        "to_serial": asdict(ratio),
        "to_fifo": asdict(Spread.of(_ratios(found, fifo))),
        "share_of_best_reached": round((1 - ratio.median) / (1 - best), 3),
        "share_of_best_with_both_cores_busy": round((1 - ratio.median) / (1 - busy), 3),
        "waiting_before_first_dispatch": asdict(Spread.of(one.waiting_first for one in found)),
        "waiting_all": asdict(Spread.of(one.waiting_all for one in found)),
        "rollout_seconds_to_serial": asdict(Spread.of(a.rollout / b.rollout for a, b in zip(found, cycle(serial)))),
        "train_seconds_to_serial": asdict(Spread.of(a.train / b.train for a, b in zip(found, cycle(serial)))),
    }


def _ratios(a: Sequence[Round], b: Sequence[Round]) -> list[float]:
    """As many as the longer of the two has rounds."""
    many = max(len(a), len(b))
    return [x.window / y.window for x, y, _ in zip(cycle(a), cycle(b), range(many))]


def verdicts(balances: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Whether the targets are met."""
    met = {}
    for balance, found in balances.items():
        for name in DEFAULTS:
            met[f"{balance}, {name}: at least {SHARE:.0%} of the best possible"] = (
                found["schedules"][name]["share_of_best_reached"] >= SHARE
            )
        met[f"{balance}: auto within 3 % of the best fixed frontier"] = found["auto_to_best_fixed"]["median"] <= 1.03
    for name in DEFAULTS:
        met[f"1:1, {name}: {CHANGE:.0%} or better"] = balances["1:1"]["schedules"][name]["to_serial"]["median"] - 1 <= CHANGE
    return met


def _elsewhere(fixed: Mapping[str, Sequence[Round]], auto: Sequence[Round], serial: Sequence[Round]) -> Iterator[float]:
    """Each window of `auto` over that of the fixed frontier which was best in all the *other* rounds, both as ratios to serial.

    The winner of several noisy schedules in the very rounds it won looks better than it is; a user who fixes F knows only other rounds.
    """
    rounds = len(serial)
    to_serial = {name: _ratios(found, serial) for name, found in fixed.items()}
    for index, ratio in enumerate(_ratios(auto, serial)):
        left = index % rounds
        winner = min(fixed, key=lambda name: _without(to_serial[name], left, rounds))
        yield ratio / statistics.fmean(to_serial[winner][left::rounds])


def _without(ratios: Sequence[float], left: int, rounds: int) -> float:
    return statistics.median([ratio for index, ratio in enumerate(ratios) if index % rounds != left])


def _key(choice: Choice, schedule: str, repeat: int) -> Key:
    return Key(choice.slots, schedule, repeat, choice.median)


def whole(cells: Cells, repeats: int) -> None:
    """Run what has not run yet, then write the evidence."""
    with measured("schedules", repeats=repeats) as found:
        each = choices(cells)
        keys = [_key(choice, name, r) for r in range(repeats) for choice in each.values() for name in compared(choice)]
        for key in keys:
            cells.run(key)
        found["setup"] = {
            "groups_per_round": GROUPS_PER_ROUND,
            "groups_per_update": GROUPS_PER_UPDATE,
            "group_size": GROUP_SIZE,
            "counted_rounds": COUNTED * repeats,
        }
        found["balances"] = {balance: balance_figures(cells, each[balance], repeats) for balance in BALANCES}
        found["targets"] = verdicts(found["balances"])
        loads = [cells.done[key]["other_load"] for key in keys]
        found["other_load"] = {kind: max((load[kind] for load in loads if load[kind] is not None), default=None) for kind in loads[0]}
        found["seconds"] = round(sum(cells.done[key]["seconds"] for key in keys))
    print(json.dumps({name: found[name] for name in ("targets", "other_load", "seconds")}, indent=1))


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("whole", "cell", "balance"), default="whole")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-schedules")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--slots", type=int, default=TRIED[0], help="cell: sequences that decode together")
    parser.add_argument("--median", type=int, default=MEDIAN, help="cell: median length")
    parser.add_argument("--schedule", choices=SCHEDULES, default="serial", help="cell: which")
    arguments = parser.parse_args()
    cells = Cells(arguments.runs)
    if arguments.what == "cell":
        cells.run(Key(arguments.slots, arguments.schedule, median=arguments.median))
    elif arguments.what == "balance":
        print(choices(cells))
    else:
        whole(cells, arguments.repeats)


if __name__ == "__main__":
    main()
