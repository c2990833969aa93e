"""From `[tracking]` to trackers: metrics.jsonl always, and one mirror of it per service. A service's package is imported in its thread."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from paceline.config.schema import Config
from paceline.ports.data import Tracker
from paceline.runtime.rundir import RunDir
from paceline.trackers.jsonl import JsonlTracker
from paceline.trackers.link import Link
from paceline.trackers.mirror import Mirror
from paceline.types.errors import ConfigError

_DATABASE = ("sqlalchemy", "alembic")
"""What MLflow needs to keep runs itself."""


def require(config: Config) -> None:
    """Raise ConfigError, before anything is started, when a package that `[tracking]` needs is not installed."""
    for kind in config.tracking.kinds:
        needed = (kind, *(_DATABASE if kind == "mlflow" and config.tracking.mlflow_server is None else ()))
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise ConfigError(f"tracking.kinds: {kind} needs {', '.join(missing)}: pip install 'paceline[{kind}]'")


def trackers(config: Config, rundir: RunDir, lineage: int, say: Callable[[str], None]) -> list[Tracker]:
    """The record first, then its mirrors. say: tells the user what goes wrong with a service."""
    rundir.tracking.mkdir(exist_ok=True)
    return [JsonlTracker(rundir.metrics, lineage), *(_mirror(config, kind, rundir, say) for kind in config.tracking.kinds)]


def _mirror(config: Config, kind: str, rundir: RunDir, say: Callable[[str], None]) -> Mirror:
    """Of what W&B keeps offline each upload takes the place of the one before: so each lineage has its file with all rows."""
    opened = partial(_open, config, kind, rundir.tracking / kind)
    afresh = kind == "wandb" and config.tracking.offline
    return Mirror(kind, rundir.metrics, opened, rundir.tracking, say, config.tracking.names, afresh=afresh)


def _open(config: Config, kind: str, directory: Path, run: str) -> Tracker:
    directory.mkdir(exist_ok=True)
    tracking = config.tracking
    link = Link(
        run=run,
        project=tracking.project,
        name=tracking.name or Path(config.run.dir).resolve().name,
        directory=directory,
        config=config.model_dump(mode="json", exclude_none=True),
        offline=tracking.offline,
        server=tracking.mlflow_server or "",
    )
    tracker: Tracker = importlib.import_module(f"paceline.trackers.{kind}").open_tracker(link)
    return tracker
