"""What the benchmark of long runs says of a slope: that of a line exactly, and of noise that it may be none."""

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from long_run import disk, memory, slope, verdicts

UPDATES = [float(update) for update in range(500, 2000, 5)]


def test_a_line_has_its_slope_and_nothing_else() -> None:
    found = slope(UPDATES, [3e6 + 700 * update for update in UPDATES])
    assert abs(found["per_update"] - 700) < 1e-6
    assert found["high"] - found["low"] < 1e-5


def test_noise_that_drifts_slowly_is_not_taken_for_growth_and_growth_is_found_in_it() -> None:
    steps = np.random.default_rng(3).normal(size=len(UPDATES))
    noise = 1e5 * np.convolve(steps, np.ones(8) / 8, mode="same")
    flat, grown = slope(UPDATES, noise.tolist()), slope(UPDATES, [n + 4096 * update for n, update in zip(noise, UPDATES, strict=True)])
    assert flat["low"] < 0 < flat["high"]
    assert grown["low"] > 3000
    assert verdicts({"rss/controller": flat, "rss/trainer": grown, "disk/ledger": grown}) == {"rss/controller": True, "rss/trainer": False}


def test_bytes_of_a_run_directory_are_counted_by_part_and_memory_of_a_process_is_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-1" / "a").write_bytes(b"12345")
    (tmp_path / "ledger.sqlite").write_bytes(b"123")
    (tmp_path / "ledger.sqlite-wal").write_bytes(b"12")
    assert disk(tmp_path) == {"checkpoints": 5, "ledger": 5}
    found = memory(os.getpid())
    assert 0 < found["private"] <= found["pss"] <= found["rss"]
