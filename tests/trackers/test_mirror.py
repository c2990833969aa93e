"""A mirror sends every row of metrics.jsonl once and in order, whatever its service does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.ports.data import Tracker
from paceline.trackers.jsonl import JsonlTracker
from paceline.trackers.link import GIVEN_UP
from paceline.trackers.mirror import Mirror
from paceline.trackers.names import named

Sent = list[tuple[str, int, Mapping[str, Any]]]
SOON = (0.01, 0.02)


class Service:
    """A service that refuses a step which is not above the last of its axis and lineage, and may fail otherwise."""

    def __init__(self) -> None:
        self.rows: Sent = []
        self.runs: list[str] = []
        self.fails: Callable[[str, int], Exception | None] = lambda axis, step: None
        self.closed = 0

    def open(self, run: str) -> Tracker:
        self.runs.append(run)
        return self

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        error = self.fails(axis, step)
        if error is not None:
            raise error
        key = f"{axis}/lineage"
        last = max((s for a, s, v in self.rows if a == axis and v[key] == values[key]), default=-1)
        if step <= last:
            raise ValueError(f"step {step} after step {last}")
        self.rows.append((axis, step, values))

    def close(self) -> None:
        self.closed += 1


class Run:
    """A run's record and one mirror; a new one over the same directory is the resumed run."""

    def __init__(self, root: Path, service: Service, **options: Any) -> None:
        self.said: list[str] = []
        self.record = JsonlTracker(root / "metrics.jsonl")
        self.mirror = Mirror("service", root / "metrics.jsonl", service.open, root, self.said.append, **{"retry_s": SOON, **options})

    def log(self, *rows: tuple[str, int]) -> None:
        for axis, step in rows:
            self.record.log(axis, step, {"x": step / 2})
            self.mirror.log(axis, step, {"x": step / 2})

    def close(self) -> None:
        self.record.close()
        self.mirror.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def test_rows_arrive_once_in_order_with_step_and_lineage(tmp_path: Path) -> None:
    GIVEN_UP.clear()
    service = Service()
    run = Run(tmp_path, service)
    run.log(("update", 203), ("eval", 200), ("update", 204))
    run.close()
    assert service.rows == [
        ("update", 203, {"update/step": 203, "update/lineage": 1, "update/x": 101.5}),
        ("eval", 200, {"eval/step": 200, "eval/lineage": 1, "eval/x": 100}),
        ("update", 204, {"update/step": 204, "update/lineage": 1, "update/x": 102}),
    ]
    assert (service.closed, run.said) == (1, [])
    assert not GIVEN_UP.is_set()


def test_as_many_rows_are_accepted_as_were_sent_however_the_axes_interleave(tmp_path: Path) -> None:
    """Case D07: evaluations and rollouts are ahead of the updates, and a resume repeats some."""
    service = Service()
    for rows in (
        [("eval", 249), ("update", 202), ("rollout", 249), ("update", 203)],
        [("update", 201), ("eval", 200), ("update", 202), ("update", 203)],
    ):
        run = Run(tmp_path, service)
        run.log(*rows)
        run.close()
        assert run.said == []
    assert len(service.rows) == 8
    assert len({(axis, step, values[f"{axis}/lineage"]) for axis, step, values in service.rows}) == 8


def test_an_unreachable_service_is_said_once_and_gets_everything_when_it_is_back(tmp_path: Path) -> None:
    service, down = Service(), threading.Event()
    service.fails = lambda axis, step: OSError("no route to host") if down.is_set() else None
    run = Run(tmp_path, service)
    down.set()
    run.log(*(("update", step) for step in range(1, 6)))
    time.sleep(0.1)
    run.log(("update", 6))
    down.clear()
    run.log(("update", 7))
    until(lambda: len(service.rows) == 7)
    run.close()
    assert [step for _, step, _ in service.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert run.said == [f"service: OSError: no route to host; its rows are kept in {tmp_path / 'metrics.jsonl'}, the run goes on"]


def test_what_was_not_sent_is_counted_and_a_resume_sends_it_to_the_same_run(tmp_path: Path) -> None:
    service = Service()
    service.fails = lambda axis, step: ConnectionError("gone") if step > 2 else None
    run = Run(tmp_path, service, close_s=5.0)
    run.log(*(("update", step) for step in range(1, 6)))
    run.close()
    assert run.said[1:] == [f"service: 3 rows are not sent; they are in {tmp_path / 'metrics.jsonl'}, and a resume sends them"]
    service.fails = lambda axis, step: None
    again = Run(tmp_path, service)
    again.log(("update", 4), ("update", 5))
    again.close()
    assert [(step, values["update/lineage"]) for _, step, values in service.rows] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (4, 2),
        (5, 2),
    ]
    assert len(set(service.runs)) == 1
    assert again.said == []


def test_what_is_empty_at_every_opening_gets_all_rows_of_all_lineages_each_time(tmp_path: Path) -> None:
    service = Service()
    for steps in ((1, 2), (2, 3)):
        run = Run(tmp_path, service, afresh=True)
        run.log(*(("update", step) for step in steps))
        run.close()
        sent, service.rows = [(step, values["update/lineage"]) for _, step, values in service.rows], []
    assert sent == [(1, 1), (2, 1), (2, 2), (3, 2)]
    assert len(set(service.runs)) == 1, "under one id"


def test_a_service_that_cannot_be_opened_never_ends_the_run(tmp_path: Path) -> None:
    def _open(run: str) -> Tracker:
        raise RuntimeError("no API key")

    service = Service()
    service.open = _open  # type: ignore[method-assign]
    run = Run(tmp_path, service)
    run.log(("update", 1))
    run.close()
    assert run.said[0].startswith("service: RuntimeError: no API key")
    assert run.said[1].startswith("service: 1 rows are not sent")


def test_a_row_that_the_service_never_takes_is_counted_and_those_behind_it_are_sent(tmp_path: Path) -> None:
    service = Service()
    service.fails = lambda axis, step: ValueError("bad name") if step == 2 else None
    run = Run(tmp_path, service)
    run.log(("update", 1), ("update", 2), ("update", 3))
    run.close()
    assert [step for _, step, _ in service.rows] == [1, 3]
    assert run.said[0].startswith("service: ValueError: bad name")
    assert run.said[1].startswith("service: 1 rows were refused since the start of the run")


def test_a_row_is_sent_once_although_its_position_cannot_be_kept(tmp_path: Path) -> None:
    """As on a disk that is full for a while."""
    service, keep = Service(), tmp_path / "service.json"
    run = Run(tmp_path, service)

    def _block(axis: str, step: int) -> None:
        if step == 2 and keep.is_file():
            keep.unlink()
            keep.mkdir()

    service.fails = _block
    run.log(*(("update", step) for step in range(1, 5)))
    until(lambda: len(service.rows) == 4)
    keep.rmdir()
    run.log(("update", 5))
    run.close()
    assert [step for _, step, _ in service.rows] == [1, 2, 3, 4, 5]
    assert "service.json" in run.said[0]
    assert json.loads(keep.read_text())["sent"] == (tmp_path / "metrics.jsonl").stat().st_size


def test_a_service_that_hangs_delays_the_run_by_no_more_than_its_deadline(tmp_path: Path) -> None:
    service, release = Service(), threading.Event()

    def _hang(axis: str, step: int) -> None:
        release.wait(60)

    service.fails = _hang
    GIVEN_UP.clear()
    run = Run(tmp_path, service, close_s=0.05)
    run.log(*(("update", step) for step in range(1, 4)))
    run.close()
    assert GIVEN_UP.is_set(), "so that the process does not wait for it at its exit either"
    assert run.said == [f"service: 3 rows are not sent; they are in {tmp_path / 'metrics.jsonl'}, and a resume sends them"]
    release.set()


def test_a_mirror_that_was_given_up_sends_nothing_behind_the_one_of_the_next_life(tmp_path: Path) -> None:
    """A lost trainer begins another life in the same process, whatever still hangs of the one before."""
    service, release, hung = Service(), threading.Event(), threading.Event()

    def _hang(axis: str, step: int) -> None:
        if threading.current_thread() is run.mirror._thread and step == 2:
            hung.set()
            release.wait(60)

    service.fails = _hang
    run = Run(tmp_path, service, close_s=0.05)
    run.log(*(("update", step) for step in range(1, 6)))
    assert hung.wait(20)
    run.close()
    again = Run(tmp_path, service)
    again.log(("update", 6))
    until(lambda: len(service.rows) == 6)
    release.set()
    run.mirror._thread.join(20)
    again.close()
    assert [step for _, step, _ in service.rows] == [1, 2, 3, 4, 5, 6]
    position = json.loads((tmp_path / "service.json").read_text())
    assert (position["sent"], position["refused"]) == ((tmp_path / "metrics.jsonl").stat().st_size, 0)


def test_a_killed_run_loses_no_row_and_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    """What the kill leaves: rows in the file, the position somewhere before their end, half a line."""
    service = Service()
    run = Run(tmp_path, service)
    run.log(("update", 1), ("update", 2))
    run.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"axis": "update", "step": 3, "lineage": 1, "x": 1.5}\n{"axis": "update", "st')
    again = Run(tmp_path, service)
    again.log(("update", 3))
    again.close()
    assert [(step, values["update/lineage"]) for _, step, values in service.rows] == [(1, 1), (2, 1), (3, 1), (3, 2)]


def test_a_position_beyond_the_file_means_another_file(tmp_path: Path) -> None:
    service = Service()
    (tmp_path / "service.json").write_text(json.dumps({"run": "r", "sent": 10_000}))
    run = Run(tmp_path, service)
    run.log(("update", 1))
    run.close()
    assert [step for _, step, _ in service.rows] == [1]
    assert service.runs == ["r"]


def test_numbers_that_json_lacks_arrive_as_numbers_and_texts_stay_in_the_file(tmp_path: Path) -> None:
    service = Service()
    run = Run(tmp_path, service)
    run.record.log("update", 1, {"up": float("inf"), "name": "Inf", "many": [1, 2]})
    run.mirror.log("update", 1, {})
    run.close()
    ((_, _, values),) = service.rows
    assert values == {"update/step": 1, "update/lineage": 1, "update/up": float("inf")}


# --- names

ROW = {"reward": 0.5, "loss": 0.1, "clip_ratio/region_mean": 0.2, "staleness/max": 1.0, "update/groups": 8.0, "rewards/math/mean": 0.5}


@pytest.mark.parametrize(
    ("conventions", "expected"),
    [
        (("paceline",), {"update/reward", "update/loss", "update/clip_ratio/region_mean", "update/staleness/max", "update/groups", "update/rewards/math/mean"}),
        (
            ("trl",),
            {"train/global_step", "train/reward", "train/loss", "train/clip_ratio/region_mean", "update/staleness/max", "update/groups", "train/rewards/math/mean"},
        ),
        (
            ("verl",),
            {"training/global_step", "critic/score/mean", "critic/rewards/mean", "update/loss", "actor/pg_clipfrac", "update/staleness/max", "update/groups", "update/rewards/math/mean"},
        ),
    ],
)  # fmt: skip
def test_metrics_take_the_names_of_the_convention_and_none_is_left_out(conventions: tuple[str, ...], expected: set[str]) -> None:
    assert set(named("update", 7, ROW, conventions)) == expected | {"update/step"}


def test_several_conventions_give_every_metric_under_each_of_its_names() -> None:
    row = named("update", 7, ROW, ("paceline", "verl"))
    assert row["update/reward"] == row["critic/rewards/mean"] == 0.5
    assert row["training/global_step"] == row["update/step"] == 7


def test_other_axes_keep_their_names_below_their_axis() -> None:
    assert named("publish", 3, {"reward": 1.0}, ("trl", "verl")) == {"publish/step": 3, "publish/reward": 1.0}
    assert named("eval", 3, {"eval/greedy": 1.0}, ("trl",)) == {"eval/step": 3, "eval/greedy": 1.0}
