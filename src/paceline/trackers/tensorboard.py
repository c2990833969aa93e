"""TensorBoard event files, one directory per axis: `DIRECTORY/update`, `DIRECTORY/publish`, `DIRECTORY/eval`. Written without torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from paceline.trackers.link import Link


class TensorBoardTracker:
    """A writer per axis, opened at its first row.

    That row says that the axis starts at its step: of what earlier lineages wrote, TensorBoard then shows the steps before it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, EventFileWriter] = {}
        self._lineages: dict[str, Any] = {}

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """One scalar per value, on disk when this returns."""
        writer = self._writers.get(axis) or self._writers.setdefault(axis, EventFileWriter(str(self._directory / axis)))
        now, lineage = time.time(), values.get(f"{axis}/lineage")
        if axis not in self._lineages or self._lineages[axis] != lineage:
            self._lineages[axis] = lineage
            writer.add_event(Event(wall_time=now, step=step, session_log=SessionLog(status=SessionLog.START)))
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=scalars)))
        writer.flush()

    def close(self) -> None:
        """Close the files; idempotent."""
        while self._writers:
            self._writers.popitem()[1].close()


def open_tracker(link: Link) -> TensorBoardTracker:
    """Event files in the link's directory."""
    return TensorBoardTracker(link.directory)
