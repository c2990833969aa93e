"""metrics.jsonl: one line per (axis, step), whole and readable at every moment."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.durable import append_line, read_lines
from paceline.types.errors import DataError

_RESERVED = {"axis": str, "step": int, "lineage": int}


class JsonlTracker:
    """Appends `{"axis": "update", "step": 7, "lineage": 1, "reward": 0.5, ...}`, every line at once.

    Each axis counts for itself and ascends. Opening an existing file starts the next lineage: a resumed run may log a step again, and the
    lineage marks which line holds (`read` gives those). A line that a crash cut short is ended, and skipped by `read`. Numbers that JSON
    does not have are the strings "NaN", "Infinity" and "-Infinity", which `float` reads back.
    """

    def __init__(self, path: str | Path, lineage: int | None = None) -> None:
        """Open for appending; the directory must exist. `lineage`: that of the run, later than any in the file."""
        self._path = Path(path)
        before = list(_lines(self._path)) if self._path.exists() else []
        latest = max((line["lineage"] for line in before), default=0)
        self.lineage = latest + 1 if lineage is None else lineage
        """By default 1 for a new file, one more each time it is opened again."""
        if self.lineage <= latest:
            raise DataError(f"{self._path}: lineage {lineage} after lineage {latest}; lineages ascend")
        self.last: dict[str, int] = {line["axis"]: line["step"] for line in _surviving(before)}
        """Last step of each axis that the file holds, earlier lineages included."""
        self._own: dict[str, int] = {}

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line. Raises DataError for a step that does not ascend within this lineage, and for a value that has no place in
        JSON; StorageError when the line does not fit on the disk, which leaves the file as it was."""
        if step <= self._own.get(axis, step - 1):
            raise DataError(f"axis {axis!r}: step {step} after step {self._own[axis]}; steps ascend, one line per step")
        taken = [name for name in _RESERVED if name in values]
        if taken:
            raise DataError(f"metric {taken[0]!r} is a name of the line itself")
        row = {"axis": axis, "step": int(step), "lineage": self.lineage, **{name: plain(name, value) for name, value in values.items()}}
        append_line(self._path, json.dumps(row, allow_nan=False).encode())
        self._own[axis] = self.last[axis] = int(step)

    def close(self) -> None:
        """Nothing is held open."""


def read(path: str | Path) -> list[dict[str, Any]]:
    """The lines that hold, in order of writing: where a later lineage began an axis again at step s, earlier lines of that axis from s on
    are void."""
    return _surviving(list(_lines(Path(path))))


def updates(path: Path, last: float = math.inf) -> Iterator[dict[str, float]]:
    """The metrics of every update up to `last` that holds, in order: values that are finite numbers. Nothing where there is no file."""
    for row in read(path) if path.is_file() else ():
        if row["axis"] == "update" and row["step"] <= last:
            yield {name: value for name, value in row.items() if isinstance(value, (int, float)) and name not in _RESERVED}


def plain(name: str, value: Any) -> Any:
    """A value as JSON has it: numpy scalars and arrays become numbers and lists, non-finite numbers strings. ValueError names the
    metric."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}/{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(name, item) for item in value]
    raise DataError(f"metric {name!r}: {type(value).__name__} has no place in JSON")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, row in read_lines(path):
        if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in _RESERVED.items()):
            raise DataError(f"{path} line {number}: not a line of metrics (axis, step, lineage)")
        yield row


def _surviving(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    begun: dict[str, tuple[int, int]] = {}
    for row in reversed(rows):
        lineage, first = begun.get(row["axis"], (row["lineage"], row["step"]))
        if row["lineage"] == lineage or row["step"] < first:
            kept.append(row)
            begun[row["axis"]] = (row["lineage"], min(first, row["step"]))
    return kept[::-1]
