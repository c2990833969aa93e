"""What the benchmark of the schedules assumes: lengths that depend on the sample only, and slots that follow from arithmetic."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from balance import Serial, chosen, fit, work
from lengths import Lengths

LENGTHS = Lengths(median=10, sigma=1.0, least=2, most=80)


def test_a_sample_has_the_same_length_whenever_it_is_asked_for_and_the_tail_is_long() -> None:
    lengths = [LENGTHS.of(group, sample) for group in range(300) for sample in range(4)]
    assert lengths == [LENGTHS.of(group, sample) for group in range(300) for sample in range(4)]
    assert min(lengths) == 2
    assert max(lengths) == 80
    assert 9 <= median(lengths) <= 11
    assert sum(lengths) / len(lengths) > 1.3 * median(lengths)


def test_one_slot_takes_a_step_per_token_and_unlimited_slots_take_as_long_as_the_longest() -> None:
    lengths = [3, 1, 4, 1, 5]
    assert work(lengths, 1).steps == 14
    assert work(lengths, 5).steps == 5
    assert [work(lengths, slots).steps for slots in (2, 3)] == [9, 7]


def test_two_serial_rounds_give_the_step_cost_and_the_slots_and_lengths_of_every_balance() -> None:
    def at(median: int) -> list[int]:
        return [replace(LENGTHS, median=median).of(group, sample) for group in range(32) for sample in range(4)]

    lengths = at(10)

    def serial(slots: int) -> Serial:
        todo = work(lengths, slots)
        return Serial(slots, lengths, 0.02 * todo.steps + 0.001 * todo.tokens, 12.0)

    few, many = serial(2), serial(24)
    assert fit(few, many) == pytest.approx((0.02, 0.001))
    targets = {"1:2": 0.5, "1:1": 1.0, "2:1": 2.0}
    found = {name: chosen(target, few, many, at, 1000, (10, 9, 11, 8, 12, 13, 7)) for name, target in targets.items()}
    assert all(more.slots > fewer.slots for more, fewer in pairwise(found.values()))
    for name, target in targets.items():
        todo, base = work(at(found[name].median), found[name].slots), work(lengths, 24)
        rollout, train = 0.02 * todo.steps + 0.001 * todo.tokens, 12.0 * (1000 + todo.tokens) / (1000 + base.tokens)
        assert rollout / train == pytest.approx(target, rel=0.1), name
