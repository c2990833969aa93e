"""The one way from the command line to the heavy half: modules that are imported only when there is work for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from paceline.config.schema import Config
from paceline.types.progress import Progress
from paceline.types.results import AuditReport, EvalResult, Outcome

OnProgress = Callable[[Progress], None]


class Jobs(Protocol):
    """What `paceline.cli.jobs` offers."""

    def train(self, config: Config, *, resume: bool, on_progress: OnProgress) -> Outcome:
        """Run to the end, a stop or a failure."""

    def evaluate(self, config: Config, model: str, *, on_progress: OnProgress) -> EvalResult:
        """Score a model, or the last model of a run, on `eval.task`."""

    def export(self, config: Config, step: int | None, directory: Path | None) -> tuple[Path, Path]:
        """Write the weights of a checkpoint as a Hugging Face directory; checkpoint and directory."""

    def audit(self, run_dir: Path) -> AuditReport:
        """Check the rules over a run's ledger."""


class Checks(Protocol):
    """What `paceline.cli.checks` offers."""

    def check_data(self, config: Config) -> None:
        """Raise for a task's file that cannot be read or lacks a column."""

    def check_rewards(self, config: Config) -> None:
        """Raise for a reward function that is not where the configuration says."""


class Reports(Protocol):
    """What `paceline.cli.report` offers."""

    def report(self, run: Path, output: Path | None, samples: int) -> list[str]:
        """Write the page of a run; what to say of it."""

    def doctor(self, run: Path) -> tuple[list[str], bool]:
        """What is wrong with a run, in lines; whether nothing is."""


def jobs() -> Jobs:
    """Import the composition root and the runtime. No torch: that is for workers."""
    return cast(Jobs, importlib.import_module("paceline.cli.jobs"))


def checks() -> Checks:
    """Import what reads rows and reward functions: pyarrow, no torch."""
    return cast(Checks, importlib.import_module("paceline.cli.checks"))


def reports() -> Reports:
    """Import what reads runs: pyarrow, templates, the runtime's files. No torch."""
    return cast(Reports, importlib.import_module("paceline.cli.report"))
