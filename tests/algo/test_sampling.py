"""Drawing tokens: values by hand, tie rules, filters against a plain reference, and frequencies."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.algo.counter import stream_key, uniforms
from paceline.algo.sampling import BLOCK, Knobs, check, draw, keep_mask
from paceline.types.errors import ConfigError
from paceline.types.records import Sampling

torch.set_num_threads(1)


def knobs(n, temperature=1.0, top_p=1.0, top_k=0):
    return Knobs.of([Sampling(1, temperature, top_p, top_k)] * n)


def numbers(n, seed=0):
    return torch.from_numpy(uniforms(stream_key(seed, "train", 0, 0), np.arange(n)))


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, (-0.407606, -1.407606, -2.407606)), (0.6, (-0.202573, -1.869240, -3.535906))])
def test_log_probs_belong_to_the_softmax_of_the_scaled_logits(temperature, expected):
    logits = torch.tensor([[2.0, 1.0, 0.0]]).repeat(300, 1)
    drawn = draw(logits, knobs(300, temperature), numbers(300))
    assert set(drawn.ids.tolist()) == {0, 1, 2}
    assert drawn.logprob.tolist() == pytest.approx([expected[i] for i in drawn.ids], abs=1e-6)
    assert torch.equal(drawn.logprob, drawn.logprob_kept)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_float32_log_probs_over_a_large_vocabulary_lean_to_no_side(top_p):
    logits = 3 * torch.randn(64, 49_152, generator=torch.Generator().manual_seed(0))
    drawn = draw(logits, knobs(64, top_p=top_p), numbers(64))
    exact = logits.double().log_softmax(dim=-1)
    off = drawn.logprob.double() - exact.gather(1, drawn.ids[:, None])[:, 0]
    assert off.abs().max() < 3e-6
    assert off.mean().abs() < 2e-7
    if top_p < 1:
        kept = exact.masked_fill(~keep_mask(exact.exp(), torch.full((64,), top_p).double(), torch.zeros(64, dtype=torch.int64)), -torch.inf)
        right = kept.log_softmax(dim=-1).gather(1, drawn.ids[:, None])[:, 0]
        assert (drawn.logprob_kept.double() - right).abs().max() < 1e-4, "which token the mass ends with may differ"


def test_top_k_two_of_three_gives_log_probs_over_the_kept_set_beside_the_full_ones():
    logits = torch.tensor([[2.0, 1.0, 0.0]]).repeat(300, 1)
    drawn = draw(logits, knobs(300, top_k=2), numbers(300))
    assert set(drawn.ids.tolist()) == {0, 1}
    assert drawn.logprob.tolist() == pytest.approx([(-0.407606, -1.407606)[i] for i in drawn.ids], abs=1e-6)
    assert drawn.logprob_kept.tolist() == pytest.approx([(-0.313262, -1.313262)[i] for i in drawn.ids], abs=1e-6)


def test_greedy_takes_the_lowest_id_of_equal_logits_and_reports_log_probs_at_temperature_one():
    logits = torch.zeros(1, 1000)
    logits[0, [700, 300, 900]] = 5.0
    drawn = draw(logits, knobs(1, temperature=0.0, top_k=1), numbers(1))
    assert drawn.ids.tolist() == [300]
    assert drawn.logprob.item() == pytest.approx(5 - math.log(3 * math.exp(5) + 997), abs=1e-6)
    assert drawn.logprob_kept.item() == drawn.logprob.item()


def test_equal_logits_at_the_edge_of_a_filter_keep_the_lowest_ids():
    weights = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    assert keep_mask(weights, torch.tensor([1.0]), torch.tensor([3])).tolist() == [[True, True, False, True, False]]
    assert keep_mask(weights, torch.tensor([0.8]), torch.tensor([0])).tolist() == [[True, True, True, True, False]]


def test_top_p_keeps_the_token_that_crosses_the_mass_and_at_least_one():
    weights = torch.tensor([[0.5, 0.3, 0.2]]).repeat(4, 1)
    kept = keep_mask(weights, torch.tensor([0.01, 0.5, 0.51, 0.81]), torch.zeros(4, dtype=torch.int64))
    assert kept.sum(-1).tolist() == [1, 1, 2, 3]


def test_top_p_applies_to_the_mass_that_top_k_left():
    weights = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert keep_mask(weights, torch.tensor([0.55]), torch.tensor([0])).sum() == 2
    assert keep_mask(weights, torch.tensor([0.55]), torch.tensor([2])).sum() == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 3000), st.floats(0.01, 1.0), st.integers(0, 40), st.booleans())
def test_filters_agree_with_a_plain_sorted_reference(seed, vocabulary, top_p, top_k, coarse):
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=vocabulary).astype(np.float64) ** rng.uniform(0.05, 4)
    if coarse:
        weights = np.ceil(weights * 3)
    mask = keep_mask(torch.from_numpy(weights)[None], torch.tensor([top_p], dtype=torch.float64), torch.tensor([top_k]))[0].numpy()
    order = sorted(range(vocabulary), key=lambda i: (-weights[i], i))[: top_k or vocabulary]
    mass = np.cumsum(weights[order])
    p = top_p
    count = len(order) if p >= 1 else min(len(order), int((mass < p * mass[-1] * (1 - 1e-12)).sum()) + 1)
    assert sorted(order[:count]) == np.nonzero(mask)[0].tolist()


def test_a_flat_distribution_under_top_p_needs_more_than_the_first_candidates_and_gets_them():
    mask = keep_mask(torch.ones(2, 20_000), torch.tensor([0.5, 1.0]), torch.tensor([0, 7]))
    assert mask.sum(-1).tolist() == [10_000, 7]
    assert mask[0, :10_000].all()


@pytest.mark.parametrize("vocabulary", [3, BLOCK - 1, BLOCK, 5 * BLOCK + 17])
@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
def test_tokens_of_probability_zero_are_never_drawn_at_the_ends_of_the_interval(vocabulary, number):
    logits = torch.full((1, vocabulary), -math.inf)
    logits[0, vocabulary // 2] = 0.0
    assert draw(logits, knobs(1), torch.tensor([number])).ids.item() == vocabulary // 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2000), st.sampled_from(["float32", "float64"]))
def test_drawn_tokens_always_have_weight(seed, vocabulary, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, vocabulary, generator=generator).to(getattr(torch, dtype)) * 30
    logits[torch.rand(8, vocabulary, generator=generator) < 0.7] = -math.inf
    logits[:, int(seed) % vocabulary] = 0.0
    edge = torch.tensor([0.0, 2.0**-24, 0.25, 0.5, 0.75, 1 - 2.0**-23, 1 - 2.0**-24, 0.1])
    drawn = draw(logits, knobs(8), edge)
    assert drawn.finite.all()
    assert torch.isfinite(drawn.logprob).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_flagged_and_leave_their_neighbours_alone(bad):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    clean = draw(logits, knobs(3), numbers(3))
    logits[1, 7] = bad
    drawn = draw(logits, knobs(3), numbers(3))
    assert drawn.finite.tolist() == [True, False, True]
    assert drawn.ids[[0, 2]].tolist() == clean.ids[[0, 2]].tolist()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.3, 1.0, 0), (1.5, 1.0, 0), (1.0, 0.7, 0), (0.6, 1.0, 25), (1.5, 0.9, 60)]
)
def test_frequencies_follow_the_distribution(temperature, top_p, top_k):
    n, vocabulary = 20_000, 600
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1.5
    probabilities = torch.softmax(logits / temperature, -1)
    kept = keep_mask(probabilities[None], torch.tensor([top_p]), torch.tensor([top_k]))[0]
    target = (probabilities * kept / probabilities[kept].sum()).numpy()
    counts = np.zeros(vocabulary)
    for part in numbers(n, seed=2).split(5000):
        drawn = draw(logits.float().expand(len(part), -1).contiguous(), knobs(len(part), temperature, top_p, top_k), part)
        counts += np.bincount(drawn.ids.numpy(), minlength=vocabulary)
    assert counts[~kept.numpy()].sum() == 0
    common = target * n >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(target[common], target[~common].sum()) * n
    cells = expected > 0
    statistic = (((observed - expected)[cells]) ** 2 / expected[cells]).sum()
    freedom = cells.sum() - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_a_row_gives_the_same_bits_alone_and_among_rows_with_other_settings():
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(3)) * 2
    rows = [Sampling(1, t, p, k) for t, p, k in [(1, 1, 0), (0, 1, 0), (0.6, 0.9, 0), (1.5, 1, 50), (0.3, 0.5, 20), (1, 1, 0)]]
    together = draw(logits, Knobs.of(rows), numbers(6))
    for i, row in enumerate(rows):
        alone = draw(logits[i : i + 1], Knobs.of([row]), numbers(6)[i : i + 1])
        assert alone.ids.item() == together.ids[i].item()
        assert alone.logprob.item() == together.logprob[i].item()
        assert alone.logprob_kept.item() == together.logprob_kept[i].item()


def test_the_set_that_a_row_keeps_depends_on_no_neighbour_even_where_a_token_stands_at_the_edge_of_the_mass():
    """A lone row is summed by all threads, and a neighbour with a large top_k widens the search: neither may move an edge."""
    vocabulary = 50_000
    weights = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(5)).mul(2).softmax(-1)
    mass, total = weights.sort(descending=True).values.cumsum(-1)[0].double(), weights.double().sum()
    torch.set_num_threads(2)
    try:
        for count in range(900, 1200, 7):
            top_p = (mass[count] / total)[None]
            alone = keep_mask(weights, top_p, torch.tensor([0]))
            for other in (0, 3000, vocabulary):
                beside = keep_mask(weights.repeat(2, 1), top_p.repeat(2), torch.tensor([0, other]))
                assert torch.equal(beside[:1], alone), (count, other)
    finally:
        torch.set_num_threads(1)


def test_the_given_logits_are_left_untouched():
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(4))
    before = logits.clone()
    draw(logits, knobs(2, top_k=3), numbers(2))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (Sampling(0), "max_tokens = 0"),
        (Sampling(1, temperature=-0.1), "temperature = -0.1"),
        (Sampling(1, temperature=math.nan), "temperature = nan"),
        (Sampling(1, top_p=0.0), "top_p = 0.0"),
        (Sampling(1, top_k=-1), "top_k = -1"),
        (Sampling(1, stop=("",)), "stop"),
    ],
)
def test_settings_that_cannot_draw_are_refused_by_name_and_value(sampling, named):
    with pytest.raises(ConfigError, match=named):
        check(sampling)
