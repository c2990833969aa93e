"""What every Tracker must do, fake and real alike; those of services through the mirror that feeds them, read back from the service."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from paceline.ports.data import Tracker
from paceline.ports.fakes.data import MemoryTracker
from paceline.trackers.jsonl import JsonlTracker, read
from paceline.trackers.link import Link
from paceline.trackers.mirror import Mirror
from paceline.types.errors import DataError

Kept = list[tuple[str, int, float]]
SERVICES = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "trackio": ("trackio",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


class Both:
    """The record and its mirror, as a run has them."""

    def __init__(self, record: JsonlTracker, mirror: Mirror) -> None:
        self.parts = (record, mirror)

    def log(self, axis: str, step: int, values: dict[str, Any]) -> None:
        for part in self.parts:
            part.log(axis, step, values)

    def close(self) -> None:
        for part in self.parts:
            part.close()


@dataclass
class Place:
    """One run's trackers of one kind in a directory; `open` makes the next lineage's, `kept` reads what is there."""

    open: Callable[[], Tracker]
    kept: Callable[[], Kept]
    said: list[str]
    in_order: bool = True
    """Whether the order among axes can be read back."""
    pause_s: float = 0.0
    """What must lie between two lineages of one process: TensorBoard orders files by the second, then by a number as text."""
    voids: bool = False
    """Whether steps that a later lineage repeats take the place of the earlier ones."""


@pytest.fixture(params=["memory", "jsonl", *SERVICES])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    kind: str = request.param
    if kind == "memory":
        fakes: list[MemoryTracker] = []

        def _another() -> Tracker:
            fakes.append(MemoryTracker())
            return fakes[-1]

        yield Place(_another, lambda: [(axis, step, values["x"]) for fake in fakes for axis, step, values in fake.rows], [])
        return
    metrics = tmp_path / "m.jsonl"
    if kind == "jsonl":
        yield Place(lambda: JsonlTracker(metrics), lambda: [(row["axis"], row["step"], row["x"]) for row in read(metrics)], [], voids=True)
        return
    missing = [name for name in SERVICES[kind] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    module = importlib.import_module(f"paceline.trackers.{kind}")
    said: list[str] = []
    tensorboard = kind == "tensorboard"
    run = uuid.uuid5(uuid.NAMESPACE_URL, str(tmp_path)).hex

    def _open() -> Tracker:
        link = Link(run, "tests", "contract", tmp_path / kind, {"run": {"seed": 1}}, offline=True)
        link.directory.mkdir(exist_ok=True)
        mirror = Mirror(kind, metrics, lambda _: module.open_tracker(link), tmp_path, said.append, afresh=kind == "wandb")
        return Both(JsonlTracker(metrics), mirror)

    yield Place(_open, lambda: READERS[kind](tmp_path / kind, run), said, kind in ("wandb", "trackio"), 1.0 * tensorboard, tensorboard)


def _sorted(rows: Kept, in_order: bool) -> Kept:
    """As they came, or by axis where a service keeps axes apart."""
    return rows if in_order else sorted(rows, key=lambda row: row[0])


def test_everything_sent_is_kept_in_order_whatever_the_steps_of_other_axes(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    sent = [("update", 1, 0.5), ("rollout", 249, 1.0), ("update", 203, 0.25), ("eval", 200, 0.75), ("update", 204, 0.0)]
    tracker = place.open()
    for axis, step, value in sent:
        tracker.log(axis, step, {"x": value})
    tracker.close()
    tracker.close()
    assert place.said == []
    assert capfd.readouterr().out == "", "standard output is a line per update, and nothing else"
    assert place.kept() == _sorted(sent, place.in_order)


def test_a_resumed_run_is_continued_where_it_was(place: Place) -> None:
    first = [("update", 1, 0.5), ("eval", 1, 1.0), ("update", 2, 0.25)]
    then = [("update", 3, 0.125), ("eval", 3, 2.0)]
    for rows in (first, then):
        tracker = place.open()
        for axis, step, value in rows:
            tracker.log(axis, step, {"x": value})
        tracker.close()
    assert place.said == []
    assert place.kept() == _sorted(first + then, place.in_order)


def test_what_a_resumed_run_logs_again_comes_after_what_it_voids_and_nothing_else_is_lost(place: Place) -> None:
    first = [("update", 1, 0.5), ("update", 2, 0.25), ("eval", 2, 1.0), ("update", 3, 0.75)]
    then = [("update", 2, 0.125), ("eval", 2, 2.0), ("update", 3, 0.375), ("update", 4, 0.625)]
    for rows in (first, then):
        tracker = place.open()
        for axis, step, value in rows:
            tracker.log(axis, step, {"x": value})
        tracker.close()
        time.sleep(place.pause_s)
    assert place.said == []
    assert place.kept() == _sorted([*(first[:1] if place.voids else first), *then], place.in_order)


@pytest.mark.parametrize("make", [MemoryTracker, lambda: JsonlTracker("m.jsonl")])
def test_axes_count_for_themselves_but_a_step_back_on_one_is_refused(
    make: Callable[[], Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = make()
    sink.log("update", 5, {"x": 1.0})
    sink.log("eval", 3, {"x": 1.0})
    for step in (5, 4):
        with pytest.raises(DataError, match=f"'update': step {step} after step 5"):
            sink.log("update", step, {"x": 1.0})


def test_a_row_that_mlflow_refuses_for_good_holds_no_later_one_back(tmp_path: Path) -> None:
    """Its error is no ValueError of its own, and would be tried again for ever."""
    missing = [name for name in SERVICES["mlflow"] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    open_tracker, said = importlib.import_module("paceline.trackers.mlflow").open_tracker, list[str]()
    link = Link("r", "tests", "contract", tmp_path, {})
    record = JsonlTracker(tmp_path / "m.jsonl")
    both = Both(record, Mirror("mlflow", tmp_path / "m.jsonl", lambda _: open_tracker(link), tmp_path, said.append))
    both.log("update", 1, {"x" * 300: 1.0})
    both.log("update", 2, {"x": 2.0})
    both.close()
    assert _mlflow(tmp_path, "r") == [("update", 2, 2.0)]
    assert any("1 rows were refused" in line for line in said)


def test_a_process_killed_while_mlflow_makes_its_database_leaves_none_that_is_half_made(tmp_path: Path) -> None:
    missing = [name for name in SERVICES["mlflow"] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    program = f"""
from pathlib import Path
from paceline.trackers.link import Link
from paceline.trackers.mlflow import open_tracker
open_tracker(Link("r", "tests", "contract", Path({str(tmp_path)!r}), {{}}))
"""
    making = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=DEVNULL)
    until = time.monotonic() + 60
    while not any(file.stat().st_size > 0 for file in tmp_path.iterdir()):
        assert making.poll() is None, "it is killed while it works"
        assert time.monotonic() < until
        time.sleep(0.002)
    making.kill()
    making.wait()
    assert not (tmp_path / "mlflow.db").exists()
    tracker = importlib.import_module("paceline.trackers.mlflow").open_tracker(Link("r", "tests", "contract", tmp_path, {}))
    tracker.log("update", 1, {"update/x": 1.0})
    tracker.close()
    assert _mlflow(tmp_path, "r") == [("update", 1, 1.0)]


# --- what the services have


def _tensorboard(directory: Path, run: str) -> Kept:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = []
    for axis in sorted(path.name for path in directory.iterdir()):
        events = EventAccumulator(str(directory / axis)).Reload()
        kept += [(axis, event.step, event.value) for event in events.Scalars(f"{axis}/x")]
    return kept


def _wandb(directory: Path, run: str) -> Kept:
    """What the newest file holds: uploaded after older ones, it takes their place."""
    from wandb.proto.wandb_internal_pb2 import Record

    path = max(directory.glob(f"wandb/offline-run-*/run-{run}.wandb"), key=lambda path: path.stat().st_mtime_ns)
    records: list[Any] = []
    for _ in range(500):  # W&B's own process ends the file a moment after `finish` returned
        records = [Record.FromString(data) for data in _chunks(path.read_bytes())]
        if records and records[-1].HasField("exit"):
            break
        time.sleep(0.02)
    rows = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item} for record in records]
    return [kept for row in rows for kept in _from_history(row)]


def _chunks(content: bytes) -> Iterator[bytes]:
    """The records of W&B's offline file, a LevelDB log: after seven bytes of its own, blocks of 32 KiB of (crc, length, type, data)."""
    whole, place = b"", 7
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def _trackio(directory: Path, run: str) -> Kept:
    from trackio.sqlite_storage import SQLiteStorage

    return [row for logs in SQLiteStorage.get_logs("tests", f"contract-{run[:8]}") for row in _from_history(logs)]


def _mlflow(directory: Path, run: str) -> Kept:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tests")
    (found,) = client.search_runs([experiment.experiment_id])
    names = sorted(name for name in found.data.metrics if name.endswith("/x"))
    return [(name.removesuffix("/x"), m.step, m.value) for name in names for m in client.get_metric_history(found.info.run_id, name)]


def _from_history(row: dict[str, Any]) -> Kept:
    return [
        (name.removesuffix("/x"), int(row[name.removesuffix("x") + "step"]), value) for name, value in row.items() if name.endswith("/x")
    ]


READERS = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow}
