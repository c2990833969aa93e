"""`[tracking]`: what is refused before a run starts, and what a run gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import tracking
from paceline.config.load import load
from paceline.runtime.rundir import RunDir
from paceline.types.errors import ConfigError

GYM = "task.name=chain_sum"


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(None, [GYM, "tracking.kinds=['tensorboard']"])
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tensorboard needs tensorboard: pip install 'paceline\[tensorboard\]'"):
        tracking.require(config)
    tracking.require(load(None, [GYM]))


def test_mlflow_without_a_server_needs_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None if name in ("sqlalchemy", "alembic") else object())
    with pytest.raises(ConfigError, match="mlflow needs sqlalchemy, alembic"):
        tracking.require(load(None, [GYM, "tracking.kinds=['mlflow']"]))
    tracking.require(load(None, [GYM, "tracking.kinds=['mlflow']", "tracking.mlflow_server=http://localhost:5000"]))


def test_an_unknown_service_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tracking.kinds.*'tensorboard', 'wandb', 'trackio' or 'mlflow'"):
        load(None, [GYM, "tracking.kinds=['neptune']"])


def test_a_run_has_its_record_and_a_mirror_that_says_what_went_wrong(tmp_path: Path) -> None:
    """The directory of the service cannot be made: the run goes on, its rows are in the record."""
    (tmp_path / "run").mkdir()
    config = load(None, [GYM, f"run.dir={tmp_path / 'run'}", "tracking.kinds=['tensorboard']"])
    rundir, said = RunDir(tmp_path / "run"), []
    rundir.tracking.mkdir()
    (rundir.tracking / "tensorboard").write_text("in the way")
    parts = tracking.trackers(config, rundir, 1, said.append)
    for part in parts:
        part.log("update", 1, {"reward": 0.5})
    for part in parts:
        part.close()
    assert json.loads(rundir.metrics.read_text())["reward"] == 0.5
    assert said[0].startswith("tensorboard: FileExistsError")
    assert said[1].startswith("tensorboard: 1 rows are not sent")
