import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from runtime_builders import schedule
from runtime_runs import Run

from paceline.core.commands import Admit, Checkpoint, Materialize, RequestPrompts
from paceline.core.events import CommandFailed, InstanceLost, TrajectoryFailed
from paceline.ports.fakes.data import MemoryTask
from paceline.ports.fakes.pool import InlineWorker
from paceline.ports.pool import WorkerSpec
from paceline.runtime.audit import audit
from paceline.runtime.ledger import Direction
from paceline.runtime.rundir import Origin, read_origin
from paceline.types.errors import ConfigError, DataError, RuleViolated, TrainerLost, WorkerLost
from paceline.types.progress import Progress


async def test_a_serial_run_trains_every_group_once_and_its_ledger_replays(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule())
    stop = await run.go()
    assert stop.ok
    assert run.trained() == [0, 1, 2, 3, 4, 5]
    assert [row["update/groups"] for row in run.rows()] == [2, 2, 2]
    assert [step for axis, step, _ in run.tracker.rows if axis == "update"] == [1, 2, 3]
    report = audit(run.rundir.ledger)
    assert (report.violations, report.notes, report.lineages) == ((), (), 1)
    assert report.commands > 20
    assert (tmp_path / "model").is_dir()
    assert run.tracker.closed


async def test_metrics_of_an_update_are_those_of_its_own_trajectories(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(total_updates=1))
    await run.go()
    (segment,) = (tmp_path / "trajectories").iterdir()
    table = pq.read_table(segment).to_pylist()
    assert [(row["group"], row["sample"]) for row in table] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    lengths = [len(row["ids"]) for row in table]
    (row,) = run.rows()
    assert row["completions/mean_length"] == sum(lengths) / 4
    assert row["reward"] == sum(length % 2 for length in lengths) / 4
    assert row["completions/clipped_ratio"] == sum(r["finish"] == "length" for r in table) / 4
    assert row["num_tokens"] == sum(len(r["prompt_ids"]) + len(r["ids"]) for r in table)
    assert row["staleness/max"] == 0
    assert row["trainer_waiting_ratio"] > 0
    assert row["step_time"] >= row["rollout_seconds"] > 0


async def test_a_pipelined_run_gives_the_same_trajectories_as_a_serial_one(tmp_path: Path) -> None:
    tables = []
    for preset, start, d in (("serial", "all", 2), ("pipelined", "dispatch", 1)):
        run = Run(tmp_path / preset, schedule(preset=preset, start_when=start, groups_per_dispatch=d))
        await run.go()
        assert audit(run.rundir.ledger).violations == ()
        rows = [row for file in (tmp_path / preset / "trajectories").iterdir() for row in pq.read_table(file).to_pylist()]
        tables.append(sorted((row["update"], row["group"], row["sample"], row["ids"], row["reward"]) for row in rows))
    assert tables[0] == tables[1]


async def test_every_published_version_is_checked_on_every_instance_before_it_serves(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), rollout={"wrong_checksum": True})
    with pytest.raises(RuleViolated, match="rule 7"):
        await run.go()
    run = Run(tmp_path / "probe", schedule(), rollout={"wrong_probe": True})
    with pytest.raises(RuleViolated, match="probe differs"):
        await run.go()


@pytest.mark.parametrize(("fault", "says"), [("no_probe", "cannot probe"), ("short_probe", "the probe has")])
async def test_an_instance_that_refuses_weights_is_started_again_and_ends_the_run_by_name_if_that_does_not_help(
    tmp_path: Path, fault: str, says: str
) -> None:
    run = Run(tmp_path / "once", schedule(), instances=1, rollout={fault: True, "once": str(tmp_path / "refused")})
    assert (await run.go()).ok
    assert run.rows()[0]["workers/restarts"] == 1
    assert any(f"rollout-0 could not serve version 0: LoadWeights: {says}" in progress.message for progress in run.said)
    run = Run(tmp_path / "always", schedule(), instances=1, rollout={fault: True})
    with pytest.raises(WorkerLost, match="rollout-0 was lost 6 times in a row"):
        await run.go()


async def test_a_lost_instance_is_restarted_and_its_trajectories_come_out_the_same(tmp_path: Path) -> None:
    undisturbed = Run(tmp_path / "a", schedule(), instances=1)
    await undisturbed.go()
    disturbed = Run(tmp_path / "b", schedule(), instances=1, rollout={"dies_on": 3, "once": str(tmp_path / "once")})
    stop = await disturbed.go()
    assert stop.ok
    assert len(disturbed.records(InstanceLost)) == 1
    assert disturbed.rows()[-1]["workers/restarts"] == 1
    assert any("started again" in progress.message for progress in disturbed.said)
    for ours, theirs in zip(disturbed.rows(), undisturbed.rows(), strict=True):
        assert ours["completions/mean_length"] == theirs["completions/mean_length"]
    assert sorted(disturbed.trained()) == undisturbed.trained()
    assert audit(disturbed.rundir.ledger).violations == ()


async def test_what_was_commanded_to_a_lost_instance_never_reaches_its_successor(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), instances=1)
    loop, heard, killed, starts = asyncio.get_running_loop(), list[Any](), list[str](), list[bool]()
    append, commit, start = run.ledger.append, run.ledger.commit, run.pool.start

    def appended(direction: Direction, now: float, value: Any) -> None:
        heard.append(value)
        append(direction, now, value)

    def slowly() -> None:
        if any(isinstance(value, Admit) for value in heard) and not killed:
            killed.append("rollout-0")
            loop.call_soon_threadsafe(run.pool.workers["rollout-0"].kill)
            time.sleep(0.2)  # long enough for a successor, before the admissions are performed
        commit()

    async def started(spec: WorkerSpec, *others: Any) -> InlineWorker:
        starts.append(any(isinstance(value, InstanceLost) for value in heard))
        return await start(spec, *others)

    run.ledger.append, run.ledger.commit, run.pool.start = appended, slowly, started  # type: ignore[method-assign]
    assert (await run.go()).ok
    assert starts == [False, False, False, True], "the successor starts when the machine has heard of the loss"
    assert run.records(TrajectoryFailed) == []


async def test_a_failed_attempt_is_tried_again_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), rollout={"fails_on": (2, 1), "failures": 2})
    assert (await run.go()).ok
    assert [row["attempts/failed"] for row in run.rows()] == [0, 2, 0]
    (tmp_path / "x").mkdir()
    run = Run(tmp_path / "x", schedule(), rollout={"fails_on": (2, 1), "failures": 3})
    stop = await run.go()
    assert not stop.ok
    assert "out of luck" in stop.reason


async def test_a_survivor_policy_trains_the_rest_of_a_group(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(group_size=3, on_failure="drop_sample"), rollout={"fails_on": (2, 1), "failures": 9})
    assert (await run.go()).ok
    assert [command.samples for command in run.records(Materialize) if command.group == 2] == [(0, 2)]
    assert [row["update/samples"] for row in run.rows()] == [6, 5, 6]


async def test_a_reward_that_raises_stops_the_run_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), judge={"raises_on": 3})
    stop = await run.go()
    assert not stop.ok
    assert "lengthy raised ValueError on row" in stop.reason
    assert not (tmp_path / "model").exists()


async def test_a_verifier_that_raises_is_counted_as_an_error_and_its_group_trains_on_no_zero(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(on_failure="drop_group"), judge={"raises_on": 3})
    assert (await run.go()).ok
    (failed,) = run.records(CommandFailed)
    assert failed.error == f"reward lengthy raised ValueError on row {run.task.prompt(3).row}: no"
    assert sum(row["verifier_errors"] for row in run.rows()) == 1
    assert 3 not in run.trained()
    rows = [row for file in (tmp_path / "trajectories").iterdir() for row in pq.read_table(file).to_pylist()]
    assert 3 not in {row["group"] for row in rows}


async def test_a_reward_that_hangs_is_killed_named_and_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(on_failure="drop_group"), judge={"hangs_on": 3}, reward_deadline_s=0.2)
    stop = await run.go()
    assert stop.ok
    failed = run.records(CommandFailed)
    (said,) = {event.error for event in failed}
    question = run.task.prompt(3)
    assert said == (
        f"rewards lengthy gave no answer on group 3 (row {question.row} of memory: {question.text!r}), samples 0-1: "
        "worker reward-0 did not answer score within 0.2 s and was killed; its deadline follows from reward.timeout_s"
    )
    assert 3 not in run.trained()
    notices = [progress.message for progress in run.said if "started again" in progress.message]
    assert notices == ["worker reward-0 did not answer score within 0.2 s and was killed; it is started again"] * len(failed)
    assert [row["verifier_errors"] for row in run.rows()] == [0, len(failed), 0]
    assert audit(run.rundir.ledger).violations == ()


async def test_an_exception_in_the_trainer_ends_the_run_at_once_with_its_name(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), trainer={"raises_at": 2})
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="the trainer divided by zero"):
        await run.go()
    assert time.monotonic() - began < 5


async def test_a_long_update_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    patient = Run(tmp_path / "patient", schedule(total_updates=1), trainer={"takes_s": 0.6}, answer_timeout_s=0.3)
    assert (await patient.go()).ok
    run = Run(tmp_path / "short", schedule(total_updates=1), trainer={"takes_s": 0.6}, train_timeout_s=0.1)
    with pytest.raises(WorkerLost, match="trainer"):
        await run.go()


async def test_a_lost_trainer_ends_its_lineage_by_name_and_leaves_no_answer_to_what_it_did(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), trainer={"dies_at": 2})
    with pytest.raises(TrainerLost, match="trainer"):
        await run.go()
    assert run.records(CommandFailed) == []


async def test_a_worker_that_cannot_start_ends_the_run_with_what_its_factory_raised(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), rollout={"unknown": 1})
    with pytest.raises(TypeError, match="unknown"):
        await run.go()


async def test_evaluation_happens_in_the_loop_and_changes_nothing_of_training(tmp_path: Path) -> None:
    without = Run(tmp_path / "a", schedule())
    await without.go()
    run = Run(tmp_path / "b", schedule(evaluate_every=2), evaluates=True)
    assert (await run.go()).ok
    assert run.trained() == without.trained()
    timeless = ("reward", "completions/mean_length", "num_tokens", "reward_std")
    assert [[row[name] for name in timeless] for row in run.rows()] == [[row[name] for name in timeless] for row in without.rows()]
    lines = [json.loads(line) for line in (tmp_path / "b" / "eval.jsonl").read_text().splitlines()]
    assert [(line["update"], line["version"]) for line in lines] == [(0, 0), (2, 2), (3, 3)]
    assert all(line["greedy"]["count"] == 3 and line["sampled"]["count"] == 6 and len(line["answers"]) == 3 for line in lines)
    assert [step for axis, step, _ in run.tracker.rows if axis == "eval"] == [0, 2, 3]
    assert all(name.startswith("eval/") for name in run.rows("eval")[0])


async def test_golds_that_no_reward_can_judge_are_refused_before_anything_is_generated_those_of_the_evaluation_too(tmp_path: Path) -> None:
    bad = MemoryTask([("question", "4"), ("question", "bad"), ("question", "4")], name="bad")
    for name, options in (("task", {"task": bad}), ("problems", {"problems": bad, "evaluates": True})):
        run = Run(tmp_path / name, schedule(evaluate_every=1 if name == "problems" else 0), **options)
        with pytest.raises(DataError, match="row 1 of bad: gold 'bad'"):
            await run.go()
        assert run.records(RequestPrompts) == []


async def test_instances_that_cannot_carry_the_schedule_are_refused_at_the_start(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), rollout={"slots": 0})
    with pytest.raises(ConfigError, match="instance 'rollout-0': slots = 0: must be at least 1"):
        await run.go()


def signals(*after: str, number: signal.Signals = signal.SIGINT) -> Callable[[Progress], None]:
    """Send a signal to this process at the first progress of each of these phases or updates."""
    left = list(after)

    def watch(progress: Progress) -> None:
        if left and left[0] in (progress.phase, f"update {progress.update}"):
            left.pop(0)
            os.kill(os.getpid(), number)

    return watch


async def test_ctrl_c_once_checkpoints_and_leaves_and_a_resume_trains_what_was_left(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole", schedule(total_updates=4))
    await whole.go()
    first = Run(tmp_path / "cut", schedule(total_updates=4), watch=signals("update 2"))
    stop = await first.go()
    assert stop.ok
    assert first.session.interrupted
    (checkpoint,) = first.records(Checkpoint)
    assert 2 <= checkpoint.update < 4
    before = first.trained()
    second = Run(tmp_path / "cut", schedule(total_updates=4), resume=True)
    assert (await second.go()).ok
    assert before + second.trained() == whole.trained()
    assert [row["num_tokens"] for row in (*first.rows(), *second.rows())] == [row["num_tokens"] for row in whole.rows()]
    assert [step for axis, step, _ in second.tracker.rows if axis == "update"] == list(range(checkpoint.update + 1, 5))
    report = audit(second.rundir.ledger)
    assert (report.violations, report.lineages) == ((), 2)


async def test_a_terminal_that_hangs_up_costs_no_update(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        run = Run(tmp_path, schedule(total_updates=50), watch=signals("update 2", number=signal.SIGHUP))
        assert (await run.go()).ok
    finally:
        signal.signal(signal.SIGHUP, before)
    (checkpoint,) = run.records(Checkpoint)
    assert 2 <= checkpoint.update < 50
    assert run.session.interrupted


async def test_a_run_under_nohup_does_not_hear_its_terminal_hang_up(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = Run(tmp_path, schedule(), watch=signals("update 1", number=signal.SIGHUP))
        assert (await run.go()).ok
        assert len(run.rows()) == 3
        assert not run.session.interrupted
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_weights_that_give_no_log_probs_end_the_run_as_diverged_and_not_as_a_stale_copy(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), trainer={"diverges": True})
    stop = await run.go()
    assert not stop.ok
    assert "weights of version 1 give log-probs that are not finite: training has diverged" in stop.reason


async def test_an_audit_finds_a_lineage_that_starts_where_no_checkpoint_stood(tmp_path: Path) -> None:
    first = Run(tmp_path, schedule(total_updates=4), watch=signals("update 2"))
    await first.go()
    await Run(tmp_path, schedule(total_updates=4), resume=True).go()
    assert audit(tmp_path / "ledger.sqlite").violations == ()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as database:
        (text,) = database.execute("SELECT resume FROM lineage WHERE id = 2").fetchone()
        moved = json.dumps({**json.loads(text), "next_index": json.loads(text)["next_index"] + 1})
        database.execute("UPDATE lineage SET resume = ? WHERE id = 2", (moved,))
    assert any("no checkpoint of lineage 1 stood there" in violation for violation in audit(tmp_path / "ledger.sqlite").violations)


async def test_ctrl_c_twice_leaves_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), judge={"hangs_on": 2}, reward_deadline_s=60, watch=signals("update 1", "update 1"))
    asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGINT)
    began = time.monotonic()
    await run.go()
    assert time.monotonic() - began < 3
    assert run.session.interrupted
    assert run.records(Checkpoint) == []


async def test_ctrl_c_twice_while_the_model_is_written_leaves_at_once_and_a_resume_writes_it(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), watch=signals("export", "export"), trainer={"hangs": True})
    began = time.monotonic()
    assert (await run.go()).ok
    assert time.monotonic() - began < 3
    assert run.session.interrupted
    assert not run.session.exported
    assert any("once more to leave now" in progress.message for progress in run.said)
    again = Run(tmp_path, schedule(), resume=True)
    assert (await again.go()).ok
    assert again.session.exported
    assert read_origin(again.rundir.model) == Origin(2, 3)
    assert again.trained() == []


async def test_ctrl_c_while_workers_start_leaves_none(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), watch=signals("start"), start_s=0.2)
    with pytest.raises(asyncio.CancelledError):
        await run.go()
    assert run.records(RequestPrompts) == []


async def test_resume_without_a_checkpoint_starts_again_as_a_new_lineage(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(), trainer={"dies_at": 2})
    with pytest.raises(WorkerLost):
        await run.go()
    again = Run(tmp_path, schedule(), resume=True)
    assert (await again.go()).ok
    assert again.trained() == [0, 1, 2, 3, 4, 5]
    report = audit(again.rundir.ledger)
    assert report.violations == ()
    assert len(report.notes) == 1


async def test_checkpoints_in_the_loop_keep_the_last_and_resume_takes_the_newest(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(total_updates=5, checkpoint_every=1), trainer={"dies_at": 5})
    with pytest.raises(WorkerLost):
        await run.go()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-3", "step-4"]
    again = Run(tmp_path, schedule(total_updates=5, checkpoint_every=1), resume=True)
    assert (await again.go()).ok
    assert again.trained() == [8, 9]


async def test_groups_without_signal_are_told_aloud(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(total_updates=4), judge={"equal": True})
    assert (await run.go()).ok
    assert any("every group has equal rewards" in progress.message for progress in run.said)


async def test_a_task_without_any_signal_ends_with_an_error_after_a_bounded_number_of_rounds(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(no_signal="drop", empty_limit=3), judge={"equal": True})
    stop = await run.go()
    assert not stop.ok
    assert len(run.records(Materialize)) == 3 * 2
    assert run.trained() == []
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0"], "and leaves a usable checkpoint"


async def test_the_filter_has_the_advantages_own_notion_of_equal_outcomes(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(no_signal="drop", empty_limit=1), judge={"rounding": True})
    assert not (await run.go()).ok
    assert run.trained() == [], "0.1 + 0.2 and 0.3 teach nothing"


async def test_a_reward_worker_that_dies_over_a_group_costs_no_group_unless_that_group_kills_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "once", schedule(), judge={"dies_on": 2, "once": str(tmp_path / "died")})
    assert (await run.go()).ok
    assert run.trained() == [0, 1, 2, 3, 4, 5]
    assert run.records(CommandFailed) == []
    run = Run(tmp_path / "always", schedule(), judge={"dies_on": 2})
    stop = await run.go()
    assert not stop.ok
    assert "gave no answer on group 2" in stop.reason
    assert "two workers ended over it" in stop.reason
    assert len(run.records(CommandFailed)) == 1


async def test_an_idle_reward_worker_that_dies_is_replaced_before_it_is_missed(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule())
    killed: list[str] = []

    def kill_the_judge(progress: Progress) -> None:
        if progress.phase == "rollout" and not killed:
            killed.append("reward-0")
            run.pool.workers["reward-0"].kill()

    run.watch = kill_the_judge
    assert (await run.go()).ok
    assert killed
    assert run.records(CommandFailed) == []
    assert run.rows()[-1]["workers/restarts"] == 1


async def test_workers_that_die_while_the_model_is_written_are_not_started_again(tmp_path: Path) -> None:
    killed: list[InlineWorker] = []

    def kill(progress: Progress) -> None:
        if progress.phase == "export" and not killed:
            killed.extend(worker for name, worker in run.pool.workers.items() if name != "trainer")
            for worker in killed:
                worker.kill()

    run = Run(tmp_path, schedule(), watch=kill, start_s=0.1)
    assert (await run.go()).ok
    assert run.session.exported
    assert len(killed) == 3
    await asyncio.sleep(0.2)
    assert all(run.pool.workers[worker.name] is worker for worker in killed), "none has a successor, which nobody would end"
    assert not any("started again" in progress.message for progress in run.said)


async def test_nothing_of_a_finished_group_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, schedule(total_updates=20))
    await run.go()
    board = run.session.board
    assert (board.prompts, board.trajectories, board.scored) == ({}, {}, {})
    assert not (tmp_path / "weights").exists()
