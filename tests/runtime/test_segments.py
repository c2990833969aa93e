from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from runtime_builders import group

from paceline.core.commands import Dispatch
from paceline.runtime.segments import Segments
from paceline.types.records import LOGPROB_KEPT, Score, ScoredGroup


def written(scored: ScoredGroup, root: Path) -> list[dict[str, object]]:
    command = Dispatch(9, (scored.group,), True, 4, (scored.group,), (0,))
    rows: list[dict[str, object]] = pq.read_table(Segments(root, 2).write(command, [scored])).to_pylist()
    return rows


def test_what_the_ratio_of_a_filtered_run_divides_by_is_kept(tmp_path: Path) -> None:
    plain = group(3, (1.0, 0.0))
    kept = np.array([-0.25, -0.5], dtype=np.float32)
    filtered = replace(plain, trajectories=tuple(replace(t, columns={**t.columns, LOGPROB_KEPT: kept}) for t in plain.trajectories))
    assert [row["logprob_kept"] for row in written(filtered, tmp_path)] == [[-0.25, -0.5]] * 2
    assert [row["logprob_kept"] for row in written(plain, tmp_path)] == [None, None]


def test_every_function_s_value_and_what_it_said_are_kept_beside_their_sum(tmp_path: Path) -> None:
    scores = {"right": (Score(1.0), Score(0.0, "no number")), "style": (Score(0.5, "short"), Score(None))}
    rows = written(group(3, (1.5, 0.0), parts={"right": (1.0, 0.0), "style": (0.5, None)}, scores=scores), tmp_path)
    assert [row["parts"] for row in rows] == [[("right", 1.0), ("style", 0.5)], [("right", 0.0), ("style", None)]]
    assert [row["reasons"] for row in rows] == [[("style", "short")], [("right", "no number")]]
    assert [row["reward"] for row in rows] == pytest.approx([1.5, 0.0])
