"""Trajectories that move between engines in the middle, with their KV cache."""

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import KERNELS, drain, engine, largest_gap, prompt, request, tiny

from paceline.types.errors import EngineError
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION
from paceline.types.weights import WeightsRef


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("moves") / "m")


def workload(groups=3, samples=4, **options):
    return [request(g, s, prompt(g, 5 + 6 * g), max_tokens=6 + 5 * s, **options) for g in range(groups) for s in range(samples)]


def steps(serving, n):
    return {(t.group, t.sample): t for _ in range(n) for t in serving.step()}


def alone(model, requests):
    serving = engine(model, slots=64)
    serving.submit(requests)
    return drain(serving)


def same(results, expected, bound):
    assert results.keys() == expected.keys()
    for key, right in expected.items():
        assert results[key].ids.tolist() == right.ids.tolist(), key
        assert (results[key].text, results[key].finish) == (right.text, right.finish)
        for name, column in right.columns.items():
            assert np.abs(results[key].columns[name] - column).max() <= bound


@pytest.mark.parametrize(("here", "there"), [(4, 4), (4, 7), (16, 1), (3, 32)])
def test_tokens_and_log_probs_after_a_move_are_those_without_it_for_any_page_sizes(model, tmp_path, here, there):
    requests = workload(temperature=0.8, top_k=40)
    source, target = engine(model, slots=12, page=here), engine(model, slots=12, page=there)
    source.submit(requests)
    results = steps(source, 5)
    left = source.hand_over([(g, s) for g in range(3) for s in (1, 3)], str(tmp_path / "state"))
    taken = target.take_in(str(tmp_path / "state"))
    assert (len(left), taken.trajectories, taken.prefilled_tokens) == (6, left, 0)
    results |= drain(source) | drain(target)
    assert target.prefilled == 0
    same(results, alone(model, requests), 1e-12)
    assert all(LOGPROB_KEPT in t.columns for t in results.values())
    assert source.load_state().kv_used == target.load_state().kv_used == 0


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_row_that_came_with_its_cache_continues_a_prompt_that_is_read_in_the_same_step(tmp_path, kernels, deterministic):
    model = tiny(tmp_path / "m", "float32", width=64)
    options = {"kernels": kernels, "deterministic": deterministic}
    requests = [request(0, s, prompt(0, 41), max_tokens=9) for s in range(2)]
    source, target = engine(model, slots=1, **options), engine(model, **options)
    source.submit(requests)
    steps(source, 3)
    for sample in range(2):  # the first decodes, the second has never run: it will be first in the queue, and read the prompt
        assert source.hand_over([(0, sample)], str(tmp_path / f"{sample}"))
    for sample in range(2):
        target.take_in(str(tmp_path / f"{sample}"))
    right = engine(model, **options)
    right.submit(requests)
    same(drain(target), drain(right), 0 if deterministic else 1e-5)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_an_engine_that_takes_its_own_trajectories_back_goes_on_as_if_nothing_had_happened(tmp_path, dtype, bound):
    model = tiny(tmp_path / "m", dtype=dtype)
    requests = workload()
    serving = engine(model, slots=12)
    serving.submit(requests)
    results = steps(serving, 5)
    serving.hand_over([(g, s) for g in range(3) for s in range(4)], str(tmp_path / "state"))
    assert serving.load_state().kv_used == 0
    read = serving.prefilled
    assert serving.take_in(str(tmp_path / "state")).prefilled_tokens == 0
    results |= drain(serving)
    assert serving.prefilled == read
    same(results, alone(model, requests), bound)


def test_a_file_holds_the_prompt_of_a_group_once_and_bfloat16_keys_and_values_in_their_own_size(tmp_path):
    for dtype in ("float64", "bfloat16"):
        serving = engine(tiny(tmp_path / dtype, dtype=dtype))
        serving.submit([request(0, s, prompt(0, 9), max_tokens=20) for s in range(3)])
        steps(serving, 4)
        serving.hand_over([(0, s) for s in range(3)], str(tmp_path / "state"))
        with safe_open(tmp_path / "state", framework="pt") as opened:
            shapes = {name: (str(opened.get_tensor(name).dtype), tuple(opened.get_slice(name).get_shape())) for name in opened.keys()}  # noqa: SIM118
        assert {name: shape for name, (_, shape) in shapes.items() if "keys" in name} == {
            "prompt.0.keys": (2, 9, 2, 8),
            **{f"trajectory.{s}.keys": (2, 3, 2, 8) for s in range(3)},
        }
        assert {kind for kind, _ in shapes.values()} == {f"torch.{dtype}"}


def test_a_prompt_that_came_along_is_shared_with_the_group_that_is_there_and_with_later_samples(model, tmp_path):
    source, target = engine(model), engine(model)
    for serving, first in ((source, 0), (target, 2)):
        serving.submit([request(0, s, prompt(0, 10), max_tokens=12) for s in range(first, first + 2)])
        steps(serving, 3)
    used = target.load_state().kv_used
    source.hand_over([(0, 0), (0, 1)], str(tmp_path / "state"))
    assert source.load_state().kv_used == 0
    target.take_in(str(tmp_path / "state"))
    target.submit([request(0, 4, prompt(0, 10), max_tokens=12)])
    results = steps(target, 1)
    assert target.load_state().kv_used == used + 2 * 4, "a page each for those two; the new one has none yet"
    results |= drain(target)
    assert target.prefilled == 10
    same(results, alone(model, [request(0, s, prompt(0, 10), max_tokens=12) for s in range(5)]), 1e-12)


def test_samples_that_start_after_a_move_begin_with_the_prompt_that_came_along(model, tmp_path):
    source, target = engine(model, slots=2), engine(model)
    requests = [request(0, s, prompt(0, 10), max_tokens=12) for s in range(4)]
    source.submit(requests)
    steps(source, 3)
    source.hand_over([(0, s) for s in range(4)], str(tmp_path / "state"))
    assert target.take_in(str(tmp_path / "state")).prefilled_tokens == 0
    same(drain(target), alone(model, requests), 1e-12)
    assert target.prefilled == 0


def test_a_stop_string_that_began_before_the_move_ends_the_trajectory_after_it(model, tmp_path):
    plain = alone(model, [request(0, s, prompt(0, 6), max_tokens=30) for s in range(12)])
    moves = 0
    for (_, sample), long in plain.items():
        for cut in range(2, len(long.ids)):
            stop = model[1](long.ids[cut - 1 : cut].tolist()) + model[1](long.ids[cut : cut + 1].tolist())
            if len(stop) < 2 or "\ufffd" in stop or stop in model[1](long.ids[:cut].tolist()):
                continue
            source, target = engine(model), engine(model)
            source.submit([request(0, sample, prompt(0, 6), max_tokens=30, stop=(stop,))])
            assert steps(source, cut) == {}
            source.hand_over([(0, sample)], str(tmp_path / "state"))
            target.take_in(str(tmp_path / "state"))
            (result,) = drain(target).values()
            assert (result.finish, result.ids.tolist()) == ("stop", long.ids[: cut + 1].tolist())
            assert not result.text.endswith(stop[-1])
            moves += 1
            break
    assert moves >= 3


def test_a_preempted_trajectory_moves_with_its_tokens_and_says_what_must_be_read_again(model, tmp_path):
    source, target = engine(model, slots=8, kv_tokens=64), engine(model)
    requests = [request(0, s, prompt(0, 8), max_tokens=24) for s in range(4)]
    source.submit(requests)
    while not source.preempted:
        assert source.step() == []
    tokens = source.load_state().tokens
    assert source.hand_over([(0, 3)], str(tmp_path / "state")) == ((0, 3),)
    taken = target.take_in(str(tmp_path / "state"))
    had = taken.prefilled_tokens - 8
    assert 0 < had < tokens / 3
    results = drain(target)
    assert target.prefilled == taken.prefilled_tokens
    assert target.load_state().tokens == len(results[0, 3].ids) - had
    same(results | drain(source), alone(model, requests), 1e-12)


def test_trajectories_that_find_no_page_wait_with_their_state_and_keep_their_turn(model, tmp_path):
    source, target = engine(model), engine(model, slots=8, kv_tokens=60)
    requests = [request(g, s, prompt(g, 8), max_tokens=24) for g in range(2) for s in range(3)]
    source.submit(requests)
    steps(source, 10)
    source.hand_over([(g, s) for g in range(2) for s in range(3)], str(tmp_path / "state"))
    target.submit([request(9, 0, prompt(9, 8), max_tokens=24)])
    steps(target, 1)
    assert target.take_in(str(tmp_path / "state")).prefilled_tokens == 0
    target.submit([request(8, 0, prompt(8, 8), max_tokens=24)])
    steps(target, 1)
    assert target.load_state().waiting > 1
    results = drain(target)
    assert list(results).index((8, 0)) > list(results).index((0, 0))
    both = [request(9, 0, prompt(9, 8), max_tokens=24), request(8, 0, prompt(8, 8), max_tokens=24)]
    same(results, alone(model, [*requests, *both]), 1e-12)
    assert target.load_state().kv_used == 0


def test_those_that_run_and_those_that_wait_with_the_same_prompt_move_on_together(model, tmp_path):
    requests = [request(0, s, prompt(0, 10), max_tokens=12) for s in range(4)]
    source, narrow, target = engine(model), engine(model, slots=2), engine(model)
    source.submit(requests)
    steps(source, 3)
    everyone = [(0, s) for s in range(4)]
    source.hand_over(everyone, str(tmp_path / "state"))
    narrow.take_in(str(tmp_path / "state"))
    steps(narrow, 2)
    assert (narrow.load_state().running, narrow.load_state().waiting) == (2, 2)
    assert len(narrow.hand_over(everyone, str(tmp_path / "state"))) == 4
    assert target.take_in(str(tmp_path / "state")).prefilled_tokens == 0
    same(drain(target), alone(model, requests), 1e-12)
    assert target.prefilled == 0


def test_keys_and_values_of_older_weights_move_too_and_only_their_own_trajectories_use_them(tmp_path):
    paths = [str(tiny(tmp_path / f"v{seed}", seed=seed)[0].directory) for seed in range(2)]

    def serving():
        made = engine(tiny(tmp_path / "v0"))
        made.load(WeightsRef(0), paths[0])
        return made

    stays, source, target = serving(), serving(), serving()
    requests = [request(0, s, prompt(0, 9), max_tokens=12) for s in range(3)]
    for one in (stays, source):
        one.submit(requests)
        steps(one, 4)
        one.load(WeightsRef(1), paths[1], "keep", 0)
        assert steps(one, 2) == {}
    target.load(WeightsRef(1), paths[1], "none", 0)
    later = [request(0, s, prompt(0, 9), max_tokens=12, version=1) for s in (3, 4)]
    target.submit(later[:1])
    steps(target, 1)
    assert len(source.hand_over([(0, s) for s in range(3)], str(tmp_path / "state"))) == 3
    assert target.take_in(str(tmp_path / "state")).prefilled_tokens == 0
    steps(target, 1)
    target.submit(later[1:])
    results = drain(target)
    assert all(results[0, s].columns[VERSION].tolist() == [0] * 4 + [1] * 8 for s in range(3))
    assert target.prefilled == 9, "the new prompt, once, and none of the old"
    stays.submit(later)
    same(results, drain(stays), 1e-12)
    assert target.load_state().kv_used == 0


@pytest.mark.parametrize("seed", range(5))
def test_any_moves_between_engines_of_any_memory_lose_nothing_and_change_no_token(model, tmp_path, seed):
    random = np.random.default_rng(seed)
    engines = [engine(model, slots=int(random.integers(1, 7)), page=page, kv_tokens=page * (64 // page + 3)) for page in (1, 4, 9)]
    requests = [request(g, s, prompt(g, 4 + 3 * g), max_tokens=int(random.integers(1, 30))) for g in range(4) for s in range(3)]
    for one in requests:
        engines[random.integers(3)].submit([one])
    results = {}
    for _ in range(60):
        for serving in engines:
            results |= steps(serving, int(random.integers(0, 3)))
        here, there = random.choice(3, 2, replace=False)
        wanted = [(int(g), int(s)) for g, s in random.integers(0, 4, (3, 2))]
        left = engines[here].hand_over(wanted, str(tmp_path / "state"))
        assert engines[there].take_in(str(tmp_path / "state")).trajectories == left
    for serving in engines:
        results |= drain(serving)
        assert serving.load_state().kv_used == 0
    same(results, alone(model, requests), 1e-12)
    assert largest_gap(model[0], results, lambda key: 1.0) <= 1e-10


def test_state_for_other_numbers_shapes_or_weights_is_refused_with_both_named(model, tmp_path):
    source = engine(model)
    source.submit([request(0, 0, prompt(0, 5))])
    steps(source, 2)
    source.hand_over([(0, 0)], str(tmp_path / "state"))
    others = {
        "dtype = torch.float64, here it is torch.float32": tiny(tmp_path / "narrow", dtype="float32"),
        "4 layers": tiny(tmp_path / "deep", layers=4),
        "weights of version 0": tiny(tmp_path / "other", seed=3),
    }
    for reason, other in others.items():
        target = engine(other)
        with pytest.raises(EngineError, match=reason):
            target.take_in(str(tmp_path / "state"))
        assert target.load_state().waiting == 0
    small = engine(model, kv_tokens=8)
    with pytest.raises(EngineError, match=r"trajectory \(0, 0\) in: .* need 5 KV pages of 4 tokens, the engine has 2"):
        small.take_in(str(tmp_path / "state"))
    assert engine(model).take_in(str(tmp_path / "state")).trajectories == ((0, 0),)


def test_the_time_a_trajectory_took_counts_on_both_engines(model, tmp_path):
    source, target = engine(model), engine(model)
    source.submit([request(0, 0, prompt(0, 5), max_tokens=10)])
    steps(source, 6)
    source.hand_over([(0, 0)], str(tmp_path / "state"))
    target.take_in(str(tmp_path / "state"))
    (result,) = drain(target).values()
    (right,) = alone(model, [request(0, 0, prompt(0, 5), max_tokens=10)]).values()
    assert result.seconds >= right.seconds
    assert LOGPROB in result.columns
