"""paceline: reinforcement learning on verifiable rewards for language models, with the schedule as a value."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBPACKAGES = frozenset({"algo", "rewards", "tasks"})


def __getattr__(name: str) -> Any:
    """`paceline.train` and the public subpackages load on first use, so that `import paceline` stays light."""
    if name == "train":
        return importlib.import_module("paceline.cli.jobs").train
    if name in _SUBPACKAGES:
        return importlib.import_module(f"paceline.{name}")
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
