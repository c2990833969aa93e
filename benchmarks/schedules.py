"""What does pipelining gain? Serial, fifo, frontiers and `auto` on one core for rollout and one for training, at three balances.

Real model, real processes, real prompts; lengths are long-tailed and the same in every schedule (benchmarks/lengths.py). Only the
engine's slots differ between the balances: the fewer sequences decode together, the longer rollout takes beside the same training.
A round's window is the run's own `rollout_to_train_end_seconds`: publish, checkpoint and evaluation lie outside. The first round of every
run is warm-up (`auto` has measured nothing before it) and is shown, not counted.

Schedules take turns, the whole sequence again in every repeat. Each finished run is a line of RUNS/cells.jsonl, and a run that has its line
is not run again, so the script can be interrupted. Usage:

    python benchmarks/schedules.py                                 all of it
    python benchmarks/schedules.py --only 1:1 auto --repeats 1     some cells; shown, no evidence written
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evidence import ROOT, Quiet, measured
from lengths import REWARD, Lengths, workers
from paceline.cli import wire
from paceline.config.schema import Config
from paceline.core.commands import Note
from paceline.runtime.ledger import LedgerReader

LENGTHS = Lengths(median=7, sigma=1.0, least=2, most=64)
GROUPS_PER_ROUND, GROUPS_PER_UPDATE, GROUP_SIZE = 32, 2, 4
SLOTS = {"1:2": 24, "1:1": 6, "2:1": 2}
"""Balance, rollout to training time -> sequences that decode together."""
COUNTED = 2
"""Rounds that count, of each run; one more comes before them."""
REPEATS = 2
FRONTIERS = (2, 4, 8)
CORES = {"rollout_threads": 1, "trainer_threads": 1, "rollout_cores": (0,), "trainer_cores": (1,)}
PIPELINED = {"preset": "pipelined"}
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "serial": {"preset": "serial"},
    "fifo": PIPELINED,
    **{
        f"F={frontier} {refill}": PIPELINED | {"frontier": frontier, "refill": refill}
        for refill in ("sample", "group")
        for frontier in FRONTIERS
    },
    "auto": PIPELINED | {"frontier": "auto"},
    "serial, both cores": {"preset": "serial"},
}
DEFAULT = "auto"
TARGETS = {"share_reached": 0.85, "window_at_1:1": -0.42, "auto_to_best_frontier": 1.03}


@dataclass(frozen=True)
class Round:
    """One round of a run, seconds and shares."""

    window: float
    rollout: float
    """At least one trajectory decoded."""
    train: float
    """The trainer computed."""
    waiting_first: float
    """Wait before the first dispatch over the window."""
    waiting_all: float
    """All the trainer's waiting over the window."""


def config(balance: str, schedule: str, directory: Path) -> Config:
    """The whole run of one cell."""
    updates = GROUPS_PER_ROUND // GROUPS_PER_UPDATE * (1 + COUNTED)
    return Config.model_validate(
        {
            "run": {"dir": str(directory), "updates": updates, "keep_last": 1},
            "task": {
                "kind": "reasoning_gym",
                "name": "chain_sum",
                "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
                "size": GROUPS_PER_ROUND * (2 + COUNTED),
                "template": "plain",
            },
            "reward": (dict(REWARD),),
            "rollout": {"slots": SLOTS[balance], "max_prompt_tokens": 64, "max_tokens": LENGTHS.most},
            "schedule": {
                "group_size": GROUP_SIZE,
                "groups_per_round": GROUPS_PER_ROUND,
                "groups_per_update": GROUPS_PER_UPDATE,
                **SCHEDULES[schedule],
            },
            "trainer": {"learning_rate": 1e-6},
            "pool": {"rollout_threads": 2, "trainer_threads": 2} if schedule.endswith("both cores") else CORES,
        }
    )


def rounds(directory: Path) -> list[Round]:
    """What the run recorded of its rounds, the first included."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["axis"] == "update"]
    size = GROUPS_PER_ROUND // GROUPS_PER_UPDATE
    return [_round(rows[first : first + size]) for first in range(0, len(rows), size)]


def _round(rows: Sequence[Mapping[str, float]]) -> Round:
    last = rows[-1]
    return Round(
        window=last["rollout_to_train_end_seconds"],
        rollout=math.fsum(row["rollout_seconds"] for row in rows),
        train=math.fsum(row["train_seconds"] for row in rows),
        waiting_first=last["trainer_waiting_ratio"],
        waiting_all=last["trainer_waiting_ratio/all"],
    )


@dataclass(frozen=True)
class Key:
    """One cell, and one time that it ran."""

    balance: str
    schedule: str
    repeat: int


class Cells:
    """Finished runs, one line each. Those of other settings are left alone."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._path = runs / "cells.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = [json.loads(line) for line in lines]
        self.done: dict[Key, dict[str, Any]] = {
            Key(**cell["key"]): cell for cell in found if cell["settings"] == self._settings(cell["key"])
        }

    def _settings(self, key: Mapping[str, Any]) -> str:
        """A fingerprint of everything that the figures of a cell depend on; empty for a cell that no longer exists."""
        if key["balance"] not in SLOTS or key["schedule"] not in SCHEDULES:
            return ""
        text = config(key["balance"], key["schedule"], Path("run")).model_dump_json() + repr(LENGTHS)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def run(self, key: Key) -> None:
        """Run a cell unless it has run."""
        if key in self.done:
            return
        directory = self._runs / "run"
        shutil.rmtree(directory, ignore_errors=True)
        started = time.monotonic()
        with Quiet() as quiet:
            cell = config(key.balance, key.schedule, directory)
            outcome = wire.train(cell, workers=workers(cell, LENGTHS))
            assert outcome.ok, outcome.reason
        broken = wire.audit(directory).violations
        assert not broken, broken
        record = {
            "key": asdict(key),
            "settings": self._settings(asdict(key)),
            "rounds": [asdict(one) for one in rounds(directory)],
            "frontiers": _frontiers(directory),
            "other_load": quiet.found,
            "seconds": time.monotonic() - started,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.done[key] = record
        print(_told(key, record), flush=True)


def _frontiers(directory: Path) -> list[str]:
    """What `auto` decided at each round, in its own words."""
    reader = LedgerReader(directory / "ledger.sqlite")
    try:
        records = [record.value for lineage in reader.lineages() for record in reader.records(lineage.id)]
    finally:
        reader.close()
    return [value.message for value in records if isinstance(value, Note) and value.message.startswith("frontier")]


# --- from rounds to figures


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


def counted(cells: Cells, balance: str, schedule: str, repeats: int) -> list[Round]:
    """The rounds that count: the same prompts and lengths, in the same order, for every schedule."""
    found = [cells.done[Key(balance, schedule, repeat)]["rounds"] for repeat in range(repeats)]
    return [Round(**one) for run in found for one in run[1:]]


def balance_figures(cells: Cells, balance: str, repeats: int) -> dict[str, Any]:
    """Every schedule at one balance: ratios are taken round by round, between rounds of the same prompts and lengths."""
    each = {schedule: counted(cells, balance, schedule, repeats) for schedule in SCHEDULES}
    serial = each["serial"]
    best = statistics.median(max(one.rollout, one.train) / (one.rollout + one.train) for one in serial)
    told = {schedule: _figures(found, serial, each["fifo"], best) for schedule, found in each.items()}
    fixed = [schedule for schedule in SCHEDULES if schedule == "fifo" or schedule.startswith("F=")]
    winner = min(fixed, key=lambda schedule: told[schedule]["to_serial"]["median"])
    return {
        "rollout_to_training": round(statistics.median(one.rollout / one.train for one in serial), 3),
        "best_possible_change": round(best - 1, 3),
        "schedules": told,
        "best_fixed": winner,
        "auto_to_best_fixed": asdict(Spread.of(_ratios(each["auto"], each[winner]))),
        "loses_to_fifo": [schedule for schedule in fixed if told[schedule]["to_fifo"]["low"] > 1],
        "warm_up_windows": {
            schedule: [round(cells.done[Key(balance, schedule, repeat)]["rounds"][0]["window"], 2) for repeat in range(repeats)]
            for schedule in SCHEDULES
        },
        "frontiers_of_auto": [cells.done[Key(balance, "auto", repeat)]["frontiers"] for repeat in range(repeats)],
    }


def _figures(found: Sequence[Round], serial: Sequence[Round], fifo: Sequence[Round], best: float) -> dict[str, Any]:
    ratio = Spread.of(_ratios(found, serial))
    return {
        "window_seconds": asdict(Spread.of(one.window for one in found)),
        "to_serial": asdict(ratio),
        "to_fifo": asdict(Spread.of(_ratios(found, fifo))),
        "share_of_best_reached": round((1 - ratio.median) / (1 - best), 3),
        "waiting_before_first_dispatch": asdict(Spread.of(one.waiting_first for one in found)),
        "waiting_all": asdict(Spread.of(one.waiting_all for one in found)),
        "rollout_seconds_to_serial": asdict(Spread.of(a.rollout / b.rollout for a, b in zip(found, serial, strict=True))),
        "train_seconds_to_serial": asdict(Spread.of(a.train / b.train for a, b in zip(found, serial, strict=True))),
    }


def _ratios(a: Sequence[Round], b: Sequence[Round]) -> list[float]:
    return [x.window / y.window for x, y in zip(a, b, strict=True)]


def verdicts(balances: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Whether the targets are met, with default settings (`auto`)."""
    shares = {balance: found["schedules"][DEFAULT]["share_of_best_reached"] for balance, found in balances.items()}
    even = balances["1:1"]["schedules"][DEFAULT]["to_serial"]["median"] - 1
    return {
        **{
            f"{balance}: at least {TARGETS['share_reached']:.0%} of the best possible": share >= TARGETS["share_reached"]
            for balance, share in shares.items()
        },
        f"1:1: {TARGETS['window_at_1:1']:.0%} or better": even <= TARGETS["window_at_1:1"],
        **{
            f"{balance}: auto within 3 % of the best fixed frontier": found["auto_to_best_fixed"]["median"]
            <= TARGETS["auto_to_best_frontier"]
            for balance, found in balances.items()
        },
    }


def _told(key: Key, cell: Mapping[str, Any]) -> str:
    each = [Round(**one) for one in cell["rounds"]]
    words = ", ".join(
        f"{one.window:.1f} s (rollout {one.rollout:.1f}, train {one.train:.1f}, waits {one.waiting_first:.0%} / {one.waiting_all:.0%})"
        for one in each
    )
    return (
        f"{key.balance} {key.schedule} {key.repeat}: {words}; others' load {cell['other_load']}; {cell['seconds']:.0f} s\n  "
        + "\n  ".join(cell["frontiers"])
    )


def main() -> None:
    """Run what has not run yet; with everything there, write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence-schedules")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="balances and schedules; no evidence is written")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    cells = Cells(arguments.runs)
    balances = [name for name in SLOTS if name in arguments.only] or list(SLOTS)
    schedules = [name for name in SCHEDULES if name in arguments.only] or list(SCHEDULES)
    keys = [Key(balance, schedule, repeat) for repeat in range(arguments.repeats) for balance in balances for schedule in schedules]
    if arguments.only:
        for key in keys:
            cells.run(key)
        return
    with measured("schedules", repeats=arguments.repeats) as found:
        for key in keys:
            cells.run(key)
        found["setup"] = {
            "groups_per_round": GROUPS_PER_ROUND, "groups_per_update": GROUPS_PER_UPDATE, "group_size": GROUP_SIZE,
            "lengths": asdict(LENGTHS), "slots": SLOTS, "counted_rounds": COUNTED * arguments.repeats,
        }  # fmt: skip
        found["balances"] = {balance: balance_figures(cells, balance, arguments.repeats) for balance in SLOTS}
        found["targets"] = verdicts(found["balances"])
        found["other_load"] = {
            kind: max(cells.done[key]["other_load"][kind] or 0.0 for key in keys) for kind in ("before", "during", "after")
        }
        found["seconds"] = round(sum(cells.done[key]["seconds"] for key in keys))
    print(json.dumps({"targets": found["targets"], "other_load": found["other_load"], "seconds": found["seconds"]}, indent=1))


if __name__ == "__main__":
    main()
