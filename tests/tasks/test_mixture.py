"""Several tasks in one data order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tasks import Mixture, RowTask
from paceline.types.errors import DataError
from paceline.types.records import Prompt

COUNTS = {"read": 0}


def rows(name: str, count: int, seed: int = 0) -> RowTask:
    prompts = [Prompt(i, i, np.array([i], dtype=np.int32), f"{name} {i}", "1", {}, name) for i in range(count)]
    return RowTask(prompts, seed=seed, shuffle=True, counts=COUNTS)


def drawn(mixture: Mixture, first: int, count: int) -> list[tuple[str, int]]:
    prompts = [mixture.prompt(index) for index in range(first, first + count)]
    assert [prompt.index for prompt in prompts] == list(range(first, first + count))
    return [(prompt.task, prompt.row) for prompt in prompts]


def test_without_weights_an_epoch_has_every_row_of_every_task_once() -> None:
    mixture = Mixture({"a": rows("a", 7), "b": rows("b", 3)})
    for epoch in range(3):
        assert sorted(drawn(mixture, epoch * 10, 10)) == [*(("a", i) for i in range(7)), *(("b", i) for i in range(3))]
    assert drawn(mixture, 0, 10) != drawn(mixture, 10, 10)


def test_weights_give_the_shares_and_no_row_comes_twice_before_all_of_its_task_came() -> None:
    mixture = Mixture({"a": rows("a", 80), "b": rows("b", 20)}, [1.0, 1.0])
    assert mixture.shares == (50, 50)
    order = drawn(mixture, 0, 400)
    assert Counter(task for task, _ in order) == {"a": 200, "b": 200}
    for name, count in (("a", 80), ("b", 20)):
        own = [row for task, row in order if task == name]
        for first in range(0, len(own) - count + 1, count):
            assert sorted(own[first : first + count]) == list(range(count))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.2, 5.0)), min_size=2, max_size=4), st.integers(0, 500))
def test_every_stretch_holds_each_task_by_its_share_and_any_position_can_be_asked_for_alone(
    parts: list[tuple[int, float]], start: int
) -> None:
    tasks = {f"t{i}": rows(f"t{i}", count) for i, (count, _) in enumerate(parts)}
    try:
        mixture = Mixture(tasks, [weight for _, weight in parts])
    except DataError:
        assert sum(count for count, _ in parts) * min(w for _, w in parts) / sum(w for _, w in parts) < 1
        return
    assert sum(mixture.shares) == len(mixture) == sum(count for count, _ in parts)
    order = drawn(mixture, start, 30)
    assert order[7:9] == drawn(mixture, start + 7, 2)
    for name, share in zip(tasks, mixture.shares, strict=True):
        seen = np.cumsum([task == name for task, _ in drawn(mixture, 0, len(mixture))])
        expected = np.arange(1, len(mixture) + 1) * share / len(mixture)
        assert np.abs(seen - expected).max() <= 1 + len(parts) / 2


def test_a_task_of_few_rows_in_a_batch_of_many_starts_over() -> None:
    mixture = Mixture({"one": rows("one", 1), "two": rows("two", 2)}, [1.0, 1.0])
    assert Counter(drawn(mixture, 0, 12))[("one", 0)] in (4, 8)
    assert {("one", 0), ("two", 0), ("two", 1)} == set(drawn(mixture, 0, 12))


def test_a_weight_that_gives_nothing_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="task b: its weight gives it no prompt in an epoch of 6"):
        Mixture({"a": rows("a", 3), "b": rows("b", 3)}, [1.0, 0.001])


def test_the_fingerprint_follows_tasks_weights_and_names() -> None:
    make = [
        Mixture({"a": rows("a", 4), "b": rows("b", 4)}),
        Mixture({"a": rows("a", 4), "b": rows("b", 4)}, [3.0, 1.0]),
        Mixture({"a": rows("a", 4), "c": rows("b", 4)}),
        Mixture({"a": rows("a", 4, seed=1), "b": rows("b", 4)}),
    ]
    assert len({mixture.fingerprint() for mixture in make}) == 4
    assert make[0].fingerprint() == Mixture({"a": rows("a", 4), "b": rows("b", 4)}).fingerprint()
