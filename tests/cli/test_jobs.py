"""What the command line's jobs see to themselves."""

import re
from pathlib import Path

import pytest

from paceline.cli import jobs
from paceline.config.load import load
from paceline.config.schema import ScheduleConfig
from paceline.core.schedule import Resume, Schedule
from paceline.runtime.ledger import Ledger
from paceline.runtime.rundir import Origin, RunDir
from paceline.types.errors import ConfigError
from paceline.types.progress import Progress


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
    label = jobs._exported(RunDir(run_of(tmp_path, 3, Origin(2, 40))), said.append)
    assert label == f"{tmp_path} after update 40"
    (progress,) = said
    assert "is the model of lineage 2 after update 40; lineage 3 continued the run and has written none" in progress.message


def test_the_model_that_the_latest_lineage_wrote_needs_no_notice(tmp_path: Path) -> None:
    said: list[Progress] = []
    assert jobs._exported(RunDir(run_of(tmp_path, 2, Origin(2, 80))), said.append) == f"{tmp_path} after update 80"
    assert said == []


def test_a_configuration_built_in_python_is_refused_like_one_from_a_file(tmp_path: Path) -> None:
    good = load(None, ["task.name=chain_sum", f"run.dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match="whole_updates_per_round"):
        jobs.train(good.model_copy(update={"schedule": ScheduleConfig(groups_per_round=12)}))
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
        jobs.export(config, step, None if directory is None else tmp_path / directory)


def test_an_emulated_run_has_no_weights_to_export(tmp_path: Path) -> None:
    config = load(None, ["task.kind=synthetic", "rollout.engine=emulated", f"run.dir={tmp_path}"])
    with pytest.raises(ConfigError, match="such a run has no weights"):
        jobs.export(config, None, None)


def test_evaluating_what_only_pretends_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    words = ["rollout.engine=emulated", "task.kind=synthetic", "eval.task.kind=synthetic"]
    with pytest.raises(ConfigError, match=r"rollout.engine = emulated: its answers are pretended .*nothing to score"):
        jobs.evaluate(load(None, words), str(tmp_path))


def test_what_several_workers_warn_of_is_told_once_by_the_first() -> None:
    early: list[str] = []
    later: list[str] = []
    warnings = jobs._Warnings(early.append)
    warnings("data", "no compiler")
    warnings.tell = later.append
    warnings("rollout-0", "no compiler")
    warnings("trainer", "another")
    assert (early, later) == (["data: no compiler"], ["trainer: another"])
