"""metrics.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.trackers.jsonl import JsonlTracker, read
from paceline.types.errors import DataError


def run(path: Path, *steps: tuple[str, int], value: float = 0.0) -> JsonlTracker:
    tracker = JsonlTracker(path)
    for axis, step in steps:
        tracker.log(axis, step, {"x": value})
    tracker.close()
    return tracker


def test_a_line_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log("update", 1, {"reward": 0.5})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"axis": "update", "step": 1, "lineage": 1, "reward": 0.5}


def test_numpy_values_become_plain_and_non_finite_ones_strings(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    values: dict[str, Any] = {
        "f": np.float32(0.5),
        "i": np.int64(3),
        "b": np.bool_(True),
        "a": np.array([1.0, np.nan]),
        "nan": float("nan"),
        "up": np.float64("inf"),
        "down": -math.inf,
        "none": None,
        "nested": {"p": {1: np.int32(2)}, "q": (1, "x")},
    }
    tracker.log("update", np.int64(1), values)  # type: ignore[arg-type]
    (row,) = read(tmp_path / "m.jsonl")
    assert row | {"axis": 0, "step": 0, "lineage": 0} == {
        "axis": 0, "step": 0, "lineage": 0, "f": 0.5, "i": 3, "b": True, "a": [1.0, "NaN"], "nan": "NaN", "up": "Infinity", "down": "-Infinity",
        "none": None, "nested": {"p": {"1": 2}, "q": [1, "x"]},
    }  # fmt: skip
    assert math.isnan(float(row["nan"]))
    assert float(row["down"]) == -math.inf


@pytest.mark.parametrize(
    ("values", "message"),
    [({"step": 1}, "'step' is a name of the line"), ({"x": object()}, "'x': object has no place"), ({"x": {"y": {1}}}, "'x/y': set has")],
)
def test_a_value_without_a_place_is_refused_and_nothing_is_written(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    with pytest.raises(DataError, match=message):
        tracker.log("update", 1, values)
    tracker.log("update", 1, {"x": 1})
    assert len(read(tmp_path / "m.jsonl")) == 1


def test_a_resumed_run_marks_its_lines_and_voids_those_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    run(path, *[("update", s) for s in range(199, 204)], ("eval", 200))
    resumed = run(path, ("update", 201), ("update", 202), value=1.0)
    assert resumed.lineage == 2
    rows = read(path)
    assert [(r["axis"], r["step"], r["lineage"]) for r in rows] == [
        ("update", 199, 1),
        ("update", 200, 1),
        ("eval", 200, 1),
        ("update", 201, 2),
        ("update", 202, 2),
    ]
    assert len(path.read_text().splitlines()) == 8


def test_lineages_are_those_of_the_run_where_it_says_them_and_never_go_back(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for lineage in (1, 4):  # the lineages between ended before they wrote a line
        JsonlTracker(path, lineage).log("update", 1, {"x": 0})
    assert [row["lineage"] for row in read(path)] == [4]
    with pytest.raises(DataError, match="lineage 4 after lineage 4"):
        JsonlTracker(path, 4)


def test_an_opened_file_knows_the_last_step_of_every_axis(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    run(path, ("update", 1), ("update", 7), ("eval", 5))
    assert JsonlTracker(path).last == {"update": 7, "eval": 5}
    run(path, ("update", 3))
    assert JsonlTracker(path).last == {"update": 3, "eval": 5}


def test_a_line_cut_short_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    run(path, ("update", 1), ("update", 2))
    path.write_bytes(path.read_bytes()[:-9])
    run(path, ("update", 2), ("update", 3))
    assert [(r["step"], r["lineage"]) for r in read(path)] == [(1, 1), (2, 2), (3, 2)]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"loss": 1}\n')
    with pytest.raises(DataError, match=r"m.jsonl line 1: not a line of metrics"):
        JsonlTracker(path)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=5))
def test_after_any_resumes_each_step_has_one_line_and_steps_ascend(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    truth: dict[int, int] = {}
    for lineage, (first, count) in enumerate(runs, start=1):
        run(path, *[("update", s) for s in range(first, first + count)])
        truth = {s: owner for s, owner in truth.items() if s < first} | dict.fromkeys(range(first, first + count), lineage)
    assert [(r["step"], r["lineage"]) for r in read(path)] == sorted(truth.items())
