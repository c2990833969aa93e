"""One run of the schedules' benchmark: its configuration, what it recorded of its rounds, and the file that says what has run."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evidence import Quiet, sources
from lengths import REWARD, Lengths, workers
from paceline.cli import jobs
from paceline.config.schema import Config
from paceline.core.commands import SetFrontier
from paceline.runtime.ledger import LedgerReader

MEDIAN = 12
"""Tokens, where a balance does not ask for another."""
GROUPS_PER_ROUND, GROUPS_PER_UPDATE, GROUP_SIZE = 32, 2, 4
COUNTED = 2
"""Rounds that count, of each run; one more comes before them."""
FRONTIERS = {"sample": (1, 2, 4), "group": (1, 2, 4)}
CORES = {"rollout_threads": 1, "trainer_threads": 1, "rollout_cores": (0,), "trainer_cores": (1,)}
PIPELINED = {"preset": "pipelined"}
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "serial": {"preset": "serial"},
    "fifo": PIPELINED,
    **{
        f"F={frontier} {refill}": PIPELINED | {"frontier": frontier, "refill": refill}
        for refill, frontiers in FRONTIERS.items()
        for frontier in frontiers
    },
    "auto": PIPELINED | {"frontier": "auto"},
    "serial, both cores": {"preset": "serial"},
}


def lengths(median: int) -> Lengths:
    """Long-tailed: the longest of a round is about eight times the median."""
    return Lengths(median=median, sigma=1.0, least=2, most=96)


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


def config(slots: int, schedule: str, directory: Path) -> Config:
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
            "rollout": {"slots": slots, "max_prompt_tokens": 64, "max_tokens": lengths(MEDIAN).most},
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

    slots: int
    schedule: str
    repeat: int = 0
    median: int = MEDIAN
    """Of the lengths."""


class Cells:
    """Finished runs, one line each. Those of other settings or of other code are left alone."""

    def __init__(self, runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self._sources = sources()
        self._runs = runs
        self._path = runs / "cells.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = [json.loads(line) for line in lines]
        self.done: dict[Key, dict[str, Any]] = {
            Key(**cell["key"]): cell for cell in found if cell["settings"] == self._settings({"median": MEDIAN, **cell["key"]})
        }

    def _settings(self, key: Mapping[str, Any]) -> str:
        """A fingerprint of everything that the figures of a cell depend on; empty for a cell that no longer exists."""
        if key["schedule"] not in SCHEDULES:
            return ""
        text = config(key["slots"], key["schedule"], Path("run")).model_dump_json() + repr(lengths(key["median"])) + self._sources
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def run(self, key: Key) -> None:
        """Run a cell unless it has run."""
        if key in self.done:
            return
        directory = self._runs / "run"
        shutil.rmtree(directory, ignore_errors=True)
        started, controller = time.monotonic(), time.process_time()
        with Quiet() as quiet:
            cell = config(key.slots, key.schedule, directory)
            outcome = jobs.train(cell, workers=workers(cell, lengths(key.median)))
            assert outcome.ok, outcome.reason
        controller = time.process_time() - controller
        broken = jobs.audit(directory).violations
        assert not broken, broken
        record = {
            "key": asdict(key),
            "settings": self._settings(asdict(key)),
            "rounds": [asdict(one) for one in rounds(directory)],
            "frontiers": _frontiers(directory),
            "other_load": quiet.found,
            "controller_cpu_seconds": round(controller, 2),
            "seconds": round(time.monotonic() - started, 1),
        }
        shutil.rmtree(directory)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.done[key] = record
        print(_told(key, record), flush=True)


def _frontiers(directory: Path) -> list[tuple[int | None, str]]:
    """What `auto` decided at each round: F, and the decision in its own words."""
    reader = LedgerReader(directory / "ledger.sqlite")
    try:
        records = [record.value for lineage in reader.lineages() for record in reader.records(lineage.id)]
    finally:
        reader.close()
    return [(value.groups, value.words) for value in records if isinstance(value, SetFrontier)]


def _told(key: Key, cell: Mapping[str, Any]) -> str:
    what = f"{key.slots} slots, median {key.median}, {key.schedule}, repeat {key.repeat}"
    lines = [f"{what}: {cell['seconds']:.0f} s, others' load {cell['other_load']}"]
    for one in (Round(**one) for one in cell["rounds"]):
        waits = f"the trainer waits {one.waiting_first:.0%} first, {one.waiting_all:.0%} in all"
        lines.append(f"  window {one.window:.2f} s, rollout {one.rollout:.2f}, train {one.train:.2f}; {waits}")
    return "\n".join([*lines, *(f"  {words}" for _, words in cell["frontiers"])])
