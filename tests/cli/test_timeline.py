"""`paceline timeline` on run directories: what is written where, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
from tests.core.hand import schedule
from typer.testing import CliRunner, Result

from paceline.cli.main import app
from paceline.core.events import Event
from paceline.core.schedule import Resume
from paceline.runtime.ledger import Ledger
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, World


def record(root: Path, *, lineages: int = 1, updates: int = 3, first: float = 0.0) -> Path:
    """A run directory with a ledger of simulated lineages, each of one update more than the one before; the first record is made at `first`."""
    root.mkdir()
    ledger = Ledger(root / "ledger.sqlite")
    for number in range(lineages):
        chosen = schedule("pipelined", u=2, r=4, group_size=2, total_updates=updates + number)
        ledger.open_lineage(chosen, Resume(), number or None, "2026-01-01T00:00:00+00:00")
        for now, value in simulate(chosen, World((FakeInstance("rollout-0"),))).records:
            ledger.append("event" if isinstance(value, get_args(Event)) else "command", first + now, value)
        ledger.commit()
    ledger.close()
    return root


def paceline(*words: Any) -> Result:
    return CliRunner().invoke(app, ["timeline", *map(str, words)])


def events(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return list(json.loads(text)["traceEvents"])


def test_a_trace_is_written_into_the_run_directory_and_the_time_summed_up(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    result = paceline(run)
    assert result.exit_code == 0, result.output
    assert {f"train {update}" for update in (1, 2, 3)} <= {event["name"] for event in events(run / "timeline.json")}
    lines = result.output.splitlines()
    assert lines[0].startswith("run: pipelined, lineage 1 of 1, 3 updates in ")
    assert lines[1].startswith("trainer: train ")
    assert "; waits: rollout " in lines[1]
    assert lines[2].startswith("rollout slots: ")
    assert lines[3] == "groups by staleness in versions: 6 x 0"
    assert lines[4] == f"timeline: {run / 'timeline.json'} (open it in ui.perfetto.dev)"


@pytest.mark.parametrize("words", [("--format", "svg"), ("--output", "{}/run/timeline.svg")])
def test_a_picture_is_drawn_when_asked_for_by_format_or_by_name(tmp_path: Path, words: tuple[str, str]) -> None:
    run = record(tmp_path / "run")
    assert paceline(run, *(word.format(tmp_path) for word in words)).exit_code == 0
    ElementTree.fromstring((run / "timeline.svg").read_text())
    assert not (run / "timeline.json").exists()


def test_a_trace_is_compressed_if_its_name_says_so(tmp_path: Path) -> None:
    assert paceline(record(tmp_path / "run"), "-o", tmp_path / "t.json.gz").exit_code == 0
    assert len(events(tmp_path / "t.json.gz")) > 20


def test_of_a_resumed_run_the_last_lineage_is_drawn_or_the_one_asked_for(tmp_path: Path) -> None:
    run = record(tmp_path / "run", lineages=2)
    assert "lineage 2 of 2, 4 updates" in paceline(run).output
    assert "lineage 1 of 2, 3 updates" in paceline(run, "--lineage", 1).output
    refused = paceline(run, "--lineage", 5)
    assert (refused.exit_code, refused.stderr) == (2, f"error: --lineage 5: {run}/ledger.sqlite holds 1, 2\n")


def test_a_lineage_that_decided_nothing_is_passed_over(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        ledger.open_lineage(schedule("serial"), Resume(), 1, "now")
    assert "lineage 1 of 2" in paceline(run).output


def test_a_part_of_the_run_is_drawn_alone(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    whole = paceline(run)
    assert whole.exit_code == 0
    everything = len(events(run / "timeline.json"))
    assert paceline(run, "--from", 1, "--to", 2).exit_code == 0
    part = events(run / "timeline.json")
    assert 10 < len(part) < everything
    groups = [event for event in part if event["name"].startswith("group ") and event["ph"] == "X"]
    counters = [event for event in part if event["ph"] == "C" and event["name"] == "groups"]
    assert groups
    assert min(event["ts"] for event in counters) == 1e6, "the level that holds when the part begins"
    assert all(event["ts"] <= 2e6 and event["ts"] + event["dur"] >= 1e6 for event in groups)


def test_a_picture_of_a_part_says_so(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    assert paceline(run, "--from", 1, "--to", 2, "--format", "svg").exit_code == 0
    assert "; shown: 1 to 2 s" in (run / "timeline.svg").read_text()


def test_time_begins_with_the_first_record_however_long_the_workers_took_to_start(tmp_path: Path) -> None:
    early, late = record(tmp_path / "early"), record(tmp_path / "late", first=37.3)
    for run in (early, late):
        assert paceline(run, "--format", "svg").exit_code == 0
        assert paceline(run).exit_code == 0
    ticks = [re.findall(r">([\d.]+) s<", (run / "timeline.svg").read_text()) for run in (early, late)]
    assert ticks[0] == ticks[1]
    assert ticks[0][0] == "0"
    times = [[event["ts"] for event in events(run / "timeline.json") if "ts" in event] for run in (early, late)]
    assert times[1] == pytest.approx(times[0], abs=1)


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    refused = paceline(tmp_path)
    assert (refused.exit_code, refused.stderr) == (2, f"error: {tmp_path}: is no run directory, it holds no ledger.sqlite\n")


def test_a_place_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    refused = paceline(record(tmp_path / "run"), "-o", tmp_path / "no" / "t.json")
    assert refused.exit_code == 2
    assert f"there is no directory {tmp_path / 'no'}" in refused.stderr


def test_an_empty_ledger_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    refused = paceline(tmp_path)
    assert refused.exit_code == 2
    assert "is empty: the run ended, or is, before its first decision" in refused.stderr


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    for words in (("--from", 2, "--to", 1), ("--from", 1, "--to", 1)):
        refused = paceline(run, *words)
        assert refused.exit_code == 2
        assert "nothing lies between them" in refused.stderr


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("no database, but long enough to be looked at as one\n" * 100)
    failed = paceline(tmp_path)
    assert failed.exit_code == 1
    assert f"{tmp_path}/ledger.sqlite: file is not a database" in failed.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE records SET json = replace(json, '\"v\":1', '\"v\":0') WHERE sequence = 5", "row 5: record of schema 0"),
        (
            "UPDATE lineage SET schedule = replace(schedule, '\"refill\"', '\"refills\"')",
            "a schedule that this version of paceline does not",
        ),
        ("UPDATE lineage SET resume = '{}'", "a schedule that this version of paceline does not know"),
    ],
)
def test_a_ledger_of_another_version_is_refused_and_no_half_file_is_left(tmp_path: Path, change: str, message: str) -> None:
    run = record(tmp_path / "run")
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database, database:
        database.execute(change)
    failed = paceline(run)
    assert failed.exit_code == 1
    assert message in failed.stderr
    assert sorted(path.name for path in run.iterdir() if "timeline" in path.name) == []


def test_drawing_loads_nothing_heavy(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    code = (
        "import sys\nfrom paceline.cli.main import app\n"
        f"app(['timeline', {str(run)!r}], standalone_mode=False)\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'paceline.cli.wire') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
