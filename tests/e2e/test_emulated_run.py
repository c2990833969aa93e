"""The real runtime over emulated workers: processes, sockets, ledger and audit are real; engines and trainer pretend, in scaled time."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from paceline.cli import jobs
from paceline.config.load import load
from paceline.runtime.notices import read as read_notices

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import scale

SMALL = [
    "--instances", "4", "--groups", "32", "--samples", "4", "--update", "4", "--mean", "240", "--most", "3000", "--slots", "16",
    "--warmup", "1", "--periods", "1", "--time-scale", "60", "--keep",
]  # fmt: skip


@pytest.mark.parametrize("schedule", ["keep", "multiversion"])
def test_versions_overlap_on_emulated_workers_with_a_clean_audit(schedule: str, tmp_path: Path) -> None:
    args = scale.parse([*SMALL, "--schedules", schedule, "--runs", str(tmp_path)])
    found: dict[str, Any] = {}
    scale.measure(args, found)
    row = found["schedules"][schedule]
    assert row["audit"]["violations"] == []
    assert row["prefilled_for_migration"] == 0
    assert 0 < row["staleness_max"] <= 2
    assert row["controller"]["events"] > 32 * 4
    trained = [line for segment in (tmp_path / schedule / "trajectories").iterdir() for line in pq.read_table(segment).to_pylist()]
    assert len({(line["group"], line["sample"]) for line in trained}) == len(trained)
    assert len({len(line["ids"]) for line in trained}) > 100
    mixed = sum(len(set(line["version"])) > 1 for line in trained)
    assert (mixed == 0) == (schedule == "multiversion")


def test_a_reward_that_raised_is_mended_and_the_run_goes_on_with_it(tmp_path: Path) -> None:
    reward, raising = tmp_path / "reward.py", "    if len(calls.read_text()) > 40:\n        raise ValueError('no')\n"
    source = f"from pathlib import Path\n\ncalls = Path({str(tmp_path / 'calls')!r})\n\n\ndef graded(completions, **columns):\n"
    ends = "    with calls.open('a') as file:\n        file.write('.')\n    return [float(i % 2) for i in range(len(completions))]\n"
    reward.write_text(source + ends.replace("    return", f"{raising}    return"))
    costs = {"step_seconds": 0.01, "train_seconds": 1e-6, "load_seconds": 0.1, "publish_seconds": 0.1}
    words = scale.overrides("serial", scale.parse([*SMALL, "--runs", str(tmp_path)]), costs)
    config = load(
        None, [*words, "run.updates=16", "run.checkpoint_every=8", "reward.0.kind=function", f"reward.0.function={reward}:graded"]
    )
    failed = jobs.train(config)
    assert not failed.ok
    assert "reward graded raised ValueError" in failed.reason
    assert [notice.message for notice in read_notices(tmp_path / "serial" / "notices.jsonl")] == ["task: 32 prompts of 32 rows"]
    reward.write_text(source + ends)
    said: list[str] = []
    assert jobs.train(config, resume=True, on_progress=lambda progress: said.append(progress.message)).ok
    assert "rewards from here on are those of other files than before: reward.0.function, reward.py" in said
    assert jobs.audit(tmp_path / "serial").violations == ()


def test_lengths_are_the_same_under_every_schedule_and_an_evaluation_runs_beside_training(tmp_path: Path) -> None:
    costs = {"step_seconds": 0.01, "train_seconds": 1e-6, "load_seconds": 0.1, "publish_seconds": 0.1}
    lengths = []
    for name in ("serial", "pipelined"):
        args = scale.parse([*SMALL, "--runs", str(tmp_path)])
        config = load(
            None, [*scale.overrides(name, args, costs), "run.updates=8", "eval.task.kind=synthetic", "eval.task.size=4", "eval.every=8"]
        )
        assert jobs.train(config).ok
        trained = [line for segment in (tmp_path / name / "trajectories").iterdir() for line in pq.read_table(segment).to_pylist()]
        lengths.append({(line["group"], line["sample"]): (len(line["ids"]), line["reward"]) for line in trained})
        evaluations = [json.loads(line) for line in (tmp_path / name / "eval.jsonl").read_text().splitlines()]
        assert [line["update"] for line in evaluations] == [0, 8]
    assert lengths[0] == lengths[1]
    assert {reward for _, reward in lengths[0].values()} == {0.0, 1.0}
