"""MLflow: a tracking server, or a database in the run directory."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from paceline.durable import whole
from paceline.trackers.link import Link

RUN_TAG = "paceline.run"
"""Tag by which a run is found again."""
AT_ONCE = 1000
"""Metrics that one call may carry."""
REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
"""Errors of a row itself, a name of more than 250 characters say, which another attempt would not mend."""
_FORBIDDEN = re.compile(r"[^\w .:/-]", re.ASCII)


class MlflowTracker:
    """Every metric has its own steps, those of its axis. Characters that MLflow forbids in names become `_` (`pass@4`: `pass_4`)."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._closed = False

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Store one row."""
        now = time.time_ns() // 1_000_000
        metrics = [Metric(_FORBIDDEN.sub("_", name), value, now, step) for name, value in values.items()]
        try:
            for first in range(0, len(metrics), AT_ONCE):
                self._client.log_batch(self._run_id, metrics[first : first + AT_ONCE])
        except MlflowException as error:
            if error.error_code in REFUSED:
                raise ValueError(str(error)) from error
            raise

    def close(self) -> None:
        """Mark the run as finished; idempotent."""
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self._run_id)


def open_tracker(link: Link) -> MlflowTracker:
    """The run with the link's id as a tag, new or continued."""
    client = MlflowClient(link.server or _database(link.directory.resolve() / "mlflow.db"))
    found = client.get_experiment_by_name(link.project)
    experiment = found.experiment_id if found else client.create_experiment(link.project)
    runs = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{link.run}'")
    if runs:
        run = runs[0].info.run_id
        client.update_run(run, status="RUNNING")
        return MlflowTracker(client, run)
    run = client.create_run(experiment, run_name=link.name, tags={RUN_TAG: link.run}).info.run_id
    for name, value in _flat(link.config):
        client.log_param(run, _FORBIDDEN.sub("_", name), value)
    return MlflowTracker(client, run)


def _database(path: Path) -> str:
    """Address of a database, which is made where there is none: whole or not at all, since MLflow never opens one that a crash left half
    made, and takes seconds to make it."""
    if not path.exists():
        with whole(path) as aside:
            MlflowClient(f"sqlite:///{aside}").search_experiments(max_results=1)
    return f"sqlite:///{path}"


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every value of a nested configuration by its dotted key, as text that MLflow takes."""
    flat = []
    for key, value in config.items():
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", str(value)[:500])]
    return flat
