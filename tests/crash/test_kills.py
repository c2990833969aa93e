"""Whatever is killed, and whenever: nothing is lost, nothing is repeated. `benchmarks/crash.py` plays the whole matrix."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from forks import UPDATES
from runtime_builders import SCHEDULES, schedule
from runtime_runs import Lived

import crash
from paceline.runtime.audit import audit

FORKS = Path(__file__).parent / "forks.py"


@pytest.mark.parametrize("seed", [0, 1])
def test_no_moment_of_a_kill_loses_or_repeats_a_group_in_any_schedule(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, str(FORKS), str(tmp_path), str(seed), "5", *SCHEDULES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    played = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert played.returncode == 0, played.stderr[-4000:]
    assert int(played.stdout) > 10
    for name in SCHEDULES:
        run = tmp_path / name
        assert crash.repeated_or_lost(run, UPDATES) == []
        assert audit(run / "ledger.sqlite").violations == ()
        assert crash.payloads(run, group_size=2) == []


@pytest.mark.slow
def test_a_deterministic_run_whose_processes_are_killed_one_after_the_other_ends_in_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    crash.prepare(tmp_path)
    words = [str(tmp_path / "tiny.toml"), "run.updates=8", "rollout.max_tokens=24"]
    serial, pipelined = ([*words, f"schedule.preset={name}", *crash.PRESETS[name]] for name in ("serial", "pipelined"))
    undisturbed = crash.Process(tmp_path / "undisturbed", serial, tmp_path / "undisturbed.log")
    try:
        kills = [crash.Kill(who, aim, 0.01) for who, aim in (("trainer", "checkpoint"), ("engine", "time"), ("controller", "checkpoint"))]
        game = crash.play(crash.Game("test", "pipelined", pipelined, 8, 4, "0", kills), tmp_path / "run", None, 100.0)
        assert game.faults == []
        assert [kill.hit for kill in game.kills] == ["checkpoint", "time", "checkpoint"]
        assert undisturbed.wait() == 0, undisturbed.said()
        assert crash.bits(tmp_path / "run", 8) == crash.bits(tmp_path / "undisturbed", 8)
    finally:
        undisturbed.end()


async def test_what_the_matrix_counts_finds_a_lost_and_a_repeated_group(tmp_path: Path) -> None:
    assert (await Lived(tmp_path, schedule(checkpoint_every=1)).go()).ok
    assert crash.repeated_or_lost(tmp_path, 3) == []
    assert crash.repeated_or_lost(tmp_path, 4) == ["updates [1, 2, 3] were made, and the last checkpoint holds 3; 4 were asked for"]
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as database:
        database.execute("""UPDATE records SET json = replace(json, '"group":2', '"group":3') WHERE kind = 'Terminal'""")
    assert crash.repeated_or_lost(tmp_path, 3) == ["lost: group 2 has no terminal state", "repeated: group 3 ended 2 times"]
    for segment in (tmp_path / "trajectories").iterdir():
        segment.unlink()
    assert len(crash.payloads(tmp_path, 2)) == 3
