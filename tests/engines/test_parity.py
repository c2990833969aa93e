"""What the engine records is what one full forward of the same model says, however the tokens came to be."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import KERNELS, drain, engine, largest_gap, prompt, reference, request, tiny

from paceline.algo.sampling import keep_mask
from paceline.models.attend import causal
from paceline.models.store import write_tensors
from paceline.ports.rollout import Failure
from paceline.types.records import LOGPROB, LOGPROB_KEPT
from paceline.types.weights import WeightsRef

TEMPERATURES = (0.0, 0.3, 0.6, 1.0, 1.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("parity") / "llama")


def workload(**options):
    """Six groups of four, prompts of 1 to 23 tokens, a temperature per group."""
    return [
        request(g, s, prompt(g, 1 + 22 * g // 5), max_tokens=4 + 3 * s, temperature=TEMPERATURES[g % 5], **options)
        for g in range(6)
        for s in range(4)
    ]


def temperature_of(key):
    return TEMPERATURES[key[0] % 5]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 2e-5)])
def test_log_probs_equal_a_full_forward_for_mixed_lengths_and_temperatures(tmp_path, family, dtype, bound, kernels):
    small, plain = (tiny(tmp_path / name, dtype, family=family, width=64) for name in ("served", "plain"))
    serving = engine(small, slots=7, kernels=kernels)
    serving.submit(workload())
    assert largest_gap(plain[0], drain(serving), temperature_of) <= bound


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 2e-5)])
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_model_that_runs_through_its_transformers_class_is_served_alike(tmp_path, dtype, bound, kernels):
    small = tiny(tmp_path / "m", dtype, implementation="transformers", width=64)
    serving = engine(small, slots=7, kv_tokens=200, kernels=kernels)
    serving.submit(workload())
    assert largest_gap(small[0], drain(serving), temperature_of) <= bound


@pytest.mark.parametrize("slots", [2, 24])
@pytest.mark.parametrize("kernels", KERNELS)
def test_bfloat16_log_probs_of_few_rows_and_of_many_stay_near_those_of_a_full_forward(tmp_path, slots, kernels):
    small, plain = (tiny(tmp_path / name, "bfloat16", width=512, heads=8, kv_heads=8) for name in ("served", "plain"))
    serving = engine(small, slots=slots, page=32, kernels=kernels)
    serving.submit(workload())
    results = drain(serving)
    gaps = [
        np.abs(t.columns[LOGPROB] - reference(plain[0], t, temperature_of(k))).mean()
        for k, t in results.items()
        if temperature_of(k) >= 0.6
    ]
    assert results[0, 0].columns[LOGPROB].dtype == np.float32
    assert np.mean(gaps) < 0.04


@pytest.mark.parametrize(("layers", "heads", "kv_heads"), [(1, 4, 4), (2, 4, 1), (3, 8, 2)])
def test_log_probs_equal_a_full_forward_for_every_sharing_of_heads(tmp_path, layers, heads, kv_heads):
    small = tiny(tmp_path / "m", layers=layers, heads=heads, kv_heads=kv_heads)
    serving = engine(small)
    serving.submit(workload())
    assert largest_gap(small[0], drain(serving), temperature_of) <= 1e-10


def test_greedy_rows_beside_sampled_ones_take_the_argmax_of_the_full_forward(model):
    serving = engine(model)
    serving.submit([request(g, s, prompt(g, 9), temperature=float(s % 2), top_k=5 * (s % 2)) for g in range(3) for s in range(4)])
    for (_, sample), result in drain(serving).items():
        if sample % 2 == 0:
            ids = torch.from_numpy(np.concatenate([result.prompt_ids, result.ids]).astype(np.int64))
            hidden = model[0].model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], model[0].model.shape.scale))
            assert model[0].model.logits(hidden)[8:-1].argmax(-1).tolist() == result.ids.tolist()
            assert LOGPROB_KEPT not in result.columns


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 0), (1.0, 9), (0.8, 30)])
def test_kept_log_probs_equal_a_full_forward_cut_by_the_same_filter(model, top_p, top_k):
    serving = engine(model)
    serving.submit([request(g, s, prompt(g, 5 + g), temperature=0.6, top_p=top_p, top_k=top_k) for g in range(3) for s in range(4)])
    for result in drain(serving).values():
        full = reference(model[0], result, 0.6)
        assert np.abs(result.columns[LOGPROB] - full).max() <= 1e-10
        ids = torch.from_numpy(np.concatenate([result.prompt_ids, result.ids]).astype(np.int64))
        hidden = model[0].model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], model[0].model.shape.scale))
        weights = (model[0].model.logits(hidden) / 0.6).softmax(-1)[len(result.prompt_ids) - 1 : -1].detach()
        n = len(result.ids)
        mass = (weights * keep_mask(weights, torch.full((n,), top_p), torch.full((n,), top_k))).sum(-1).log()
        assert np.abs(result.columns[LOGPROB_KEPT] - (full - mass.numpy())).max() <= 1e-10
        assert (result.columns[LOGPROB_KEPT] <= 1e-12).all()


def test_tokens_are_the_same_for_any_slots_page_size_order_and_joining_time(model):
    requests = workload()
    base = engine(model, slots=64, page=64)
    base.submit(requests)
    expected = {key: t.ids.tolist() for key, t in drain(base).items()}
    for slots, page, chunk in ((1, 4, 24), (3, 1, 24), (5, 16, 2), (24, 7, 5)):
        serving = engine(model, slots=slots, page=page, prefill_tokens=20)
        got = {}
        shuffled = [requests[i] for i in np.random.default_rng(slots).permutation(len(requests))]
        for first in range(0, len(shuffled), chunk):
            serving.submit(shuffled[first : first + chunk])
            got |= {(t.group, t.sample): t for t in serving.step()}
        got |= drain(serving)
        assert {key: t.ids.tolist() for key, t in got.items()} == expected
        assert largest_gap(model[0], got, temperature_of) <= 1e-10


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_long_prompt_is_read_in_parts_between_the_tokens_of_those_who_decode(model, deterministic):
    first, long = request(0, 0, prompt(0, 5), max_tokens=30), [request(1, s, prompt(1, 60), max_tokens=6) for s in range(3)]
    serving = engine(model, prefill_tokens=16, deterministic=deterministic)
    serving.submit([first])
    serving.step()
    serving.submit(long)
    seen, results = [], {}
    for _ in range(6):
        before = serving.prefilled, serving.load_state().tokens
        results |= {(t.group, t.sample): t for t in serving.step()}
        seen.append((serving.prefilled - before[0], serving.load_state().tokens - before[1]))
    assert seen == [(16, 1), (16, 1), (16, 1), (12, 4), (0, 4), (0, 4)]
    results |= drain(serving)
    alone = engine(model)
    alone.submit([first, *long])
    assert {key: t.ids.tolist() for key, t in results.items()} == {key: t.ids.tolist() for key, t in drain(alone).items()}
    assert largest_gap(model[0], results, lambda key: 1.0) <= 1e-10


def test_a_prompt_whose_reading_has_begun_is_read_by_new_weights_from_its_beginning(model, tmp_path):
    other = tiny(tmp_path / "other", seed=5)
    serving = engine(tiny(tmp_path / "first"), prefill_tokens=16)
    serving.load(WeightsRef(0), str(tmp_path / "first"))
    serving.submit([request(0, 0, prompt(0, 60))])
    serving.step()
    assert serving.load_state().tokens == 0
    serving.load(WeightsRef(1), str(other[0].directory), "keep", 0)
    assert largest_gap(other[0], drain(serving), lambda key: 1.0) <= 1e-10
    assert serving.prefilled == 16 + 60


def test_preempted_trajectories_come_back_with_the_tokens_they_would_have_had(model):
    requests = [request(g, s, prompt(g, 10), max_tokens=40) for g in range(3) for s in range(4)]
    roomy, tight = engine(model, slots=12), engine(model, slots=12, kv_tokens=80)
    roomy.submit(requests)
    tight.submit(requests)
    expected, results = drain(roomy), drain(tight)
    assert roomy.preempted == 0
    assert tight.preempted > 0
    assert {k: t.ids.tolist() for k, t in results.items()} == {k: t.ids.tolist() for k, t in expected.items()}
    assert largest_gap(model[0], results, lambda key: 1.0) <= 1e-10
    assert tight.load_state().kv_used == 0


def test_the_prompt_of_a_group_is_prefilled_once_also_for_samples_that_come_later(model):
    serving = engine(model, slots=3)
    serving.submit([request(g, s, prompt(g, 10 + g)) for g in range(2) for s in range(5)])
    serving.step()
    serving.step()
    serving.submit([request(0, 5, prompt(0, 10))])
    drain(serving)
    assert serving.prefilled == 10 + 11
    serving.submit([request(0, 6, prompt(0, 10))])
    drain(serving)
    assert serving.prefilled == 10 + 11 + 10


def test_after_new_weights_the_same_prompt_is_read_anew_and_scored_as_a_cold_engine_scores_it(model, tmp_path):
    other = tiny(tmp_path / "other", seed=5)
    serving = engine(tiny(tmp_path / "first"))
    ask = [request(0, s, prompt(0, 11), version=v) for v in (0,) for s in range(4)]
    serving.submit(ask)
    old = drain(serving)
    serving.load(WeightsRef(1), str(other[0].directory))
    serving.submit([request(0, s, prompt(0, 11), version=1) for s in range(4)])
    new = drain(serving)
    cold = engine(other)
    cold.submit([request(0, s, prompt(0, 11)) for s in range(4)])
    assert serving.prefilled == 22
    for key, result in drain(cold).items():
        assert new[key].ids.tolist() == result.ids.tolist()
        assert np.array_equal(new[key].columns[LOGPROB], result.columns[LOGPROB])
        assert not np.array_equal(new[key].columns[LOGPROB], old[key].columns[LOGPROB])


def test_a_probe_scores_as_a_full_forward_does_and_sees_one_wrong_matrix(tmp_path):
    loaded, decode = tiny(tmp_path / "m")
    serving = engine((loaded, decode))
    ids = prompt(3, 21).astype(np.int64)
    tokens = torch.from_numpy(ids)

    def full():
        with torch.no_grad():
            hidden = loaded.model.hidden(tokens, torch.arange(21), causal([21], loaded.model.shape.scale))
            return loaded.model.logits(hidden).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0].numpy()

    before = serving.probe(ids.tolist())
    assert np.abs(np.array(before.logprobs) - full()).max() <= 1e-10
    with torch.no_grad():
        dict(loaded.model.named_parameters())["model.layers.1.self_attn.o_proj.weight"].mul_(1.01)
    after = serving.probe(ids.tolist())
    assert np.abs(np.array(after.logprobs) - full()).max() <= 1e-10
    assert np.abs(np.array(after.logprobs) - np.array(before.logprobs)).max() > 1e-4


def test_a_load_reports_the_fingerprint_of_the_file_and_a_damaged_one_leaves_the_old_version_refused(tmp_path):
    loaded, decode = tiny(tmp_path / "m")
    serving = engine((loaded, decode))
    expected = write_tensors(loaded.model.named_parameters(), tmp_path / "published.safetensors", torch.float64)
    assert serving.load(WeightsRef(4, fingerprint=expected), str(tmp_path / "published.safetensors")) == expected
    assert serving.probe([60, 61]).fingerprint == expected
    (tmp_path / "damaged.safetensors").write_bytes((tmp_path / "published.safetensors").read_bytes()[:500])
    with pytest.raises(ValueError, match="damaged"):
        serving.load(WeightsRef(5), str(tmp_path / "damaged.safetensors"), replaces=4)
    serving.submit([request(0, 0, prompt(0, 4), version=4)])
    assert "holds none" in drain(serving)[0, 0].error


def test_weights_that_are_not_finite_fail_the_requests_instead_of_sampling_anything(tmp_path):
    loaded, decode = tiny(tmp_path / "m")
    with torch.no_grad():
        dict(loaded.model.named_parameters())["model.norm.weight"].fill_(math.nan)
    serving = engine((loaded, decode))
    serving.submit([request(0, s, prompt(0, 4)) for s in range(3)])
    results = drain(serving)
    assert all(isinstance(r, Failure) and "not finite at token 0" in r.error for r in results.values())
    assert serving.load_state().kv_used == 0


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.6, 0.9, 0), (1.5, 1.0, 40)])
def test_first_tokens_of_many_samples_follow_the_models_distribution(model, temperature, top_p, top_k):
    n, ids = 4000, prompt(1, 6)
    serving = engine(model, slots=500, kv_tokens=8)
    serving.submit([request(0, s, ids, max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k) for s in range(n)])
    counts = np.bincount([t.ids[0] for t in drain(serving).values()], minlength=model[0].model.shape.vocabulary)
    with torch.no_grad():
        hidden = model[0].model.hidden(torch.from_numpy(ids).long(), torch.arange(6), causal([6], model[0].model.shape.scale))
        weights = (model[0].model.logits(hidden[-1:]) / temperature).softmax(-1)
    target = (weights * keep_mask(weights, torch.tensor([top_p]), torch.tensor([top_k])))[0].numpy()
    expected = target / target.sum() * n
    common = expected >= 5
    assert counts[expected == 0].sum() == 0
    cells = [(counts[i], expected[i]) for i in np.nonzero(common)[0]] + [(counts[~common].sum(), expected[~common].sum())]
    statistic, freedom = sum((o - e) ** 2 / e for o, e in cells if e > 0), sum(e > 0 for _, e in cells) - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_a_request_beyond_the_models_positions_fails_with_the_numbers(model):
    serving = engine(model)
    serving.submit([request(0, 0, prompt(0, 500), max_tokens=13), request(1, 0, [5, 9999]), request(2, 0, prompt(2, 3), top_p=1.5)])
    errors = [failure.error for failure in serving.step()]
    assert "500 + max_tokens 13 = 513 exceeds the model's 512" in errors[0]
    assert "reach from 5 to 9999" in errors[1]
    assert "top_p = 1.5" in errors[2]
