"""What the composition root sees to itself, over workers in this process."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.cli import wire
from paceline.cli.contents import contents
from paceline.config.load import load
from paceline.config.schema import ScheduleConfig
from paceline.core.schedule import Resume, Schedule
from paceline.ports.fakes.pool import InlinePool, InlineWorker
from paceline.ports.pool import WorkerSpec, make_body
from paceline.rewards.worker import JudgeBody
from paceline.runtime.ledger import Ledger
from paceline.runtime.rundir import Origin, RunDir
from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask
from paceline.types.errors import ConfigError, WorkerLost
from paceline.types.progress import Progress
from paceline.types.records import Prompt


class Stuck:
    """A body whose answers never come."""

    def call(self, method: str, *arguments: Any) -> Any:
        return asyncio.Event().wait()

    def tick(self) -> None:
        return None

    def close(self) -> None:
        pass


class StuckPool(InlinePool):
    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> InlineWorker:
        return await super().start(replace(spec, factory=f"{__name__}:Stuck", arguments={}), on_report, on_lost)


def run_of(root: Path, lineages: int, exported: Origin) -> Path:
    """A run directory of so many lineages, of which one exported a model."""
    ledger = Ledger(root / "ledger.sqlite")
    for lineage in range(lineages):
        ledger.open_lineage(Schedule("serial", 2, 2, 2, 2, 1, "all", total_updates=9), Resume(), lineage or None, "now")
    ledger.close()
    (root / ".model").mkdir()
    RunDir(root).seal_model(root / ".model", exported)
    return root


def test_the_model_of_a_run_that_was_continued_and_has_written_no_other_is_told_aloud(tmp_path: Path) -> None:
    said: list[Progress] = []
    label = wire._exported(RunDir(run_of(tmp_path, 3, Origin(2, 40))), said.append)
    assert label == f"{tmp_path} after update 40"
    (progress,) = said
    assert "is the model of lineage 2 after update 40; lineage 3 continued the run and has written none" in progress.message


def test_the_model_that_the_latest_lineage_wrote_needs_no_notice(tmp_path: Path) -> None:
    said: list[Progress] = []
    assert wire._exported(RunDir(run_of(tmp_path, 2, Origin(2, 80))), said.append) == f"{tmp_path} after update 80"
    assert said == []


async def test_a_data_worker_that_is_stuck_is_lost_by_name_after_its_deadline() -> None:
    config = load(None, ["task.name=chain_sum", "pool.answer_timeout_s=0.05"])
    with pytest.raises(WorkerLost, match=r"worker data did not answer load within 0\.05 s and was killed"):
        async with asyncio.timeout(10):
            await wire._load_data(StuckPool(), config, training=True, evaluation=False)


def test_a_configuration_built_in_python_is_refused_like_one_from_a_file(tmp_path: Path) -> None:
    good = load(None, ["task.name=chain_sum", f"run.dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match="whole_updates_per_round"):
        wire.train(good.model_copy(update={"schedule": ScheduleConfig(groups_per_round=12)}))
    assert not (tmp_path / "run").exists(), "before anything is made"


@pytest.mark.parametrize(
    ("step", "directory", "words", "says"),
    [
        (None, None, (), "has no complete checkpoint (complete: none"),
        (3, None, ("step-1", "step-2"), "it has no step-3 (complete: step-1, step-2"),
        (2, "there", ("step-2", "../there"), "there: exists already"),
    ],
)
def test_an_export_without_a_checkpoint_or_into_a_directory_that_is_there_is_refused(
    tmp_path: Path, step: int | None, directory: str | None, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in words:
        (tmp_path / "checkpoints" / name).mkdir()
    config = load(None, ["task.name=chain_sum", f"run.dir={tmp_path}"])
    with pytest.raises(ConfigError, match=re.escape(says)):
        wire.export(config, step, None if directory is None else tmp_path / directory)


def test_an_emulated_run_has_no_weights_to_export(tmp_path: Path) -> None:
    config = load(None, ["task.kind=synthetic", "rollout.engine=emulated", f"run.dir={tmp_path}"])
    with pytest.raises(ConfigError, match="such a run has no weights"):
        wire.export(config, None, None)


def rows_of(*golds: str) -> dict[str, RowTask]:
    prompts = [Prompt(i, i, np.array([1, 2], dtype=np.int32), f"question {i}", gold) for i, gold in enumerate(golds)]
    return {"sums": RowTask(prompts, seed=0, shuffle=False, counts={"read": len(golds)})}


def test_rows_that_were_left_out_are_counted_and_the_first_of_them_named() -> None:
    prompts, why = rows_of("4", "5")["sums"].every_row(), ("rows.jsonl line 2: no text", "rows.jsonl line 4: not JSON", "a third")
    sums = RowTask(prompts, seed=0, shuffle=False, counts={"read": 5, "bad": 3}, skipped=why)
    left_out = [f"left out: {reason}" for reason in why[:2]]
    assert list(wire._counted(sums)) == ["task: 2 prompts of 5 rows; left out: 3 bad", *left_out]
    both = Mixture({"sums": sums, "words": rows_of("a", "b")["sums"]}, None)
    assert list(wire._counted(both)) == [
        "task sums: 50.0% of the prompts; 2 prompts of 5 rows; left out: 3 bad",
        *(f"left out of sums: {reason}" for reason in why[:2]),
        "task words: 50.0% of the prompts; 2 prompts of 2 rows",
    ]


def test_a_dataset_that_changed_is_told_by_its_rows_and_by_its_fingerprint_where_those_were_not_kept(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), rows_of("4", "5", "6")
    assert wire._explained(run, now)["contents of task sums"]() == ""
    for kept in ("{", "[]", '{"other": {}}'):
        run.rows.write_text(kept)
        assert wire._explained(run, now)["contents of task sums"]() == ""
    run.rows.write_text(json.dumps({name: task.digests for name, task in rows_of("4", "7", "6", "8").items()}))
    assert wire._explained(run, now)["contents of task sums"]() == "row 1 changed; row 3 gone"


def test_evaluations_of_other_problems_than_before_are_told(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), rows_of("4", "5", "6")["sums"].digests
    assert wire._other_problems(run, now) == "", "nothing was kept"
    run.rows.write_text(json.dumps({wire.PROBLEMS: now}))
    assert wire._other_problems(run, now) == wire._other_problems(run, {}) == ""
    told = wire._other_problems(run, rows_of("4", "7", "6", "8")["sums"].digests)
    assert told == "evaluations from here on are of other problems than those before: row 1 changed; row 3 new"


def test_evaluating_what_only_pretends_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    words = ["rollout.engine=emulated", "task.kind=synthetic", "eval.task.kind=synthetic"]
    with pytest.raises(ConfigError, match=r"rollout.engine = emulated: its answers are pretended .*nothing to score"):
        wire.evaluate(load(None, words), str(tmp_path))


def test_a_reward_worker_that_is_started_again_refuses_a_function_whose_file_was_changed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def reward(completions): return [1.0 for _ in completions]\n")
    words = ["reward.0.kind=function", f"reward.0.function={file}:reward", "pool.verifiers=1"]
    config = load(Path(__file__).parents[2] / "recipes" / "emulated.toml", words)
    workers = wire._bound(wire.workers_of(config), contents(config, None))
    assert isinstance(make_body(workers.reward[0]), JudgeBody)
    file.write_text("def reward(completions): return [0.0 for _ in completions]\n")
    with pytest.raises(ConfigError, match=r"reward\.0\.function, reward\.py: changed while the run went on"):
        make_body(workers.reward[0])
