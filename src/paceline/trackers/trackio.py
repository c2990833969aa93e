"""trackio: a local dashboard (`trackio show`), in the place where trackio keeps all projects."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, redirect_stdout
from typing import Any

import trackio

from paceline.trackers.link import Link


class TrackioTracker:
    """Rows of all axes in one history, numbered by trackio as they come; a metric's x-axis is `AXIS/step`."""

    def __init__(self, run: Any) -> None:
        """run: what `trackio.init` returned."""
        self._run = run
        self._closed = False

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row."""
        self._run.log(dict(values))

    def close(self) -> None:
        """Wait until all is stored; idempotent."""
        if not self._closed:
            self._closed = True
            with _aside():
                self._run.finish()


def open_tracker(link: Link) -> TrackioTracker:
    """The run, new or continued: trackio knows runs by their names, so the name carries the beginning of the id."""
    name = f"{link.name}-{link.run[:8]}"
    with _aside():
        run = trackio.init(
            project=link.project, name=name, resume="allow", config=dict(link.config), embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
    return TrackioTracker(run)


def _aside() -> AbstractContextManager[Any]:
    """trackio prints what it does; the standard output of a run has nothing but its updates."""
    return redirect_stdout(sys.stderr)
