"""The one way from the command line to the heavy half: `wire`, imported only when there is work for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from paceline.config.schema import Config
from paceline.types.progress import Progress
from paceline.types.results import AuditReport, EvalResult, Outcome

OnProgress = Callable[[Progress], None]


class Wire(Protocol):
    """What `paceline.cli.wire` offers."""

    def train(self, config: Config, *, resume: bool, on_progress: OnProgress) -> Outcome:
        """Run to the end, a stop or a failure."""

    def evaluate(self, config: Config, model: str, *, on_progress: OnProgress) -> EvalResult:
        """Score a model, or the last model of a run, on `eval.task`."""

    def audit(self, run_dir: Path) -> AuditReport:
        """Check the rules over a run's ledger."""


def wire() -> Wire:
    """Import the composition root, and with it torch and everything else."""
    return cast(Wire, importlib.import_module("paceline.cli.wire"))
