"""Every schedule on real parts with fake engines and trainer: what holds for all, and what each promises."""

import ast
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from runtime_builders import SCHEDULES, scheduled
from runtime_runs import Run

from paceline import core
from paceline.core.codec import COMMANDS
from paceline.core.commands import Abort, Admit, Checkpoint, Dispatch, LoadWeights, Publish, Stop, Terminal
from paceline.core.events import CommandFailed, InstanceLost, InstanceUp, WeightsLive
from paceline.runtime.audit import audit
from paceline.runtime.rundir import RunDir
from paceline.types.progress import Progress
from paceline.types.records import Request

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def trajectories(run: Run) -> list[dict[str, Any]]:
    """Rows of all segments, in order of group and sample."""
    found = [row for file in sorted(run.rundir.trajectories.iterdir()) for row in pq.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: (row["group"], row["sample"]))


LASTING = (1, 3, 7)
"""Groups among others of their version that suffice for its update."""


def until_a_newer_version_is_stored(root: Path) -> dict[str, Any]:
    """Options of a run in which some groups outlive the publish that follows their admission, however fast the machine is."""

    def stays(request: Request, version: int) -> bool:
        stored = max((int(name[8:-12]) for name in os.listdir(root / "weights") if name.endswith(".safetensors")), default=0)
        return request.group in LASTING and stored <= request.version

    return {"rollout": {"stays": stays, "length": lambda request: 4}, "max_tokens": 1_000_000}


def until_newer_weights_serve_it() -> dict[str, Any]:
    """The same, until it goes on under new weights."""

    def stays(request: Request, version: int) -> bool:
        return request.group in LASTING and version == request.version

    return {"rollout": {"stays": stays, "length": lambda request: 4}, "max_tokens": 1_000_000}


def clean(run: Run) -> bool:
    """Whether the audit finds nothing in a run's ledger, which has its end."""
    report = audit(run.rundir.ledger)
    assert (report.violations, report.notes) == ((), ())
    return True


@every_schedule
async def test_a_run_trains_whole_groups_once_and_its_ledger_replays(name: str, tmp_path: Path) -> None:
    stored: list[int] = []
    weights = RunDir(tmp_path).weights
    run = Run(tmp_path, scheduled(name, total_updates=8), watch=lambda progress: stored.append(len(os.listdir(weights))))
    assert (await run.go()).ok
    assert clean(run)
    assert [row["update/groups"] for row in run.rows()] == [2] * 8
    trained = run.trained()
    assert len(set(trained)) == len(trained) == 16
    assert [(row["group"], row["sample"]) for row in trajectories(run)] == [(g, s) for g in sorted(trained) for s in range(2)]
    assert run.records(Abort) == [], "a publish costs no request"
    assert run.records(Publish)[-1].version == 8
    assert max(stored) <= 4, "versions that nothing needs leave the store"


def test_everything_that_the_machine_commands_is_performed(tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled("serial"))
    run.ledger.close()
    run.rundir.close()
    unperformed = {*COMMANDS.values()} - {*run.session._performers()} - {Stop}
    made = {
        node.func.id
        for file in Path(core.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "Migrate" in made
    assert not made & {kind.__name__ for kind in unperformed}, "what nobody performs, no part of the core makes"


@pytest.mark.parametrize("name", ["streaming-keep", "streaming-recompute"])
async def test_streaming_records_the_version_of_every_token_and_trains_within_its_bound(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=8), **until_newer_weights_serve_it())
    await run.go()
    assert clean(run)
    assert {command.unfinished for command in run.records(LoadWeights) if command.replaces is not None} >= {name.removeprefix("streaming-")}
    versions = [row["version"] for row in trajectories(run)]
    assert any(len(set(tokens)) > 1 for tokens in versions), "some trajectory goes on under new weights"
    assert all(tokens == sorted(tokens) for tokens in versions)
    assert max(value for command in run.records(Dispatch) for value in command.staleness) == 1


async def test_draining_lets_no_trajectory_see_two_versions(tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled("streaming-drain", total_updates=8), **until_a_newer_version_is_stored(tmp_path))
    await run.go()
    assert all(len(set(row["version"])) == 1 for row in trajectories(run))
    assert clean(run)


@pytest.mark.parametrize("engines", [{}, {"versions_held": 2}], ids=["one-version", "side-by-side"])
@pytest.mark.parametrize("instances", [1, 3])
async def test_multiversion_keeps_every_group_on_one_version_while_others_are_served(
    engines: dict[str, Any], instances: int, tmp_path: Path
) -> None:
    options = until_a_newer_version_is_stored(tmp_path)
    options["rollout"] |= engines
    run = Run(tmp_path, scheduled("multiversion", total_updates=8), instances=instances, **options)
    assert (await run.go()).ok
    assert clean(run)
    by_group: dict[int, set[int]] = {}
    for row in trajectories(run):
        by_group.setdefault(row["group"], set()).update(row["version"])
    assert all(len(versions) == 1 for versions in by_group.values())
    assert max(value for command in run.records(Dispatch) for value in command.staleness) == 1, "some work outlived a publish"
    assert run.records(Abort) == []


@every_schedule
async def test_an_instance_twenty_times_slower_than_the_others_slows_the_run_and_changes_nothing_else(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=5), rollout={"slots": 2}, rollout_0={"slow": 20})
    assert (await run.go()).ok
    assert clean(run)
    assert {row["instance"] for row in trajectories(run)} == {"rollout-0", "rollout-1"}
    assert sorted(run.trained()) == list(range(10))


@every_schedule
async def test_what_a_lost_instance_had_is_admitted_again_and_it_serves_again_with_the_right_weights(name: str, tmp_path: Path) -> None:
    undisturbed = Run(tmp_path / "a", scheduled(name, total_updates=6))
    await undisturbed.go()
    run = Run(tmp_path / "b", scheduled(name, total_updates=6), rollout={"dies_on": 4, "once": str(tmp_path / "once")})
    assert (await run.go()).ok
    assert clean(run)
    (lost,) = run.records(InstanceLost)
    ups = [event for event in run.records(InstanceUp, InstanceLost, WeightsLive, Admit) if getattr(event, "instance", "") == lost.instance]
    after = ups[ups.index(lost) + 1 :]
    assert isinstance(after[0], WeightsLive), "weights before traffic"
    assert sorted(run.trained()) == sorted(undisturbed.trained()), "no row lost, none twice"
    ours, theirs = ([(row["group"], row["sample"], row["ids"]) for row in trajectories(one)] for one in (run, undisturbed))
    assert ours == theirs, "the same seeds"
    assert run.rows()[-1]["workers/restarts"] == 1


@every_schedule
async def test_a_reward_that_never_returns_costs_its_group_and_nothing_else(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, on_failure="drop_group", total_updates=4), judge={"hangs_on": 3}, reward_deadline_s=0.2)
    assert (await run.go()).ok
    assert clean(run)
    (failed,) = run.records(CommandFailed)
    assert "rewards lengthy gave no answer on group 3" in failed.error
    assert [command.state for command in run.records(Terminal) if command.group == 3] == ["failed"]
    assert 3 not in run.trained()


@every_schedule
@pytest.mark.parametrize("no_signal", ["drop", "refill"])
async def test_a_prompt_that_is_always_filtered_never_trains_and_is_counted(name: str, no_signal: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, no_signal=no_signal, total_updates=6), judge={"equal_on": 2})
    assert (await run.go()).ok
    assert clean(run)
    filtered = {command.group for command in run.records(Terminal) if command.state == "filtered"}
    rows = {group: run.task.prompt(group).row for group in {*filtered, *run.trained()}}
    assert any(rows[group] == 2 for group in filtered)
    assert all(rows[group] != 2 for group in run.trained())
    assert sum(row["groups/filtered"] for row in run.rows()) >= 1


@every_schedule
async def test_data_that_end_in_mid_round_train_to_the_last_prompt_in_a_short_update(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=9), prompts=5)
    stop = await run.go()
    assert stop.ok
    assert clean(run)
    assert sorted(run.trained()) == [0, 1, 2, 3, 4]
    assert [row["update/groups"] for row in run.rows()] == [2, 2, 1]
    assert run.session.exported
    again = Run(tmp_path, scheduled(name, total_updates=9), prompts=5, resume=True)
    assert (await again.go()).ok
    assert again.trained() == [], "there is nothing left"


@every_schedule
async def test_a_failed_attempt_is_repeated_and_a_hopeless_one_leaves_the_survivors(name: str, tmp_path: Path) -> None:
    s = scheduled(name, group_size=4, on_failure="drop_sample", total_updates=3)
    for failures, samples in ((2, 4), (9, 3)):
        run = Run(tmp_path / str(failures), s, rollout={"fails_on": (2, 1), "failures": failures})
        assert (await run.go()).ok
        assert clean(run)
        assert [row["sample"] for row in trajectories(run) if row["group"] == 2] == [s for s in range(4) if samples == 4 or s != 1]


@every_schedule
async def test_an_evaluation_sees_one_version_and_takes_nothing_from_training(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, scheduled(name, total_updates=6, evaluate_every=2), evaluates=True, max_tokens=32)
    assert (await run.go()).ok
    assert clean(run)
    lines = [json.loads(line) for line in run.rundir.evaluations.read_text().splitlines()]
    assert [(line["update"], line["version"]) for line in lines] == [(0, 0), (2, 2), (4, 4), (6, 6)]
    assert [command for command in run.records(Abort)] == []
    rows = trajectories(run)
    assert len(rows) == 6 * 2 * 2, "no row of an evaluation"
    without = Run(tmp_path / "without", scheduled(name, total_updates=6), max_tokens=32)
    await without.go()
    ours, theirs = ([(row["group"], row["sample"], row["ids"]) for row in found] for found in (rows, trajectories(without)))
    assert ours == theirs


@every_schedule
async def test_a_run_that_was_asked_to_leave_goes_on_where_it_left(name: str, tmp_path: Path) -> None:
    asked: list[int] = []

    def leave(progress: Progress) -> None:
        if progress.update == 3 and not asked:
            asked.append(progress.update)
            os.kill(os.getpid(), signal.SIGINT)

    first = Run(tmp_path, scheduled(name, total_updates=7), watch=leave, max_tokens=32)
    assert (await first.go()).ok
    (checkpoint,) = first.records(Checkpoint)
    assert 3 <= checkpoint.update < 7
    before = first.trained()
    second = Run(tmp_path, scheduled(name, total_updates=7), resume=True, max_tokens=32)
    assert (await second.go()).ok
    report = audit(second.rundir.ledger)
    assert (report.violations, report.lineages) == ((), 2)
    trained = before + second.trained()
    assert len(trained) == len(set(trained)) == 14
    left = {*range(checkpoint.next_index), *second.trained()} - set(trained)
    assert left <= set(checkpoint.pending), "what was requested is trained, or was still to come when the run had its updates"


@pytest.mark.parametrize("held", [1, 2])
async def test_a_live_version_is_sent_again_to_an_instance_that_was_restarted(held: int, tmp_path: Path) -> None:
    died = tmp_path / "once"
    faults = {
        "versions_held": held,
        "dies_on": 6 + held,
        "once": str(died),
        "length": lambda request: 4,
        "stays": lambda request, version: request.group == 6 and not died.exists(),
    }
    run = Run(tmp_path, scheduled("multiversion", total_updates=8), instances=1, rollout=faults, max_tokens=1_000_000)
    assert (await run.go()).ok
    assert clean(run)
    records = run.records(Publish, InstanceLost, LoadWeights)
    lost = next(i for i, record in enumerate(records) if isinstance(record, InstanceLost))
    before, after = ([r.version for r in part if isinstance(r, LoadWeights)] for part in (records[:lost], records[lost:]))
    newest = max(record.version for record in records[:lost] if isinstance(record, Publish))
    assert after[0] in before
    assert after[0] < newest or held == 1, "an older version, which the pinned work on it needs"
