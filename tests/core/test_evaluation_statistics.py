"""pass@k, intervals and the summary of an evaluation, against enumeration and simulation."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from paceline.core.evaluation import summarize
from paceline.core.intervals import clustered, wilson
from paceline.core.passk import pass_at_k
from paceline.types.results import Answers, Verdict


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@k needs"):
        pass_at_k(n, c, k)


def test_wilsons_interval_has_its_published_values() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)
    assert wilson(0, 0) == clustered([]) == (0.0, 1.0)


def test_intervals_refuse_impossible_counts() -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="every problem"):
        clustered([(1, 0)])


def test_one_answer_per_problem_makes_the_clustered_interval_wilsons() -> None:
    assert clustered([(1, 1)] * 30 + [(0, 1)] * 70) == pytest.approx(wilson(30, 100))


def test_answers_that_always_agree_within_a_problem_count_once() -> None:
    assert clustered([(4, 4)] * 30 + [(0, 4)] * 70) == pytest.approx(wilson(30, 100), abs=1e-3)


def test_independent_answers_count_each() -> None:
    assert clustered([(1, 4), (2, 4), (3, 4)] * 40) == wilson(240, 480)


def test_the_clustered_interval_covers_the_truth_95_percent_of_the_time() -> None:
    rng = Random(7)
    covered = naive = 0
    for _ in range(600):
        counts = [(sum(rng.random() < p for _ in range(8)), 8) for p in (rng.betavariate(0.5, 1.0) for _ in range(60))]
        low, high = clustered(counts)
        covered += low <= 1 / 3 <= high
        low, high = wilson(sum(c for c, _ in counts), 480)
        naive += low <= 1 / 3 <= high
    assert 0.92 <= covered / 600 <= 0.98
    assert naive / 600 < 0.85


def test_a_summary_holds_greedy_sampled_parsed_and_pass_at_k() -> None:
    right, wrong, unread = Verdict(True, True), Verdict(False, True), Verdict(False, False)
    result = summarize([Answers(right, (right, wrong, unread)), Answers(unread, (wrong, wrong, wrong))], model="m")
    assert (result.problems, result.model) == (2, "m")
    assert result.greedy is not None
    assert (result.greedy.value, result.greedy.count) == (0.5, 2)
    assert (result.greedy.low, result.greedy.high) == wilson(1, 2)
    assert result.sampled is not None
    assert (result.sampled.value, result.sampled.count) == (1 / 6, 6)
    assert result.greedy_if_parsed is not None
    assert (result.greedy_if_parsed.value, result.greedy_if_parsed.count) == (1.0, 1)
    assert result.sampled_if_parsed is not None
    assert (result.sampled_if_parsed.value, result.sampled_if_parsed.count) == (1 / 5, 5)
    assert result.parsed is not None
    assert result.parsed.value == 6 / 8
    assert result.pass_at == pytest.approx({1: (1 / 3) / 2, 2: (2 / 3) / 2})
    assert result.metrics()["eval/pass@2"] == pytest.approx(1 / 3)


def test_a_summary_of_nothing_measured_says_so() -> None:
    result = summarize([Answers(Verdict(True)), Answers(Verdict(False))])
    assert (result.sampled, result.parsed, result.greedy_if_parsed, result.pass_at) == (None, None, None, {})
    assert set(result.metrics()) == {"eval/greedy"}
    assert summarize([]).problems == 0
