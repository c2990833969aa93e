"""Whatever is killed, and whenever: nothing is lost, nothing is repeated. `benchmarks/crash.py` plays the whole matrix."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from forks import UPDATES
from runtime_builders import SCHEDULES, schedule
from runtime_runs import Lived

import crash
from paceline.core.events import InstanceLost
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader

FORKS = Path(__file__).parent / "forks.py"
RECIPE = Path(__file__).parents[2] / "recipes" / "emulated.toml"


def losses(run: Path) -> int:
    """Engines that were lost within the lives of a run."""
    with closing(LedgerReader(run / "ledger.sqlite")) as reader:
        return sum(isinstance(record.value, InstanceLost) for lineage in reader.lineages() for record in reader.records(lineage.id))


@pytest.mark.parametrize("seed", [0, 1])
def test_no_moment_of_a_kill_loses_or_repeats_a_group_in_any_schedule(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, str(FORKS), str(tmp_path), str(seed), "5", *SCHEDULES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    played = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert played.returncode == 0, played.stderr[-4000:]
    assert int(played.stdout) > 10, "lives that were killed"
    assert sum(losses(tmp_path / name) for name in SCHEDULES) > 5, "workers that were killed within a life"
    for name in SCHEDULES:
        run = tmp_path / name
        assert crash.repeated_or_lost(run, UPDATES) == []
        assert audit(run / "ledger.sqlite").violations == ()
        assert crash.payloads(run, group_size=2) == []


@pytest.mark.slow
def test_a_deterministic_run_whose_processes_are_killed_one_after_the_other_ends_in_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    crash.prepare(tmp_path)
    words = [str(tmp_path / "tiny.toml"), "run.updates=16", "rollout.max_tokens=24"]
    serial, pipelined = ([*words, f"schedule.preset={name}", *crash.PRESETS[name]] for name in ("serial", "pipelined"))
    undisturbed = crash.Process(tmp_path / "undisturbed", serial, tmp_path / "undisturbed.log")
    try:
        kills = [crash.Kill("trainer", "checkpoint", 0.0), crash.Kill("controller", "checkpoint", 0.0), crash.Kill("engine", "time", 0.5)]
        game = crash.play(crash.Game("test", "pipelined", pipelined, 16, 4, "0", kills), tmp_path / "run", None, 100.0)
        assert game.faults == []
        assert [kill.hit for kill in game.kills] == ["checkpoint", "checkpoint", "time"]
        assert undisturbed.wait() == 0, undisturbed.said()
        whole = crash.bits(tmp_path / "undisturbed", 16)
        assert crash.bits(tmp_path / "run", 16) == whole
        model = tmp_path / "run" / "model" / "model.safetensors"
        content = bytearray(model.read_bytes())
        content[-1] ^= 1
        model.write_bytes(content)
        assert crash.bits(tmp_path / "run", 16) != whole, "one bit is seen"
    finally:
        undisturbed.end()


def test_a_signal_to_every_process_of_a_job_lets_the_run_leave_with_a_checkpoint(tmp_path: Path) -> None:
    """As `systemctl stop` and `scancel` send it: to the workers, too, and in any order."""
    run = tmp_path / "run"
    words = [
        *(str(RECIPE), "run.updates=100000", "emulated.time_scale=200", "rollout.instances=1"),
        *("~schedule.version_window", "~schedule.updates_per_publish", "schedule.preset=serial"),
    ]
    process = crash.Process(run, words, tmp_path / "run.log")
    try:
        until = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists():
            assert process.code() is None, process.said()
            assert time.monotonic() < until, process.said()
            time.sleep(0.05)
        for who in reversed(crash.WHO):
            pid = process.victim(who, random.Random(0))
            assert pid is not None, who
            os.kill(pid, signal.SIGTERM)
        assert process.wait() == 130, process.said()
    finally:
        process.end()
    assert "SIGTERM: writing a checkpoint, then leaving" in process.said()
    assert "was lost" not in process.said()
    assert [path.name.split("-")[0] for path in (run / "checkpoints").iterdir()] == ["step"]
    assert audit(run / "ledger.sqlite").violations == ()


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


def test_a_kill_explains_the_end_of_a_run_only_before_it_began_or_over_one_groups_answers() -> None:
    lost = "worker reward-0 was lost while it did score: signal SIGKILL; it is started again\n"
    start = "failed: worker trainer ended while it started: signal SIGKILL (from outside: kill -9)\nwhat went wrong: paceline doctor RUN\n"
    twice = "failed after 1 of 6 updates: group 3: two workers ended over it, the second so: worker reward-0 was lost: signal SIGKILL\n"
    assert crash.explained(1, start, begun=False)
    assert crash.explained(1, lost + twice, begun=True)
    assert not crash.explained(1, start, begun=True), "a worker that is lost later is replaced"
    assert not crash.explained(1, "the trainer is replaced and the run goes on from step-2\n" + start, begun=False), (
        "and in a later life, too"
    )
    assert not crash.explained(1, lost + "failed: rule 1: group 3 ended twice\n", begun=True)
    assert not crash.explained(1, lost + "KeyError: 3\n", begun=False)
    assert not crash.explained(-signal.SIGSEGV, start, begun=False), "nobody kills a controller but the matrix, which knows it"


def test_a_kind_of_worker_that_was_never_killed_is_missing_however_many_kills_there_were() -> None:
    counted = {f"{who}, serial": 50 for who in crash.WHO} | {f"{who}, pipelined": 50 for who in crash.WHO[:3]}
    assert crash.unseen(counted, ["serial", "pipelined"]) == [f"{crash.WHO[3]}, pipelined"]
