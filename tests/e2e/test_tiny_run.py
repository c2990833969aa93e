"""Whole runs on a tiny random model: real processes, the real engine, trainer, rewards and tasks."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tests.e2e.runs import rows, train, trained

from paceline.cli import jobs
from paceline.config.load import load
from paceline.models.tiny import write_tiny
from paceline.runtime.audit import audit

pytestmark = pytest.mark.timeout(0)  # every process has its own limit: `runs.LIMIT_S`

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


NAMES = ("update", "group", "sample", "row", "prompt_ids", "ids", "reward", "version")
PIPELINED = (
    *("schedule.preset=pipelined", "schedule.groups_per_dispatch=1", "schedule.in_order=false", "schedule.frontier=2", "rollout.slots=3"),
    *("tracking.kinds=['tensorboard']", "tracking.names=['trl']"),
)


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """A serial run of four updates, evaluated."""
    run = place / "whole"
    trained(place / "evaluated.toml", f"run.dir={run}", "run.updates=4")
    return run


@pytest.mark.parametrize("words", [(), PIPELINED], ids=["serial", "pipelined"])
def test_a_resumed_run_trains_the_same_trajectories_to_the_same_weights_as_an_uninterrupted_one(
    place: Path, whole: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The uninterrupted one is serial in both cases: in processes, too, pipelined trains the tokens of serial to the weights of serial."""
    halves = tmp_path / "halves"
    for updates, resume, workers in ((2, False, ()), (4, True, ("rollout.instances=2", "pool.reward_workers=2"))):
        trained(place / "plain.toml", f"run.dir={halves}", f"run.updates={updates}", *words, *workers, resume=resume)
    a, b = rows(whole), rows(halves)
    assert [[row[name] for name in NAMES] for row in a] == [[row[name] for name in NAMES] for row in b]
    first, second = (load_file(run / "model" / "model.safetensors") for run in (whole, halves))
    assert max(abs(first[name] - second[name]).max() for name in first) < 1e-9
    assert audit(halves / "ledger.sqlite").violations == ()
    if words:
        shown = tensorboard(halves)
        assert [event.step for event in shown.Scalars("train/reward")] == [1, 2, 3, 4], "a resume continues the tracker"
        assert [event.value for event in shown.Scalars("update/lineage")] == [1, 1, 2, 2]


def tensorboard(run: Path) -> Any:
    """What TensorBoard shows of a run's updates."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tracking" / "tensorboard" / "update")).Reload()


def test_a_run_goes_through_its_prompts_in_order_changes_the_weights_and_evaluates_them(place: Path, whole: Path) -> None:
    found = rows(whole)
    assert [row["group"] for row in found] == [group for group in range(8) for _ in range(4)], "each prompt once, epochs in a row"
    assert sorted({row["row"] for row in found[: 6 * 4]}) == list(range(6))
    start, end = load_file(place / "model" / "model.safetensors"), load_file(whole / "model" / "model.safetensors")
    assert max(abs(end[name] - start[name]).max() for name in end) > 1e-4, "training changed the weights"
    evaluations = [json.loads(line) for line in (whole / "eval.jsonl").read_text().splitlines()]
    assert [(line["update"], line["problems"]) for line in evaluations] == [(0, 6), (2, 6), (4, 6)]
    report = audit(whole / "ledger.sqlite")
    assert (report.violations, report.notes) == ((), ())


def test_a_checkpoint_exported_is_the_model_that_the_run_wrote_after_the_same_update(whole: Path, tmp_path: Path) -> None:
    checkpoint, model = jobs.export(load(whole / "config.toml"), None, tmp_path / "model")
    assert (checkpoint.name, model) == ("step-4", tmp_path / "model")
    written = {path.name: path.read_bytes() for path in (whole / "model").iterdir()}
    assert {path.name: path.read_bytes() for path in model.iterdir()} == written, "config, tokenizer and origin included"


def test_engine_and_trainer_agree_and_every_metric_is_documented(whole: Path) -> None:
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert max(line["logprob_gap/max"] for line in metrics if line["axis"] == "update") < 1e-9
    assert {name for line in metrics for name in line if not documented(name)} == {"axis", "step"}


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
    ended = train(place / "plain.toml", *words)
    assert time.time() - float((place / "reward.raised").read_text()) < 10, "the process lives on"
    assert ended.returncode == 1, ended.stderr
    assert "reward length raised ValueError on row 2" in ended.stdout
    assert [path.name for path in (place / "failing" / "checkpoints").iterdir()] == ["step-1"]
    assert children_of(place / "failing") == []


def children_of(run: Path) -> list[int]:
    """Processes that write a log of this run."""
    logs = str(run / "logs")
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(descriptor).startswith(logs):
                found.append(int(descriptor.parts[2]))
        except OSError:
            continue
    return found


def test_a_mixture_with_fewer_rows_than_an_update_trains(place: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"prompt": "only one", "answer": "x"}))
    words = (f"run.dir={tmp_path / 'run'}", "task.weight=1.0", "task.limit=2",
             f"mix.0={{kind='file', path='{few}', gold_column='answer', weight=1.0}}", "schedule.groups_per_update=4")  # fmt: skip
    trained(place / "plain.toml", *words, "run.updates=2")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["axis"] == "update"]
    assert len(updates) == 2
    assert all({"reward/rows", "reward/few"} <= line.keys() and line["update/groups"] == 4 for line in updates)
