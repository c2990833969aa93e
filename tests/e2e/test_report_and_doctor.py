"""Report and doctor beside a real controller: live, killed with -9, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from paceline.report.doctor import Diagnosis, diagnose
from paceline.report.gather import gather
from paceline.report.page import render

RECIPE = Path(__file__).parents[2] / "recipes" / "emulated.toml"


def start(run: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline.cli.main", "train", str(RECIPE), f"run.dir={run}", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait(run: Path, good: Callable[[Diagnosis], bool]) -> Diagnosis:
    """Look until it is as wanted."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (run / "lock").exists() and (run / "ledger.sqlite").exists() and good(found := diagnose(run)):
            return found
        time.sleep(0.2)
    raise AssertionError(f"did not come about: {diagnose(run)}")


def test_a_live_run_is_running_a_killed_one_died_and_a_resumed_one_is_told_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        *("run.updates=12", "run.checkpoint_every=2", "rollout.instances=2", "rollout.slots=16", "rollout.max_tokens=800"),
        *("schedule.updates_per_publish=2", "schedule.groups_per_update=2", "emulated.mean_tokens=100", "emulated.time_scale=4"),
    ]
    process = start(run, *words)
    try:
        live = wait(run, lambda found: found.state == "running" and any("checkpoint: step-" in fact for fact in found.facts))
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
    assert again.wait(timeout=120) == 0, again.stderr.read() if again.stderr else ""
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
