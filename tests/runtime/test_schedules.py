"""Every schedule on real parts with fake engines and trainer: what holds for all, and what each promises."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from runtime_builders import SCHEDULES, scheduled
from runtime_runs import Run

from paceline.core.commands import Abort, Dispatch, LoadWeights
from paceline.runtime.audit import audit

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def trajectories(run: Run) -> list[dict[str, Any]]:
    """Rows of all segments, in order of group and sample."""
    found = [row for file in sorted(run.rundir.trajectories.iterdir()) for row in pq.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: (row["group"], row["sample"]))


def clean(run: Run) -> bool:
    """Whether the audit finds nothing in a run's ledger, which has its end."""
    report = audit(run.rundir.ledger)
    assert (report.violations, report.notes) == ((), ())
    return True


@every_schedule
async def test_a_run_trains_whole_groups_once_and_its_ledger_replays(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=8))
    assert (await run.go()).ok
    assert clean(run)
    assert [row["update/groups"] for row in run.rows()] == [2] * 8
    trained = run.trained()
    assert len(set(trained)) == len(trained) == 16
    assert [(row["group"], row["sample"]) for row in trajectories(run)] == [(g, s) for g in sorted(trained) for s in range(2)]
    assert run.records(Abort) == [], "a publish costs no request"


@pytest.mark.parametrize("name", ["streaming-keep", "streaming-recompute"])
async def test_streaming_records_the_version_of_every_token_and_trains_within_its_bound(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=12), max_tokens=64)
    await run.go()
    assert clean(run)
    assert {command.unfinished for command in run.records(LoadWeights) if command.replaces is not None} >= {name.removeprefix("streaming-")}
    versions = [row["version"] for row in trajectories(run)]
    assert any(len(set(tokens)) > 1 for tokens in versions), "some trajectory goes on under new weights"
    assert all(tokens == sorted(tokens) for tokens in versions)
    assert max(value for command in run.records(Dispatch) for value in command.staleness) == 1


async def test_draining_lets_no_trajectory_see_two_versions(tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled("streaming-drain", total_updates=12), max_tokens=64)
    await run.go()
    assert all(len(set(row["version"])) == 1 for row in trajectories(run))
    assert clean(run)


@pytest.mark.parametrize("engines", [{}, {"versions_held": 2}], ids=["one-version", "side-by-side"])
@pytest.mark.parametrize("instances", [1, 3])
async def test_multiversion_keeps_every_group_on_one_version_while_others_are_served(
    engines: dict[str, Any], instances: int, tmp_path: Path
) -> None:
    run = Run(tmp_path, scheduled("multiversion", total_updates=12), rollout=engines, max_tokens=64, instances=instances)
    assert (await run.go()).ok
    assert clean(run)
    by_group: dict[int, set[int]] = {}
    for row in trajectories(run):
        by_group.setdefault(row["group"], set()).update(row["version"])
    assert all(len(versions) == 1 for versions in by_group.values())
    assert max(value for command in run.records(Dispatch) for value in command.staleness) == 1, "some work outlived a publish"
    assert run.records(Abort) == []
