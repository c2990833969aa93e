"""Weights & Biases, online or offline (`wandb sync` uploads later)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb

from paceline.trackers.link import Link


class WandbTracker:
    """Rows of all axes in one history.

    W&B drops rows whose step is below its last one. So it is never given a step: it numbers rows as they come, and every metric is
    declared once with the step of its axis as its x-axis.
    """

    def __init__(self, run: Any) -> None:
        """run: what `wandb.init` returned."""
        self._run = run
        self._declared: set[str] = set()

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row."""
        for name in values.keys() - self._declared:
            self._run.define_metric(name, step_metric=None if name == f"{axis}/step" else f"{axis}/step")
            self._declared.add(name)
        self._run.log(dict(values))

    def close(self) -> None:
        """Finish the run, which waits for uploads; idempotent."""
        self._run.finish()


def open_tracker(link: Link) -> WandbTracker:
    """The run with the link's id, new or continued. Offline nothing is continued: a file of its own, which expects all rows."""
    return WandbTracker(
        wandb.init(
            project=link.project,
            name=link.name,
            id=link.run,
            resume=None if link.offline else "allow",
            mode="offline" if link.offline else "online",
            dir=str(link.directory),
            config=dict(link.config),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
    )
