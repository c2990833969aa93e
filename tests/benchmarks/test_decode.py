"""What the benchmark of decoding says of the rates that it measured, and when it measures again."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import decode
from evidence import sources
from serving import Kept

OURS = {
    "tokens_per_s": {"1": 80.0, "64": 1000.0},
    "model_alone_ms": {"1": 9.0, "64": 50.0},
    "longest_step_to_median": {"1": 2.0, "64": 3.0},
    "parameters": 10**8,
    "weight_bytes": 2 * 10**8,
    "read_bytes_per_s": 4e10,
    "flop_per_s": 8e11,
}
THEIRS = {"tokens_per_s": {"1": 32.0, "64": 500.0}}


def test_shares_are_of_the_bandwidth_at_batch_one_and_of_the_products_at_64_and_targets_of_the_medians() -> None:
    jobs = {side: decode.Job(side, "bfloat16", 2, 8, (1, 64)) for side in ("paceline", "transformers")}
    cell = decode._cell({jobs["paceline"]: [OURS], jobs["transformers"]: [THEIRS]}, "bfloat16", 2)
    one, many = (cell["batches"][batch] for batch in ("1", "64"))
    assert one["share_of_limit"]["median"] == pytest.approx(80 / 200), "a step reads 0.2 GB at 40 GB/s"
    assert many["share_of_limit"]["median"] == pytest.approx(1000 / 4000), "64 rows are 12.8 GFLOP at 800 GFLOP/s"
    assert decode._verdicts(cell) == {"batch 1: at least 2 times transformers": True, "batch 64: at least 3 times transformers": False}


def test_a_result_is_kept_until_what_it_depends_on_changes(tmp_path: Path) -> None:
    made: list[int] = []

    def measure() -> int:
        made.append(len(made))
        return len(made)

    assert [Kept(tmp_path / "kept.jsonl").once({"side": side}, measure) for side in ("a", "b", "a")] == [1, 2, 1]


def test_code_that_was_changed_is_other_code_whether_it_is_committed_or_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "src").mkdir()
    found = []
    for name, text in (("src/a.py", "1"), ("src/a.py", "2"), ("README.md", "words"), ("src/b.py", "1")):
        (tmp_path / name).write_text(text)
        found.append(sources(tmp_path))
    assert found[1] == found[2]
    assert len(set(found)) == 3
