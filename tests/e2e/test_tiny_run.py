"""Whole runs on a tiny random model: real processes, the real engine, trainer, rewards and tasks."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from paceline.models.tiny import write_tiny

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "metrics.md"


def documented(name: str) -> bool:
    """Whether the guide's tables have the metric. `a/mean`, `/max` stands for both; words in capitals and `*` stand for anything."""
    level = name.removesuffix("/mean").removesuffix("/max") if name.startswith(("groups/", "trajectories/", "versions/")) else name
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        last = ""
        for known in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
            stem = last.rpartition("/")[0] or last
            last = stem + known if known.startswith("/") else known
            pattern = re.sub(r"[A-Z]+|\\\*", ".+", re.escape(last))
            if re.fullmatch(pattern, name) or re.fullmatch(pattern, level):
                return True
    return False


CONFIG = """
[model]
path = "{model}"
dtype = "float64"
[task]
kind = "file"
path = "{rows}"
gold_column = "answer"
[[reward]]
kind = "function"
function = "{reward}:length"
[rollout]
slots = 8
max_prompt_tokens = 100
max_tokens = 6
[schedule]
group_size = 4
groups_per_update = 2
in_order = true
[trainer]
learning_rate = 1e-3
warmup_updates = 0
[pool]
rollout_threads = 1
trainer_threads = 1
"""
EVALUATION = """
[eval]
every = 2
samples = 2
[eval.task]
kind = "file"
path = "{held_out}"
gold_column = "answer"
"""
REWARD = """
import time
from pathlib import Path

def length(completions, gold, **columns):
    if "fails" in str(gold):
        Path(__file__).with_suffix(".raised").write_text(str(time.time()))
        raise ValueError("no reward for this one")
    return [float(len(text) % 3 == 0) for text in completions]
"""
CONTROLLER = """
import sys
from pathlib import Path
from paceline.cli import wire
from paceline.config.load import load
outcome = wire.train(load(Path(sys.argv[1]), sys.argv[3:]), resume=sys.argv[2] == "resume", on_progress=lambda progress: None)
assert "torch" not in sys.modules and "transformers" not in sys.modules, "the controller loaded torch"
print(outcome)
sys.exit(0 if outcome.ok else 1)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    write_tiny(root / "model")
    (root / "reward.py").write_text(REWARD)
    for name, start in (("rows", 0), ("held_out", 100)):
        lines = [json.dumps({"prompt": f"say hello {i}", "answer": str(i)}) for i in range(start, start + 6)]
        (root / f"{name}.jsonl").write_text("\n".join(lines))
    paths = {
        "model": root / "model",
        "rows": root / "rows.jsonl",
        "held_out": root / "held_out.jsonl",
        "reward": root / "reward.py",
    }
    (root / "plain.toml").write_text(CONFIG.format(**paths))
    (root / "evaluated.toml").write_text((CONFIG + EVALUATION).format(**paths))
    return root


def train(place: Path, config: str, *words: str, resume: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CONTROLLER, str(place / config), "resume" if resume else "new", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def rows(run: Path) -> list[dict[str, Any]]:
    found = [row for segment in sorted((run / "trajectories").iterdir()) for row in pq.read_table(segment).to_pylist()]
    return sorted(found, key=lambda row: (row["update"], row["group"], row["sample"]))


@pytest.mark.parametrize("words", [(), ("schedule.preset=pipelined", "schedule.groups_per_dispatch=1")], ids=["serial", "pipelined"])
def test_a_resumed_run_trains_the_same_trajectories_to_the_same_weights_as_an_uninterrupted_one(
    place: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    whole = train(place, "evaluated.toml", f"run.dir={tmp_path / 'whole'}", "run.updates=4", *words)
    assert whole.returncode == 0, whole.stderr
    for updates, resume, workers in ((2, False, ()), (4, True, ("rollout.instances=2", "pool.reward_workers=2"))):
        half = train(place, "plain.toml", f"run.dir={tmp_path / 'halves'}", f"run.updates={updates}", *words, *workers, resume=resume)
        assert half.returncode == 0, half.stderr
    a, b = rows(tmp_path / "whole"), rows(tmp_path / "halves")
    names = ("update", "group", "sample", "row", "prompt_ids", "ids", "reward", "version")
    assert [[row[name] for name in names] for row in a] == [[row[name] for name in names] for row in b]
    assert [row["group"] for row in a] == [group for group in range(8) for _ in range(4)], "each prompt once, epochs in a row"
    assert sorted({row["row"] for row in a[: 6 * 4]}) == list(range(6))
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "halves"))
    start = load_file(place / "model" / "model.safetensors")
    assert max(abs(first[name] - second[name]).max() for name in first) < 1e-9
    assert max(abs(first[name] - start[name]).max() for name in first) > 1e-4, "training changed the weights"
    evaluations = [json.loads(line) for line in (tmp_path / "whole" / "eval.jsonl").read_text().splitlines()]
    assert [(line["update"], line["problems"]) for line in evaluations] == [(0, 6), (2, 6), (4, 6)]
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["logprob_gap/max"] for line in metrics if line["axis"] == "update") < 1e-9
    assert {name for line in metrics for name in line if not documented(name)} == {"axis", "step"}
    for name in ("whole", "halves"):
        audited = subprocess.run(
            [sys.executable, "-m", "paceline.cli.main", "audit", str(tmp_path / name)],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60, check=False,
        )  # fmt: skip
        assert audited.returncode == 0, audited.stdout


def test_in_processes_too_pipelined_trains_the_tokens_of_serial_to_the_weights_of_serial(place: Path) -> None:
    found = {}
    for preset, words in {
        "serial": ("schedule.in_order=false",),
        "pipelined": ("schedule.in_order=false", "schedule.groups_per_dispatch=1", "schedule.frontier=2", "rollout.slots=3"),
    }.items():
        run = place / f"as-{preset}"
        ended = train(place, "plain.toml", f"run.dir={run}", "run.updates=3", f"schedule.preset={preset}", *words)
        assert ended.returncode == 0, ended.stderr
        found[preset] = (rows(run), load_file(run / "model" / "model.safetensors"))
    (a, first), (b, second) = found.values()
    names = ("update", "group", "sample", "prompt_ids", "ids", "reward", "version")
    assert [[row[name] for name in names] for row in a] == [[row[name] for name in names] for row in b]
    assert max(abs(first[name] - second[name]).max() for name in first) < 1e-9


def test_a_reward_that_raises_ends_the_run_soon_by_name_and_leaves_no_child(place: Path) -> None:
    lines = [json.dumps({"prompt": f"say hello {i}", "answer": "fails" if i >= 2 else "fine"}) for i in range(6)]
    (place / "failing.jsonl").write_text("\n".join(lines))
    words = (
        f"run.dir={place / 'failing'}",
        f"task.path={place / 'failing.jsonl'}",
        "task.shuffle=false",
        "run.updates=3",
        "run.checkpoint_every=1",
    )
    ended = train(place, "plain.toml", *words)
    assert time.time() - float((place / "reward.raised").read_text()) < 10, "the process lives on"
    assert ended.returncode == 1, ended.stderr
    assert "reward length raised ValueError on row 2" in ended.stdout
    assert [path.name for path in (place / "failing" / "checkpoints").iterdir()] == ["step-1"]
    assert not [process for process in children_of(place / "failing")]


def children_of(run: Path) -> list[int]:
    """Processes that write a log of this run."""
    time.sleep(0.1)
    logs = str(run / "logs")
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(descriptor).startswith(logs):
                found.append(int(descriptor.parts[2]))
        except OSError:
            continue
    return found


def test_a_mixture_with_fewer_rows_than_an_update_trains_and_a_resume_continues_its_tracker(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"prompt": "only one", "answer": "x"}))
    words = (f"run.dir={tmp_path / 'run'}", "tracking.kinds=['tensorboard']", "tracking.names=['trl']", "task.weight=1.0", "task.limit=2",
             f"mix.0={{kind='file', path='{few}', gold_column='answer', weight=1.0}}", "schedule.groups_per_update=4")  # fmt: skip
    for updates, resume in ((1, False), (2, True)):
        done = train(place, "plain.toml", *words, f"run.updates={updates}", resume=resume)
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["axis"] == "update"]
    assert all({"reward/rows", "reward/few"} <= line.keys() and line["update/groups"] == 4 for line in updates)
    shown = EventAccumulator(str(tmp_path / "run" / "tracking" / "tensorboard" / "update")).Reload()
    assert [event.step for event in shown.Scalars("train/reward")] == [1, 2]
    assert [event.value for event in shown.Scalars("update/lineage")] == [1, 2]
