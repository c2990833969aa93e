"""Report and doctor beside a real controller: live, killed with -9, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.e2e.runs import LIMIT_S, environment

from paceline.report.doctor import diagnose
from paceline.report.gather import gather
from paceline.report.page import render

pytestmark = pytest.mark.timeout(0)  # every process has its own limit
RECIPE = Path(__file__).parents[2] / "recipes" / "emulated.toml"


def start(run: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline.cli.main", "train", str(RECIPE), f"run.dir={run}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())


def until(process: subprocess.Popen[str], start: str) -> None:
    """Read what a run prints up to the line that begins so; a run that ends before, or says nothing for too long, fails the test."""
    said: list[str] = []
    guard = threading.Timer(LIMIT_S, process.kill)
    guard.start()
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith(start):
            break
    guard.cancel()
    assert said, "it printed nothing"
    assert said[-1].startswith(start), "".join(said)


def test_a_live_run_is_running_a_killed_one_died_and_a_resumed_one_is_told_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        *("run.updates=12", "run.checkpoint_every=2", "rollout.instances=2", "rollout.slots=16", "rollout.max_tokens=800"),
        *("schedule.updates_per_publish=2", "schedule.groups_per_update=2", "emulated.mean_tokens=100", "emulated.time_scale=4"),
    ]
    process = start(run, *words)
    try:
        until(process, "update 4/12")  # two after a checkpoint was due
        live = diagnose(run)
        assert live.state == "running"
        assert any("checkpoint: step-" in fact for fact in live.facts)
        assert f"process {process.pid}" in live.headline
        assert live.trainer
        assert live.owed
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    dead = diagnose(run)
    assert (dead.state, dead.healthy) == ("died", False)
    assert any("--resume (it goes on from" in finding.advice for finding in dead.findings)
    again = start(run, *words, "--resume")
    said, _ = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, said
    done = diagnose(run)
    assert done.state == "done"
    assert done.lineages == 2
    gathered = gather(run, 40)
    assert list(gathered.updates) == list(range(1, 13))
    assert all("loss" in row or "reward" in row for row in gathered.updates.values())
    assert len(gathered.samples.samples) == 40
    assert all(sample["prompt"] for sample in gathered.samples.samples)
    assert gathered.audit.violations == ()
    assert "continued after update" in render(gathered)
