"""Trajectories on disk: one Parquet segment per dispatch, sealed whole before the dispatch is in the ledger."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.core.commands import Dispatch
from paceline.runtime.rundir import write_durably
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION, ScoredGroup

SCHEMA = pa.schema(
    [
        ("group", pa.int64()), ("sample", pa.int32()), ("attempt", pa.int32()), ("update", pa.int64()), ("row", pa.int64()),
        ("task", pa.string()), ("prompt", pa.string()), ("gold", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())), ("ids", pa.list_(pa.int32())), ("logprob", pa.list_(pa.float32())),
        ("logprob_kept", pa.list_(pa.float32())), ("version", pa.list_(pa.int32())),
        ("finish", pa.string()), ("text", pa.string()), ("reward", pa.float64()), ("outcome", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())), ("reasons", pa.map_(pa.string(), pa.string())),
        ("extracted", pa.map_(pa.string(), pa.string())), ("instance", pa.string()), ("seconds", pa.float64()),
    ]
)  # fmt: skip
"""One row per trajectory: all that its loss and its metrics are made of. `logprob_kept` is null where no filter was on; `parts` has
the value of each reward function before weighting (null = not applicable), `reasons` what it said beside the value, and
`extracted` what it took for the answer, if anything; `prompt` is the question as the row has it, before system message and template."""


class Segments:
    """Writes `LINEAGE-update-N-COMMAND.parquet`: a name is never written twice, so a resume adds and never overwrites."""

    def __init__(self, directory: Path, lineage: int) -> None:
        self._directory = directory
        self._lineage = lineage

    def write(self, command: Dispatch, groups: Sequence[ScoredGroup]) -> Path:
        """Seal the groups of one dispatch. Durable at return."""
        table = pa.Table.from_pylist([row for group in groups for row in _rows(group, command.update)], schema=SCHEMA)
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        path = self._directory / f"{self._lineage:03d}-update-{command.update:06d}-{command.id}.parquet"
        write_durably(path, sink.getvalue())
        return path


def _rows(group: ScoredGroup, update: int) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group,
            "sample": t.sample,
            "attempt": t.attempt,
            "update": update,
            "row": group.prompt.row,
            "task": group.prompt.task,
            "prompt": group.prompt.text,
            "gold": group.prompt.gold,
            "prompt_ids": t.prompt_ids,
            "ids": t.ids,
            "logprob": t.columns[LOGPROB],
            "logprob_kept": t.columns.get(LOGPROB_KEPT),
            "version": t.columns[VERSION],
            "finish": t.finish,
            "text": t.text,
            "reward": reward,
            "outcome": outcome,
            "parts": [(name, values[i]) for name, values in group.parts.items()],
            "reasons": [(name, scores[i].reason) for name, scores in group.scores.items() if scores[i].reason],
            "extracted": [(name, scores[i].extracted) for name, scores in group.scores.items() if scores[i].extracted is not None],
            "instance": t.instance,
            "seconds": t.seconds,
        }
        for i, (t, reward, outcome) in enumerate(zip(group.trajectories, group.rewards, group.outcomes, strict=True))
    ]
