"""Run directories for the tests of page and doctor: simulated ones, and recorded ones of real runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

from tests.core.hand import schedule
from tests.core.test_recorded_runs import read

from paceline.core.events import Event
from paceline.core.schedule import Resume, Schedule
from paceline.runtime.ledger import Ledger
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, World

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

STARTED = "2026-01-01T00:00:00+00:00"


def keep(root: Path, chosen: Schedule, resume: Resume, records: list[tuple[float, Any]], parent: int | None = None) -> Path:
    """A lineage in the run directory's ledger."""
    root.mkdir(exist_ok=True)
    ledger = Ledger(root / "ledger.sqlite")
    ledger.open_lineage(chosen, resume, parent, STARTED)
    for now, value in records:
        ledger.append("event" if isinstance(value, get_args(Event)) else "command", now, value)
    ledger.close()
    return root


def recorded(root: Path, path: Path) -> Path:
    """A real run's ledger."""
    chosen, resume, records = read(path)
    return keep(root, chosen, resume, [(now, value) for _, now, value in records])


def plan(**changes: Any) -> Schedule:
    """Pipelined, four groups of two per round, six updates."""
    return schedule("pipelined", **{"u": 2, "r": 4, "group_size": 2, "total_updates": 6, "checkpoint_every": 2, "attempts": 3, **changes})


def simulated(root: Path, met: World | None = None, **changes: Any) -> Path:
    """A whole run."""
    chosen = plan(**changes)
    return keep(root, chosen, Resume(), simulate(chosen, met or World((FakeInstance("rollout-0"),))).records)


def cut(root: Path, until: Any, **changes: Any) -> Path:
    """A run whose records end just before the first that `until` holds for."""
    chosen, records = plan(**changes), list[tuple[float, Any]]()
    for now, value in simulate(chosen, World((FakeInstance("rollout-0"),))).records:
        if until(value):
            break
        records.append((now, value))
    return keep(root, chosen, Resume(), records)
