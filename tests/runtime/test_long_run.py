"""What a long run holds on to: nothing that grows with its length but its record on disk."""

import tracemalloc
from pathlib import Path

import pytest
from runtime_builders import schedule, scheduled
from runtime_runs import Run

from paceline.runtime.audit import audit
from paceline.types.progress import Progress


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


async def lasted(root: Path, name: str, updates: int) -> tuple[int, int, int]:
    """Bytes of the last checkpoint, checkpoints kept, and most versions in the store at a time, of a run of so many updates."""
    stored = [0]

    def watch(progress: Progress) -> None:
        stored.append(len(list(run.rundir.weights.iterdir())))

    run = Run(root / str(updates), scheduled(name, total_updates=updates, checkpoint_every=1), watch=watch)
    assert (await run.go()).ok
    board = run.session.board
    held = [*board.prompts, *board.trajectories, *board.scored]
    assert held == [], "payloads leave with their group's terminal state"
    kept = sorted(run.rundir.checkpoints.iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    return size(kept[-1]), len(kept), max(stored)


@pytest.mark.parametrize("name", ["serial", "streaming-keep", "multiversion"])
async def test_a_run_ten_times_as_long_holds_no_more_in_memory_in_its_store_and_in_a_checkpoint(name: str, tmp_path: Path) -> None:
    short, long = [await lasted(tmp_path, name, updates) for updates in (3, 30)]
    assert abs(long[0] - short[0]) < 50, "a checkpoint holds weights, counters and the numbers of groups under way: no history"
    assert long[1] == short[1] == 2, "keep_last"
    assert long[2] <= short[2] + 1


async def test_an_audit_of_a_run_ten_times_as_long_takes_no_more_memory(tmp_path: Path) -> None:
    peaks = []
    for number, updates in enumerate((3, 3, 30)):  # the first fills what is kept for good
        assert (await Run(tmp_path / str(number), schedule(total_updates=updates, checkpoint_every=1)).go()).ok
        tracemalloc.start()
        assert audit(tmp_path / str(number) / "ledger.sqlite").violations == ()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000, "bytes; the records of the long run take half a million"
