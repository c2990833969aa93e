"""Weights that arrive under work: what is computed from which weights, and that no key or value outlives its weights unasked."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import drain, engine, prompt, reference, request, tiny

from paceline.types.records import LOGPROB, VERSION
from paceline.types.weights import WeightsRef


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three sets of weights of one shape."""
    root = tmp_path_factory.mktemp("versions")
    return [tiny(root / f"v{seed}", seed=seed) for seed in range(3)]


def serve(models, **options):
    """An engine that serves version 0, with memory of its own."""
    path = models[0][0].directory
    serving = engine(tiny(path), **options)
    load(serving, models, 0, None)
    return serving


def load(serving, models, version, replaces, unfinished="none"):
    return serving.load(WeightsRef(version), str(models[version % 3][0].directory), unfinished, replaces)


class Cache:
    """Attention over everything that ran so far, with the keys and values as they were made."""

    def __init__(self, scale):
        self.scale, self.layers = scale, {}

    def __call__(self, layer, q, k, v):
        keys, values = self.layers.get(layer, (k[:0], v[:0]))
        keys, values = torch.cat([keys, k]), torch.cat([values, v])
        self.layers[layer] = keys, values
        repeats, n = q.shape[1] // k.shape[1], len(q)
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self.scale
        hidden = torch.ones(n, len(keys), dtype=torch.bool).tril(len(keys) - n)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(~hidden, -torch.inf).softmax(-1), values)


@torch.no_grad()
def with_kept_kv(models, trajectory):
    """Log-probs of a trajectory each of whose tokens ran through the weights that sampled the next one, [n]."""
    ids = torch.from_numpy(np.concatenate([trajectory.prompt_ids, trajectory.ids]).astype(np.int64))
    first, found = len(trajectory.prompt_ids), []
    cache = Cache(models[0][0].model.shape.scale)
    for n, version in enumerate(trajectory.columns[VERSION].tolist()):
        model = models[version % 3][0].model
        new = slice(0, first) if n == 0 else slice(first + n - 1, first + n)
        hidden = model.hidden(ids[new], torch.arange(len(ids))[new], cache)
        found.append(model.logits(hidden[-1:]).log_softmax(-1)[0, ids[first + n]].item())
    return np.array(found)


def by_version(models, trajectory):
    """Log-probs of every token by a full forward of the version that sampled it, [n]."""
    columns = np.stack([reference(models[v][0], trajectory, 1.0) for v in range(3)])
    return columns[trajectory.columns[VERSION] % 3, np.arange(len(trajectory.ids))]


def gap(results, right):
    return max(np.abs(result.columns[LOGPROB] - right(result)).max() for result in results.values())


def group_across_an_update(models, unfinished, **options):
    """Four samples under version 0, three tokens each; version 1; then the rest of the group and another one. The engine, the results."""
    serving = serve(models, **options)
    serving.submit([request(0, s, prompt(0, 11), max_tokens=9) for s in range(4)])
    for _ in range(3):
        assert serving.step() == []
    load(serving, models, 1, 0, unfinished)
    serving.submit([request(g, s, prompt(0, 11), max_tokens=9, version=1) for g, s in ((0, 4), (0, 5), (1, 0))])
    return serving, drain(serving)


@pytest.mark.parametrize("unfinished", ["keep", "recompute"])
def test_a_group_that_spans_an_update_shares_no_old_prompt_with_its_later_samples(models, unfinished):
    serving, results = group_across_an_update(models, unfinished)
    cold = engine(models[1])
    cold.submit([request(g, s, prompt(0, 11), max_tokens=9) for g, s in ((0, 4), (0, 5), (1, 0))])
    for key, right in drain(cold).items():
        assert results[key].ids.tolist() == right.ids.tolist()
        assert np.abs(results[key].columns[LOGPROB] - right.columns[LOGPROB]).max() <= 1e-12
        assert set(results[key].columns[VERSION]) == {1}
    assert serving.prefilled == (22 if unfinished == "keep" else 22 + 4 * 3)
    assert serving.load_state().kv_used == 0


def test_kept_work_decodes_on_over_the_keys_and_values_that_it_has(models):
    _, results = group_across_an_update(models, "keep")
    kept = {key: results[key] for key in [(0, s) for s in range(4)]}
    assert all(t.columns[VERSION].tolist() == [0] * 3 + [1] * 6 for t in kept.values())
    assert gap(kept, lambda t: with_kept_kv(models, t)) <= 1e-10
    assert gap(kept, lambda t: by_version(models, t)) > 1e-3, "the cache is a mixture: no forward gives these log-probs"


def test_recomputed_work_is_scored_as_if_the_new_weights_had_read_all_of_it(models):
    _, results = group_across_an_update(models, "recompute")
    assert results[0, 0].columns[VERSION].tolist() == [0] * 3 + [1] * 6
    assert gap(results, lambda t: by_version(models, t)) <= 1e-10


def test_new_weights_leave_alone_the_tokens_that_old_ones_sampled(models):
    plain = serve(models)
    plain.submit([request(0, s, prompt(0, 11), max_tokens=9) for s in range(4)])
    before = drain(plain)
    for unfinished in ("keep", "recompute"):
        _, results = group_across_an_update(models, unfinished)
        for key, right in before.items():
            assert results[key].ids[:3].tolist() == right.ids[:3].tolist()
            assert np.abs(results[key].columns[LOGPROB] - right.columns[LOGPROB])[:3].max() <= 1e-12


def test_recompute_reads_everything_again_in_packed_steps_within_the_prefill_limit(models):
    serving = serve(models, prefill_tokens=30)
    serving.submit([request(g, s, prompt(g, 11), max_tokens=9) for g in range(3) for s in range(2)])
    for _ in range(3):
        serving.step()
    load(serving, models, 1, 0, "recompute")
    read = serving.prefilled
    steps = []
    for _ in range(4):
        serving.step()
        steps.append(serving.prefilled - read)
        read = serving.prefilled
    assert steps == [11 + 3 + 3, 11 + 3 + 3 + 11 + 2, 2, 0], "the third prompt came a step later than the others, by the same limit"
    assert gap(drain(serving), lambda t: by_version(models, t)) <= 1e-10


@pytest.mark.parametrize("seed", range(6))
def test_short_memory_and_several_updates_leave_every_log_prob_that_of_its_tokens_version(models, seed):
    random = np.random.default_rng(seed)
    serving = serve(models, slots=6, kv_tokens=int(random.integers(56, 90)), prefill_tokens=40)
    requests = [request(g, s, prompt(g, 3 + 4 * g), max_tokens=int(random.integers(2, 30))) for g in range(3) for s in range(4)]
    serving.submit(requests)
    results = {}
    for version in (1, 2, 3):
        for _ in range(int(random.integers(1, 9))):
            results |= {(t.group, t.sample): t for t in serving.step()}
        load(serving, models, version, version - 1, "recompute")
    results |= drain(serving)
    assert set(results) == {(r.group, r.sample) for r in requests}
    assert len({tuple(t.columns[VERSION]) for t in results.values()}) > 3
    assert all((np.diff(t.columns[VERSION]) >= 0).all() for t in results.values())
    assert gap(results, lambda t: by_version(models, t)) <= 1e-10
    assert serving.load_state().kv_used == 0


@pytest.mark.parametrize("seed", range(4))
def test_updates_moves_aborts_and_short_memory_in_any_order_leave_every_log_prob_that_of_its_tokens_version(models, tmp_path, seed):
    """Two engines hold two versions each; a new one takes the place of the older one on both."""
    random = np.random.default_rng(seed)
    engines = [serve(models, versions_held=2, slots=8, page=page, kv_tokens=page * (53 // page), prefill_tokens=9) for page in (4, 7)]
    for serving in engines:
        load(serving, models, 1, None)
    requests = [request(g, s, prompt(g, 3 + 4 * g), max_tokens=int(random.integers(1, 28))) for g in range(5) for s in range(6)]
    queue, newest, results, aborted = [requests[i] for i in random.permutation(len(requests))], 1, {}, set()
    for _ in range(50):
        if queue:
            engines[random.integers(2)].submit([replace(queue.pop(), version=newest - int(random.integers(2)))])
        for serving in engines:
            results |= {(t.group, t.sample): t for _ in range(random.integers(3)) for t in serving.step()}
        here, there = random.permutation(2)
        wanted = [(int(g), int(s)) for g, s in random.integers(0, 5, (3, 2))]
        left = engines[here].hand_over(wanted, str(tmp_path / "state"))
        assert engines[there].take_in(str(tmp_path / "state")).trajectories == left
        if random.random() < 0.1:
            gone = (int(random.integers(5)), int(random.integers(4)))
            aborted |= {gone} if any([serving.abort(*gone) for serving in engines]) else set()
        if random.random() < 0.15:
            newest += 1
            for serving in engines:
                load(serving, models, newest, newest - 2, "recompute")
    for serving in engines:
        results |= drain(serving)
        assert serving.load_state().kv_used == 0
    assert set(results) == {(r.group, r.sample) for r in requests} - aborted
    assert sum(serving.preempted for serving in engines)
    assert len({tuple(t.columns[VERSION]) for t in results.values()}) > 5
    assert gap(results, lambda t: by_version(models, t)) <= 1e-10


def test_a_preempted_trajectory_keeps_its_tokens_and_goes_on_under_the_weights_it_finds(models):
    serving = serve(models, slots=8, kv_tokens=64)
    serving.submit([request(0, s, prompt(0, 8), max_tokens=24) for s in range(4)])
    while not serving.preempted:
        assert serving.step() == []
    sampled = serving.load_state().tokens
    load(serving, models, 1, 0, "keep")
    results = drain(serving)
    preempted = results[0, 3]
    assert sorted(set(preempted.columns[VERSION])) == [0, 1]
    assert gap({(0, 3): preempted}, lambda t: by_version(models, t)) <= 1e-10
    assert sum((t.columns[VERSION] == 0).sum() for t in results.values()) == sampled, "no token was sampled twice"


def test_two_versions_side_by_side_give_the_log_probs_of_their_own_weights(models):
    serving = serve(models, versions_held=3, slots=24)
    for version in (1, 2):
        load(serving, models, version, None)
    serving.submit([request(g, s, prompt(g // 3, 7 + g), version=(g + s) % 3) for g in range(4) for s in range(6)])
    results = drain(serving)
    assert gap(results, lambda t: by_version(models, t)) <= 1e-10
    for (group, sample), result in results.items():
        assert set(result.columns[VERSION]) == {(group + sample) % 3}


@pytest.mark.parametrize("implementation", ["slim", "transformers"])
def test_copies_of_the_weights_share_nothing_and_tied_matrices_stay_tied(tmp_path, models, implementation):
    for tied in (True, False):
        paths = [tiny(tmp_path / f"{tied}{seed}", seed=seed, tied=tied)[0].directory for seed in (0, 5)]
        serving = engine(tiny(tmp_path / f"{tied}0", implementation=implementation, tied=tied), versions_held=2)
        serving.load(WeightsRef(0), str(paths[0]))
        before = serving.probe([60, 61, 62, 63])
        serving.load(WeightsRef(1), str(paths[1]))
        assert serving.probe([60, 61, 62, 63], 0).logprobs == before.logprobs
        cold = engine(tiny(tmp_path / f"{tied}5", seed=5, implementation=implementation, tied=tied))
        assert serving.probe([60, 61, 62, 63], 1).logprobs == pytest.approx(cold.probe([60, 61, 62, 63]).logprobs, abs=1e-12)


def test_a_probe_needs_no_free_page_and_disturbs_nobody(models):
    serving = serve(models, slots=8, kv_tokens=40)
    serving.submit([request(0, s, prompt(0, 8), max_tokens=12) for s in range(3)])
    serving.step()
    right = serve(models).probe(prompt(3, 40).tolist())
    assert serving.probe(prompt(3, 40).tolist()).logprobs == pytest.approx(right.logprobs, abs=1e-12)
    assert gap(drain(serving), lambda t: by_version(models, t)) <= 1e-10
