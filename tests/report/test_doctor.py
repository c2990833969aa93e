"""The doctor: in which state a run is, what it waits for and since when, what went wrong, and whether someone must act."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from report_runs import STARTED, cut, keep, plan, recorded, simulated
from tests.core.test_recorded_runs import RECORDED
from typer.testing import CliRunner, Result

from paceline.cli.main import app
from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume
from paceline.report.doctor import diagnose
from paceline.report.troubles import Troubles
from paceline.runtime.ledger import Ledger
from paceline.runtime.notices import Notices
from paceline.runtime.rundir import Origin, RunDir
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, World
from paceline.types.errors import ConfigError

BEGAN = datetime.fromisoformat(STARTED).timestamp()


def doctor(run: Path) -> Result:
    return CliRunner().invoke(app, ["doctor", str(run)])


@contextmanager
def controlled(run: Path, since: float = BEGAN) -> Iterator[None]:
    """A controller holds the run, since a moment."""
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        os.utime(run / "lock", (since, since))
        yield


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_runs_that_ended_well_need_nobody(path: Path, tmp_path: Path) -> None:
    told = doctor(recorded(tmp_path / "run", path))
    assert told.exit_code == 0, told.output
    assert "is done after" in told.output
    assert told.output.splitlines()[-1] == "nothing needs you"


def test_a_live_run_names_what_it_waits_for_since_when_and_until_when(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, e.GroupMaterialized), deadlines=(("materialize", 30.0),))
    with controlled(run):
        last = diagnose(run, wall=BEGAN).trainer
        found = diagnose(run, wall=BEGAN + 20.0)
    assert found.state == "running"
    assert found.headline.startswith(f"runs (process {os.getpid()}), for 20.0 s")
    assert last == found.trainer
    first = min(found.owed, key=lambda owed: owed.left)
    assert (first.kind, first.owner, first.what[0]) == ("materialize", "rewards", "group 3"), "group 3 was served first"
    assert first.since + first.left == pytest.approx(30.0)
    assert found.healthy


def test_a_live_run_with_something_overdue_needs_somebody(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, e.GroupMaterialized), deadlines=(("materialize", 5.0),))
    with controlled(run):
        found = diagnose(run, wall=BEGAN + 30.0)
        told = doctor(run)
    assert found.state == "running"
    assert found.owed[0].left < -20.0
    assert not found.healthy
    assert "OVERDUE by" in told.output
    assert "(reward.timeout_s)" in told.output
    assert told.exit_code == 1


def test_a_controller_that_records_nothing_for_a_minute_is_stuck(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, e.Published))
    with controlled(run):
        found = diagnose(run, wall=BEGAN + 90.0)
    assert (found.state, found.healthy) == ("stuck", False)
    assert "recorded nothing for" in found.headline


def test_a_killed_run_says_what_it_was_doing_and_how_to_go_on(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, e.DispatchConsumed))
    (run / "config.toml").write_text("")
    (run / "checkpoints" / "step-2").mkdir(parents=True)
    told = doctor(run)
    assert told.exit_code == 1
    assert "died after" in told.output
    assert "trainer: forward, backward, optimizer step" in told.output
    assert "trainer: update 1 with groups (3, 0), for " in told.output
    assert "0 of 6 updates done" in told.output, "one that is under way is not done"
    assert f"paceline train {run / 'config.toml'} --resume (it goes on from {run / 'checkpoints' / 'step-2'})" in told.output


def test_the_error_that_ended_a_run_is_told(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, e.DispatchConsumed))
    Notices(run / "notices.jsonl", 1).add("worker trainer was lost: signal SIGKILL", fatal=True)
    found = diagnose(run)
    assert found.state == "failed"
    assert "worker trainer was lost: signal SIGKILL" in found.headline


def test_a_stop_with_an_error_is_a_failure_and_its_reason_the_headline(tmp_path: Path) -> None:
    records = [
        (0.0, e.Started()),
        (0.0, c.Publish(1, 0, 0)),
        (1.0, e.CommandFailed(1, "no space left")),
        (1.0, c.Stop(2, "Publish failed: x", False)),
    ]
    run = keep(tmp_path / "run", plan(), Resume(), records)
    found = diagnose(run)
    assert (found.state, found.headline) == ("failed", "failed after 1.0 s: Publish failed: x")
    assert any("trainer, the publish of version 0: no space left" in line for f in found.findings for line in f.details)


def test_a_run_that_was_asked_to_leave_needs_nobody(tmp_path: Path) -> None:
    chosen = plan(total_updates=200)
    records = simulate(chosen, World((FakeInstance("rollout-0"),), stop=(8.0, "checkpoint"))).records
    run = keep(tmp_path / "run", chosen, Resume(), records)
    found = diagnose(run)
    assert (found.state, found.healthy) == ("left", True)
    assert "asked; it goes on with paceline train" in found.headline


def test_a_run_that_never_decided_anything_is_starting_while_its_process_lives(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", plan(), Resume(), [])
    with controlled(run):
        assert diagnose(run, wall=BEGAN + 300).state == "starting"
        assert diagnose(run, wall=BEGAN + 300).healthy
    assert diagnose(run).state == "nothing"
    assert not diagnose(run).healthy


def test_a_ledger_without_a_lineage_never_began(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    assert diagnose(tmp_path).state == "nothing"
    with controlled(tmp_path):
        assert diagnose(tmp_path).state == "starting"


def test_a_resume_that_loads_its_model_is_starting_whatever_the_life_before_it_came_to(tmp_path: Path) -> None:
    """For minutes the ledger knows the old life only: it is not that which is stuck, or writes its model, or has failed."""
    killed = cut(tmp_path / "killed", lambda value: isinstance(value, e.Published))
    done = simulated(tmp_path / "done")
    failed = cut(tmp_path / "failed", lambda value: isinstance(value, e.GroupMaterialized))
    Notices(failed / "notices.jsonl", 1).add("group 3 could not be rewarded", fatal=True)
    for run in (killed, done, failed):
        with controlled(run, since=BEGAN + 3600.0):
            found = diagnose(run, wall=BEGAN + 3690.0)
        assert (found.state, found.healthy) == ("starting", True), found.headline
        assert f"starts, for 90.0 s: process {os.getpid()} loads models and data" in found.headline
        assert (found.owed, found.trainer, found.findings) == ((), "", ())
    assert not diagnose(killed).healthy, "and when it has gone again, that life is told"


def exported(run: Path, lineage: int) -> None:
    (run / ".model").mkdir()
    RunDir(run).seal_model(run / ".model", Origin(lineage, 6))


def test_a_run_that_was_killed_while_its_model_was_written_is_not_done(tmp_path: Path) -> None:
    """An orderly end takes the weights away that engines were sent; this one left them."""
    run = simulated(tmp_path / "run")
    (run / "weights").mkdir()
    found = diagnose(run)
    assert (found.state, found.healthy) == ("died", False)
    assert "when its updates were done and before its model was written" in found.headline
    assert "--resume" in found.findings[0].advice
    exported(run, 1)
    assert diagnose(run).state == "done", "killed a moment later"


def test_an_error_after_the_last_update_is_a_failure(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run")
    Notices(run / "notices.jsonl", 1).add("runs/x/model: No space left on device", fatal=True)
    found = diagnose(run)
    assert (found.state, found.healthy) == ("failed", False)
    assert found.headline.endswith("runs/x/model: No space left on device")


def test_a_run_that_never_decided_anything_says_how_it_goes_on(tmp_path: Path) -> None:
    run = keep(tmp_path / "run", plan(), Resume(), [])
    assert "train CONFIG --resume (it goes on from the beginning: there is no checkpoint)" in doctor(run).output


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run directory"):
        diagnose(tmp_path)
    assert doctor(tmp_path).exit_code == 2


def test_an_alarm_that_holds_needs_somebody_while_the_run_goes_on_and_is_a_warning_when_it_is_done(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, c.Stop))

    def log(*clipped: float) -> None:
        rows = [{"axis": "update", "step": i + 1, "lineage": 1, "completions/clipped_ratio": x} for i, x in enumerate(clipped)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def levels() -> list[tuple[str, str]]:
        return [(finding.level, finding.what.split(":")[0]) for finding in diagnose(run, wall=BEGAN + 20.0).findings]

    with controlled(run):
        log(1.0, 1.0, 1.0, 0.1)
        assert levels() == []
        assert diagnose(run, wall=BEGAN + 20.0).healthy
        log(0.1, 1.0, 1.0, 1.0)
        assert levels() == [("fault", "for 3 updates")]
        assert not diagnose(run, wall=BEGAN + 20.0).healthy
    run = simulated(tmp_path / "done")
    log(0.1, 1.0, 1.0, 1.0)
    assert levels() == [("warning", "for 3 updates")]
    assert diagnose(run).healthy, "there is nothing left to stop"


def test_a_broken_rule_is_a_fault(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run")
    found = diagnose(run)
    assert found.healthy
    records = [(0.0, e.Started()), (0.0, c.Publish(1, 7, 0))]
    assert any("broken" in f.what for f in diagnose(keep(tmp_path / "other", plan(), Resume(), records)).findings)


def test_the_last_life_of_a_resumed_run_is_looked_at(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, c.Dispatch) and value.update == 4)
    chosen, resume = plan(), Resume(2, 1, (), 4)
    keep(run, chosen, resume, simulate(chosen, World((FakeInstance("rollout-0"),)), resume).records, parent=1)
    found = diagnose(run)
    assert found.state == "done"
    assert "lineage 2 of 2, continued after update 2" in found.facts


def troubles(*records: Any) -> dict[str, Any]:
    fold = Troubles()
    for number, record in enumerate(records):
        fold.feed(record, float(number))
    return {finding.what: finding for finding in fold.findings()}


def admit(number: int, group: int, sample: int, instance: str = "rollout-0") -> c.Admit:
    return c.Admit(number, group, sample, 0, instance, 0)


def test_failed_attempts_are_named_and_those_of_one_error_told_together() -> None:
    fails = [e.TrajectoryFailed(i, 3, i, 0, "rollout-0", "out of memory") for i in range(8)]
    found = troubles(*(admit(i, 3, i) for i in range(8)), *fails)
    (line,) = found["8 attempts failed"].details
    assert line.startswith("group 3 sample 0 attempt 0 on rollout-0, ")
    assert line.endswith(" and 2 more: out of memory")


def test_a_lost_instance_is_told_with_what_it_was_decoding_also_what_had_moved_to_it() -> None:
    found = troubles(
        admit(1, 0, 0), admit(2, 0, 1), admit(3, 1, 0, "rollout-1"), c.Migrate(4, ((1, 0),), "rollout-1", "rollout-0", 0),
        e.Migrated(4, ((1, 0),)), e.TrajectoryFinished(2, 0, 1, 0, "rollout-0", 5, 0, 0), e.InstanceLost("rollout-0", "signal SIGKILL"),
    )  # fmt: skip
    (line,) = found["1 instance lost; what it decoded was begun again elsewhere"].details
    assert line == "at 6.0 s, rollout-0: signal SIGKILL; it had 2 of the trajectories (group.sample 0.0, 1.0)"


def test_reward_errors_skipped_updates_and_groups_that_were_given_up_are_told_with_their_groups() -> None:
    found = troubles(
        c.Materialize(1, 4, (0, 1)), e.CommandFailed(1, "reward math raised on row 9"), c.Terminal(2, 4, "failed", "could not be rewarded"),
        c.Dispatch(3, (5, 6), True, 2, (5, 6), (0, 0)), e.DispatchConsumed(3), e.UpdateFinished(3, 2, applied=False),
        c.Terminal(4, 7, "filtered", "all outcomes are equal"), c.Warn(5, "groups: rollout has owed groups [1] to the trainer for 9.0 s"),
        c.Evaluate(6, 1, 2), e.CommandFailed(6, "no instance"),
    )  # fmt: skip
    assert {what: finding.details for what, finding in found.items()} == {
        "1 update skipped: loss or gradient was not finite": ("update 2 at 5.0 s, groups 5, 6",),
        "1 group could not be judged": ("group 4: reward math raised on row 9",),
        "1 group given up, untrained": ("1 x could not be rewarded: 4",),
        "1 command failed": ("at 9.0 s, evaluation, version 1 at update 2: no instance",),
        "1 warning from the machine, the last of them": ("at 7.0 s: groups: rollout has owed groups [1] to the trainer for 9.0 s",),
        "1 group filtered, untrained": ("1 x all outcomes are equal: 7",),
    }
