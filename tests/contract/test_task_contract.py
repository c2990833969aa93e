"""What every Task must do, fake and real alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.config.schema import TaskConfig
from paceline.ports.data import Task
from paceline.ports.fakes.data import ByteTokenizer, MemoryTask
from paceline.tasks import Mixture, RowTask, load
from paceline.types.errors import DataError
from paceline.types.records import Prompt

Make = Callable[[int, int], Task]


@pytest.fixture(params=["memory", "jsonl", "reasoning_gym", "mixture"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def task(seed: int, rows: int) -> Task:
        if request.param == "memory":
            return MemoryTask([(f"question {i}", str(i)) for i in range(rows)], seed=seed)
        if request.param == "mixture":
            parts = {
                "odd": [Prompt(i, i, np.array([i], np.int32), f"q {i}", "1", {}, "odd") for i in range(1, rows, 2)],
                "even": [Prompt(i, i, np.array([i], np.int32), f"q {i}", "1", {}, "even") for i in range(0, rows, 2)],
            }
            return Mixture({name: RowTask(own, seed=seed, shuffle=True, counts={}) for name, own in parts.items()})
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps({"prompt": f"question {i}", "gold": str(i)}) for i in range(rows)))
        config = (
            TaskConfig(kind="file", path=str(path), gold_column="gold")
            if request.param == "jsonl"
            else TaskConfig(name="chain_sum", size=rows, parameters={"min_digits": 4})
        )
        return load(config, ByteTokenizer(), seed=seed, max_prompt_tokens=1000)

    return task


def test_epochs_follow_each_other_and_each_has_every_row_once(make: Make) -> None:
    task = make(0, 12)
    assert len(task) == 12
    prompts = [task.prompt(i) for i in range(36)]
    assert [prompt.index for prompt in prompts] == list(range(36))
    for epoch in range(3):
        assert sorted(prompt.row for prompt in prompts[12 * epoch : 12 * epoch + 12]) == list(range(12))


def test_a_prompt_depends_on_seed_and_index_alone(make: Make) -> None:
    one, two = make(3, 12), make(3, 12)
    for index in (25, 0, 11, 25):
        assert one.prompt(index).row == two.prompt(index).row
        assert np.array_equal(one.prompt(index).ids, two.prompt(index).ids)


def test_another_seed_gives_another_order(make: Make) -> None:
    orders = {tuple(task.prompt(i).row for i in range(12)) for task in (make(seed, 12) for seed in range(8))}
    assert len(orders) > 1


def test_ids_are_int32_and_never_empty(make: Make) -> None:
    ids = make(0, 3).prompt(1).ids
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert len(ids) > 0


def test_the_fingerprint_is_stable_and_follows_rows_and_order(make: Make) -> None:
    assert make(0, 5).fingerprint() == make(0, 5).fingerprint()
    assert len({make(0, 5).fingerprint(), make(0, 6).fingerprint(), make(1, 5).fingerprint()}) == 3


def test_there_is_no_prompt_before_the_first(make: Make) -> None:
    with pytest.raises(DataError):
        make(0, 3).prompt(-1)


def test_every_row_is_every_row_of_an_epoch(make: Make) -> None:
    task = make(0, 12)
    assert sorted(prompt.row for prompt in task.every_row()) == sorted(task.prompt(i).row for i in range(12))
