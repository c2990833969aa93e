"""What every Tracker must do, fake and real alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.ports.data import Tracker
from paceline.ports.fakes.data import MemoryTracker
from paceline.trackers.jsonl import JsonlTracker, read
from paceline.types.errors import DataError

Rows = Callable[[], list[tuple[str, int, float]]]


@pytest.fixture(params=["memory", "jsonl"])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tracker, Rows]:
    if request.param == "memory":
        fake = MemoryTracker()
        return fake, lambda: [(axis, step, values["x"]) for axis, step, values in fake.rows]
    return JsonlTracker(tmp_path / "m.jsonl"), lambda: [(row["axis"], row["step"], row["x"]) for row in read(tmp_path / "m.jsonl")]


def test_everything_sent_is_kept_in_order(tracker: tuple[Tracker, Rows]) -> None:
    sink, rows = tracker
    sent = [("update", 1, 0.5), ("rollout", 249, 1.0), ("update", 203, 0.25), ("eval", 200, 0.75), ("update", 204, 0.0)]
    for axis, step, value in sent:
        sink.log(axis, step, {"x": value})
    assert rows() == sent


def test_axes_count_for_themselves_but_a_step_back_on_one_is_refused(tracker: tuple[Tracker, Rows]) -> None:
    sink, rows = tracker
    sink.log("update", 5, {"x": 1.0})
    sink.log("eval", 3, {"x": 1.0})
    for step in (5, 4):
        with pytest.raises(DataError, match=f"'update': step {step} after step 5"):
            sink.log("update", step, {"x": 1.0})
    assert len(rows()) == 2


def test_closing_twice_is_harmless(tracker: tuple[Tracker, Rows]) -> None:
    sink, rows = tracker
    sink.log("update", 1, {"x": 1.0})
    sink.close()
    sink.close()
    assert rows() == [("update", 1, 1.0)]
