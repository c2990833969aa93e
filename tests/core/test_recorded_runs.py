"""Recorded real runs, replayed: their events give their commands, and the rules hold.

Written by benchmarks/recordings.py (every schedule, a tiny model) and benchmarks/replay.py --keep (the quickstart, serial).
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.codec import decode
from paceline.core.events import Migrated
from paceline.core.replay import audit, difference, replay
from paceline.core.schedule import Resume, Schedule

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl.gz"))


def read(path: Path) -> tuple[Schedule, Resume, list[tuple[str, float, Any]]]:
    """(schedule, resume, [(direction, now, record)]) of a recorded lineage."""
    head, *lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    deadlines = tuple((kind, seconds) for kind, seconds in head["schedule"].pop("deadlines"))
    resume = Resume(**{**head["resume"], "pending": tuple(head["resume"]["pending"])})
    return Schedule(**head["schedule"], deadlines=deadlines), resume, [(x["direction"], x["now"], decode(x["record"])) for x in lines]


def test_runs_of_every_schedule_are_recorded_and_trajectories_moved_in_one() -> None:
    runs = [read(path) for path in RECORDED]
    assert {(schedule.preset, schedule.at_publish if schedule.preset == "streaming" else "") for schedule, _, _ in runs} == {
        ("serial", ""),
        ("pipelined", ""),
        ("streaming", "keep"),
        ("streaming", "recompute"),
        ("streaming", "drain"),
        ("multiversion", ""),
    }
    assert any(isinstance(record, Migrated) and record.moved for _, _, records in runs for _, _, record in records)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_run_gives_its_commands_again_and_breaks_no_rule(path: Path) -> None:
    schedule, resume, records = read(path)
    events = [(now, record) for direction, now, record in records if direction == "event"]
    commands = [record for direction, _, record in records if direction == "command"]
    assert len(commands) > 100
    assert difference(commands, replay(schedule, resume, events)) is None
    assert audit(schedule, resume, [(now, record) for _, now, record in records]) == []
