"""Training runs for the tests of this folder: a controller in a process of its own, with its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

LIMIT_S = 1200.0
"""The only limit of these tests, for every process that they start: one that hangs ends; one on a busy machine has time enough."""
CONTROLLER = """
import sys
from pathlib import Path
from paceline.cli import jobs
from paceline.config.load import load
outcome = jobs.train(load(Path(sys.argv[1]), sys.argv[3:]), resume=sys.argv[2] == "resume", on_progress=lambda progress: None)
assert "torch" not in sys.modules and "transformers" not in sys.modules, "the controller loaded torch"
print(outcome)
sys.exit(0 if outcome.ok else 1)
"""


def environment(**variables: str) -> dict[str, str]:
    """That of this process, with its import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1", **variables}


def train(config: Path, *words: str, resume: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a configuration to its end, whatever that is."""
    command = [sys.executable, "-c", CONTROLLER, str(config), "resume" if resume else "new", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**variables), timeout=LIMIT_S, check=False)


def trained(config: Path, *words: str, resume: bool = False, **variables: str) -> None:
    """Run a configuration to its good end."""
    ended = train(config, *words, resume=resume, **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def rows(run: Path) -> list[dict[str, Any]]:
    """Everything that a run trained on, in order of update, group and sample."""
    found = [row for segment in sorted((run / "trajectories").iterdir()) for row in pq.read_table(segment).to_pylist()]
    return sorted(found, key=lambda row: (row["update"], row["group"], row["sample"]))
