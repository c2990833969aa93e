"""What every rollout engine keeps, on the public fake and on the in-process engine alike."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_steps import Steps, publish

from paceline.config.schema import ModelConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.load import load, load_tokenizer
from paceline.models.tiny import write_tiny
from paceline.ports.fakes.engine import FakeEngine
from paceline.ports.rollout import Failure
from paceline.types.errors import ConfigError, EngineError, ModelError, StateFileError
from paceline.types.records import LOGPROB, VERSION, Request, Sampling, Trajectory
from paceline.types.weights import WeightsRef

torch.set_num_threads(1)
STOPS = tuple(range(15))
"""Enough end-of-sequence ids that trajectories of the tiny model have different lengths."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return [str(write_tiny(root / f"v{seed}", seed=seed, dtype="float64")) for seed in range(2)]


def checksum(ref, location):
    """What the fake finds at a location."""
    if not Path(location).exists():
        raise ModelError(f"{location}: no such file")
    return f"checksum of {location}"


@pytest.fixture(params=["fake", "torch", "emulated"])
def kind(request):
    return request.param


@pytest.fixture
def directories(kind, models, tmp_path):
    """Weights of versions 0 and 1, as this engine reads them."""
    return [publish(tmp_path, number) for number in range(2)] if kind == "emulated" else models


@pytest.fixture
def make(kind, models):
    """Builds an engine. cut: trajectories all reach their limit, as the model's do that have no further end of sequence."""

    def build(slots=4, kv_tokens=512, versions_held=1, cut=False):
        ticks = itertools.count()
        common = {
            "instance": "e7",
            "slots": slots,
            "kv_tokens": kv_tokens,
            "versions_held": versions_held,
            "clock": lambda: float(next(ticks)),
        }
        if kind == "emulated":
            return Steps(**common, cut=cut)
        if kind == "fake":
            lengths = {"length": lambda request: request.sampling.max_tokens + 1} if cut else {}
            return FakeEngine(**common, **lengths, checksum=checksum)
        loaded = load(ModelConfig(path=models[0], dtype="float64"))
        tokenizer = load_tokenizer(loaded.directory)
        return TorchEngine(loaded, decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True), page=4, **common)

    return build


def ask(group, sample, *, length=6, max_tokens=10, seed=1, attempt=1, version=0, purpose="train", stop_ids=STOPS):
    ids = np.random.default_rng(group).integers(50, 99, size=length).astype(np.int32)
    return Request(group, sample, attempt, ids, Sampling(max_tokens, stop_ids=stop_ids), seed, version, purpose)


def drain(engine):
    results = []
    for _ in range(500):
        results += engine.step()
        state = engine.load_state()
        assert state.running <= engine.info().slots
        if not state.running and not state.waiting:
            return results
    raise AssertionError(f"not idle: {engine.load_state()}")


def texts(results):
    return {(r.group, r.sample): r.ids.tolist() for r in results}


def test_every_request_comes_back_exactly_once_with_its_key_attempt_and_prompt(make):
    engine = make()
    requests = [ask(g, s, length=3 + g, attempt=g + 1) for g in range(3) for s in range(5)]
    engine.submit(requests)
    results = drain(engine)
    assert sorted((r.group, r.sample, r.attempt) for r in results) == [(r.group, r.sample, r.attempt) for r in requests]
    for result in results:
        assert np.array_equal(result.prompt_ids, ask(result.group, 0, length=3 + result.group).prompt_ids)
        assert result.instance == "e7"
        assert result.purpose == "train"
        assert result.seconds > 0


def test_every_token_has_a_log_prob_and_the_version_asked_for(make):
    engine = make()
    engine.submit([ask(0, s) for s in range(6)])
    for result in drain(engine):
        assert len(result.columns[LOGPROB]) == len(result.columns[VERSION]) == len(result.ids) > 0
        assert (result.columns[LOGPROB] < 0).all()
        assert result.columns[VERSION].tolist() == [0] * len(result.ids)


def test_finish_says_whether_the_last_token_ends_a_sequence_or_the_limit_was_reached(make):
    engine = make(slots=16)
    engine.submit([ask(0, s, max_tokens=8) for s in range(40)])
    results = drain(engine)
    assert {r.finish for r in results} == {"eos", "length"}
    for result in results:
        ends = [token in STOPS for token in result.ids.tolist()]
        assert not any(ends[:-1])
        assert result.finish == ("eos" if ends[-1] else "length")
        assert len(result.ids) == 8 or result.finish == "eos"


def test_an_idle_engine_steps_at_once_and_returns_nothing(make):
    engine = make()
    assert list(engine.step()) == []
    state = engine.load_state()
    assert (state.kv_used, state.running, state.waiting, state.tokens) == (0, 0, 0, 0)


def test_load_state_counts_running_waiting_and_tokens_and_returns_to_nothing_held(make):
    engine = make(slots=2)
    engine.submit([ask(0, s, stop_ids=(), max_tokens=5) for s in range(5)])
    assert (engine.load_state().running, engine.load_state().waiting) == (0, 5)
    first = list(engine.step())
    state = engine.load_state()
    assert (state.running + len(first), state.waiting, state.tokens) == (2, 3, 2)
    assert state.kv_used >= (6 if state.running else 0)
    results = first + drain(engine)
    state = engine.load_state()
    assert (state.kv_used, state.running, state.waiting) == (0, 0, 0)
    assert state.tokens == sum(len(r.ids) for r in results)


def test_requests_join_while_others_decode(make):
    engine = make(slots=3)
    engine.submit([ask(0, 0, stop_ids=(), max_tokens=30)])
    engine.step()
    assert (engine.load_state().running, engine.load_state().tokens) == (1, 1)
    engine.submit([ask(1, 0, stop_ids=(), max_tokens=30)])
    engine.step()
    assert (engine.load_state().running, engine.load_state().tokens) == (2, 3)


def test_tokens_do_not_depend_on_slots_order_of_submission_or_joining_time(make):
    requests = [ask(g, s, length=2 + 3 * g) for g in range(3) for s in range(4)]
    together = make(slots=16)
    together.submit(requests)
    expected = texts(drain(together))
    one_slot = make(slots=1)
    one_slot.submit(requests)
    assert texts(drain(one_slot)) == expected
    late = make(slots=5)
    results = []
    for request in reversed(requests):
        late.submit([request])
        results += late.step()
    assert texts(results + drain(late)) == expected


def test_seed_purpose_group_and_sample_each_give_other_numbers(make):
    def one(**names):
        engine = make()
        engine.submit([ask(names.pop("group", 0), names.pop("sample", 0), stop_ids=(), max_tokens=30, **names)])
        (result,) = drain(engine)
        return result.ids.tolist()

    variants = [one(), one(seed=2), one(purpose="eval"), one(sample=1), one(group=1)]
    assert one() == variants[0]
    assert all(a[:5] != b[:5] for a, b in itertools.combinations(variants, 2))


def test_results_of_one_step_keep_the_order_of_submission(make):
    engine = make(slots=8)
    engine.submit([ask(g, s, max_tokens=1) for g in (5, 2) for s in (1, 0)])
    assert [(r.group, r.sample) for r in engine.step()] == [(5, 1), (5, 0), (2, 1), (2, 0)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (ask(9, 0, length=500, max_tokens=200), "exceeds|KV pages"),
        (ask(9, 0, version=3), "version 3 was asked for, e7 holds 0"),
        (ask(9, 0, length=0), "empty"),
        (ask(9, 0, max_tokens=0), "max_tokens = 0"),
    ],
)
def test_an_impossible_request_fails_with_its_reason_and_leaves_the_others_alone(make, bad, reason):
    engine = make()
    engine.submit([ask(0, 0), bad, ask(0, 1)])
    assert engine.load_state().waiting == 3
    results = drain(engine)
    (failure,) = [r for r in results if isinstance(r, Failure)]
    assert (failure.group, failure.sample, failure.attempt) == (9, 0, 1)
    assert re.search(reason, failure.error)
    assert sorted((r.group, r.sample) for r in results if isinstance(r, Trajectory)) == [(0, 0), (0, 1)]


def test_training_and_evaluation_of_the_same_numbers_are_aborted_apart(make):
    for gone, left in (("eval", "train"), ("train", "eval")):
        engine = make(slots=3)
        engine.submit([ask(0, sample, purpose=purpose) for purpose in ("train", "eval") for sample in range(3)])
        ended = list(engine.step())
        assert engine.abort(0, 0, gone)
        assert engine.abort(0, 2, gone)
        assert not engine.abort(0, 2, gone)
        assert sorted((r.purpose, r.sample) for r in [*ended, *drain(engine)]) == sorted([(gone, 1), (left, 0), (left, 1), (left, 2)])


def test_a_failure_says_whose_it_is(make):
    engine = make(kv_tokens=16)
    engine.submit([ask(0, 0, max_tokens=100, purpose="eval"), ask(0, 0, max_tokens=100)])
    assert [failure.purpose for failure in drain(engine)] == ["eval", "train"]


def test_an_aborted_trajectory_never_comes_back_and_frees_its_memory(make):
    engine = make(slots=2)
    engine.submit([ask(0, s, stop_ids=(), max_tokens=40) for s in range(4)])
    started = list(engine.step())
    done = {r.sample for r in started}
    running = next(s for s in range(2) if s not in done)
    assert engine.abort(0, running)
    assert engine.abort(0, 3)
    assert not engine.abort(0, running)
    assert not engine.abort(8, 0)
    results = started + drain(engine)
    assert sorted(r.sample for r in results) == sorted({0, 1, 2} - {running})
    assert engine.load_state().kv_used == 0


def test_one_attempt_can_be_aborted_and_another_of_the_same_trajectory_goes_on(make):
    engine = make(cut=True)
    begun(engine, ask(0, 0, stop_ids=()), ask(0, 0, stop_ids=(), attempt=2))
    assert engine.abort(0, 0, "train", 1)
    assert not engine.abort(0, 0, "train", 3)
    assert [r.attempt for r in drain(engine)] == [2]


def test_a_second_attempt_samples_the_tokens_of_the_first(make):
    engine = make()
    engine.submit([ask(4, 2)])
    (first,) = drain(engine)
    engine.submit([ask(4, 2, attempt=2)])
    (second,) = drain(engine)
    assert second.attempt == 2
    assert second.ids.tolist() == first.ids.tolist()


def test_loading_with_work_in_flight_is_refused_and_the_work_goes_on(make, directories):
    engine = make()
    engine.submit([ask(0, 0, stop_ids=(), max_tokens=20)])
    with pytest.raises(EngineError, match="version 1"):
        engine.load(WeightsRef(1), directories[1])
    (result,) = drain(engine)
    assert set(result.columns[VERSION]) == {0}


def test_a_loaded_version_is_served_reported_and_the_old_one_refused(make, directories):
    engine = make()
    checksum = engine.load(WeightsRef(1), directories[1])
    assert checksum
    report = engine.probe([60, 61, 62, 63, 64, 65, 66])
    assert (report.version, report.fingerprint, len(report.logprobs)) == (1, checksum, 6)
    engine.submit([ask(0, 0), ask(0, 1, version=1)])
    by_sample = {r.sample: r for r in drain(engine)}
    assert isinstance(by_sample[0], Failure)
    assert set(by_sample[1].columns[VERSION]) == {1}


def test_the_same_weights_have_the_same_checksum_and_others_another(make, directories):
    engine = make()
    loads = ((0, None), (1, 0), (0, 1))
    first, other, again = (engine.load(WeightsRef(v), directories[v], replaces=before) for v, before in loads)
    assert first == again != other


def test_probing_leaves_work_in_flight_and_its_tokens_alone(make):
    alone, probed = make(), make()
    for engine in (alone, probed):
        engine.submit([ask(0, s) for s in range(4)])
    expected = texts(drain(alone))
    results = []
    for _ in range(3):
        results += probed.step()
        assert len(probed.probe([60, 61, 62, 63, 64]).logprobs) == 4
    assert texts(results + drain(probed)) == expected
    assert probed.load_state().kv_used == 0


def test_a_probe_of_fewer_than_two_tokens_is_refused(make):
    with pytest.raises(EngineError, match="1 token"):
        make().probe([60])


def test_an_engine_says_who_it_is_and_what_it_can_carry(make):
    info = make(slots=3, kv_tokens=128).info()
    assert (info.instance, info.slots, info.kv_tokens, info.versions_held, info.exports_kv) == ("e7", 3, 128, 1, True)


# --- several versions, and weights that come under work


def begun(engine, *requests, steps=3):
    """Submit and take a few steps; what has ended by then."""
    engine.submit(requests)
    return [result for _ in range(steps) for result in engine.step()]


def test_an_engine_says_how_many_versions_it_holds_and_refuses_to_hold_none(make):
    assert make(versions_held=3).info().versions_held == 3
    with pytest.raises(ConfigError, match="versions_held = 0"):
        make(versions_held=0)


def test_several_versions_are_served_side_by_side_each_with_its_own_checksum_and_probe(make, directories):
    engine, alone = make(versions_held=2, slots=8), {}
    checksums = [engine.load(WeightsRef(v), directories[v]) for v in (0, 1)]
    assert checksums[0] != checksums[1]
    engine.submit([ask(g, s, version=g % 2) for g in range(2) for s in range(4)])
    results = drain(engine)
    for version in (0, 1):
        cold = make(slots=8)
        assert cold.load(WeightsRef(version), directories[version]) == checksums[version]
        report, right = engine.probe([60, 61, 62, 63, 64], version), cold.probe([60, 61, 62, 63, 64])
        assert (report.version, report.fingerprint) == (version, checksums[version])
        assert report.logprobs == pytest.approx(right.logprobs, abs=1e-12)
        cold.submit([ask(version, s, version=version) for s in range(4)])
        alone |= texts(drain(cold))
    assert texts(results) == alone
    assert all(set(r.columns[VERSION]) == {r.group} for r in results)
    assert engine.probe([60, 61]).version == 1


def test_results_of_one_step_keep_the_order_of_submission_across_versions(make, directories):
    engine = make(slots=8, versions_held=2)
    for version in (0, 1):
        engine.load(WeightsRef(version), directories[version])
    engine.submit([ask(g, s, max_tokens=1, version=(g + s) % 2) for g in (5, 2) for s in (1, 0)])
    assert [(r.group, r.sample) for r in engine.step()] == [(5, 1), (5, 0), (2, 1), (2, 0)]


def test_a_load_replaces_the_version_it_names_and_work_under_the_others_goes_on(make, directories):
    engine = make(versions_held=2)
    for version in (0, 1):
        engine.load(WeightsRef(version), directories[version])
    begun(engine, ask(0, 0, version=1, stop_ids=(), max_tokens=12))
    engine.load(WeightsRef(2), directories[0], replaces=0)
    engine.submit([ask(1, 0, version=2), ask(2, 0, version=0)])
    results = {r.group: r for r in drain(engine)}
    assert set(results[0].columns[VERSION]) == {1}
    assert set(results[1].columns[VERSION]) == {2}
    assert "version 0 was asked for, e7 holds 1, 2" in results[2].error


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        ([(1, None), (2, None)], "no place is empty"),
        ([(1, 0)], "version 0, which it replaces, holds no place"),
        ([(1, None), (2, 0)], "version 0, which it replaces, holds no place"),
    ],
)
def test_a_load_without_a_place_is_refused_and_changes_nothing(make, directories, loads, reason):
    engine = make()
    for version, replaces in loads[:-1]:
        engine.load(WeightsRef(version), directories[1], replaces=replaces)
    held = engine.probe([60, 61])
    with pytest.raises(EngineError, match=reason):
        engine.load(WeightsRef(loads[-1][0]), directories[0], replaces=loads[-1][1])
    assert engine.probe([60, 61]).logprobs == held.logprobs
    assert engine.probe([60, 61]).version == held.version


def test_a_version_that_is_held_already_or_not_at_all_is_refused(make, directories):
    engine = make(versions_held=2)
    engine.load(WeightsRef(1), directories[1])
    with pytest.raises(EngineError, match="held already"):
        engine.load(WeightsRef(1), directories[1])
    with pytest.raises(EngineError, match="holds version 1, not 7"):
        engine.probe([60, 61], 7)


def test_weights_that_replace_a_version_with_work_and_promise_none_are_refused(make, directories):
    engine = make()
    engine.load(WeightsRef(1), directories[1])
    begun(engine, ask(0, 0, version=1, stop_ids=(), max_tokens=20))
    with pytest.raises(EngineError, match="1 trajectories are unfinished under version 1"):
        engine.load(WeightsRef(2), directories[0], replaces=1)
    (result,) = drain(engine)
    assert set(result.columns[VERSION]) == {1}


@pytest.mark.parametrize("unfinished", ["keep", "recompute"])
def test_work_goes_on_under_new_weights_and_every_token_says_which_version_sampled_it(make, directories, unfinished):
    engine = make(slots=3)
    engine.load(WeightsRef(4), directories[0])
    ended = begun(engine, *(ask(0, s, version=4, stop_ids=(), max_tokens=9) for s in range(5)))
    engine.load(WeightsRef(5), directories[1], unfinished, replaces=4)
    engine.submit([ask(1, 0, version=5), ask(1, 1, version=4)])
    results = {(r.group, r.sample): r for r in [*ended, *drain(engine)]}
    for sample in range(5):
        result = results[0, sample]
        found = result.columns[VERSION].tolist()
        assert len(found) == len(result.ids) == len(result.columns[LOGPROB])
        assert found == sorted(found)
        assert found[:3] == [4 if sample < 3 else 5] * min(3, len(found))
        assert found[3:] == [5] * len(found[3:])
    assert "version 4 was asked for, e7 holds 5" in results[1, 1].error
    assert set(results[1, 0].columns[VERSION]) == {5}


def test_recompute_reads_prompt_and_tokens_again_and_keep_reads_nothing(make, directories):
    for unfinished, read in (("keep", 0), ("recompute", 6 + 3)):
        engine = make()
        engine.load(WeightsRef(1), directories[0])
        begun(engine, ask(0, 0, version=1, stop_ids=(), max_tokens=30))
        before = engine.prefilled
        engine.load(WeightsRef(2), directories[1], unfinished, replaces=1)
        (result,) = drain(engine)
        assert engine.prefilled - before == read
        assert result.columns[VERSION].tolist() == [1] * 3 + [2] * (len(result.ids) - 3)


def test_a_load_that_fails_ends_the_work_it_replaced_and_leaves_the_other_versions_alone(make, directories):
    engine = make(versions_held=2)
    for version in (1, 2):
        engine.load(WeightsRef(version), directories[version - 1])
    begun(engine, ask(0, 0, version=1, stop_ids=(), max_tokens=20), ask(1, 0, version=2, stop_ids=(), max_tokens=20))
    with pytest.raises(ModelError):
        engine.load(WeightsRef(3), "/nowhere", "keep", replaces=1)
    engine.submit([ask(2, 0, version=1), ask(3, 0, version=3)])
    results = {r.group: r for r in drain(engine)}
    assert "version 1 made way for version 3, which could not be loaded" in results[0].error
    assert set(results[1].columns[VERSION]) == {2}
    assert all("holds 2" in results[group].error for group in (2, 3))
    assert engine.load_state().kv_used == 0
    engine.load(WeightsRef(3), directories[0])
    engine.submit([ask(2, 0, version=3)])
    assert set(drain(engine)[0].columns[VERSION]) == {3}


# --- trajectories that move


def moved(source, target, trajectories, path):
    """Hand over and take in; what left, and what the target says."""
    left = source.hand_over(trajectories, str(path))
    taken = target.take_in(str(path))
    assert taken.trajectories == left
    return left, taken


def test_moved_trajectories_sample_the_tokens_they_would_have_sampled_where_they_were(make, tmp_path):
    requests = [ask(g, s, length=4 + 3 * g, stop_ids=STOPS[:4], max_tokens=14) for g in range(2) for s in range(4)]
    alone = make(slots=8)
    alone.submit(requests)
    expected = texts(drain(alone))
    source, target = make(slots=8), make(slots=3)
    early = begun(source, *requests)
    wanted = [(0, 1), (1, 0), (1, 3), (0, 3)]
    left, taken = moved(source, target, wanted, tmp_path / "state")
    done = {(r.group, r.sample) for r in early}
    assert set(left) == set(wanted) - done
    assert taken.prefilled_tokens == 0
    results = [*drain(source), *drain(target)]
    assert sorted((r.group, r.sample) for r in [*early, *results]) == sorted(expected)
    assert texts([*early, *results]) == expected
    assert target.prefilled == 0
    for result in results:
        assert len(result.columns[LOGPROB]) == len(result.columns[VERSION]) == len(result.ids)
        assert result.seconds > 0
    assert source.load_state().kv_used == target.load_state().kv_used == 0


def test_a_move_changes_nothing_for_those_who_stay_and_for_those_who_were_there(make, tmp_path):
    source, target = make(cut=True), make(cut=True)
    begun(source, *(ask(0, s, stop_ids=()) for s in range(4)))
    begun(target, *(ask(1, s, stop_ids=()) for s in range(2)))
    assert moved(source, target, [(0, 2), (0, 0), (7, 7)], tmp_path / "state")[0] == ((0, 0), (0, 2))
    assert (source.load_state().running, target.load_state().running + target.load_state().waiting) == (2, 4)
    assert {(r.group, r.sample) for r in drain(source)} == {(0, 1), (0, 3)}
    assert {(r.group, r.sample) for r in drain(target)} == {(0, 0), (0, 2), (1, 0), (1, 1)}


def test_one_that_finished_or_never_came_or_is_evaluated_is_left_out_of_a_move(make, tmp_path):
    source, target = make(cut=True), make(cut=True)
    begun(source, ask(0, 0, max_tokens=1), ask(0, 1, purpose="eval", stop_ids=()), steps=1)
    left, taken = moved(source, target, [(0, 0), (0, 1), (5, 5)], tmp_path / "state")
    assert (left, taken.trajectories, taken.prefilled_tokens) == ((), (), 0)
    assert drain(target) == []
    assert [r.purpose for r in drain(source)] == ["eval"]


def test_waiting_trajectories_move_too_and_run_before_newer_ones(make, tmp_path):
    source, target = make(slots=1, cut=True), make(slots=1, cut=True)
    begun(source, *(ask(0, s, stop_ids=(), max_tokens=5) for s in range(3)))
    begun(target, ask(1, 0, stop_ids=(), max_tokens=5), ask(1, 1, stop_ids=(), max_tokens=5))
    left, taken = moved(source, target, [(0, 0), (0, 2)], tmp_path / "state")
    assert (left, taken.prefilled_tokens) == (((0, 0), (0, 2)), 0)
    assert [(r.group, r.sample) for r in drain(target)] == [(1, 0), (0, 0), (0, 2), (1, 1)]
    assert [(r.group, r.sample) for r in drain(source)] == [(0, 1)]


def test_trajectories_move_under_their_own_version_and_to_nobody_who_does_not_hold_it(make, directories, tmp_path):
    source, target, stranger = make(versions_held=2, cut=True), make(), make()
    for engine, version in ((source, 1), (source, 2), (target, 2), (stranger, 1)):
        engine.load(WeightsRef(version), directories[version - 1])
    begun(source, ask(0, 0, version=2, stop_ids=()), ask(1, 0, version=1, stop_ids=()))
    source.hand_over([(0, 0)], str(tmp_path / "state"))
    with pytest.raises(EngineError, match="not 2"):
        stranger.take_in(str(tmp_path / "state"))
    assert stranger.load_state().waiting == 0
    target.take_in(str(tmp_path / "state"))
    assert [(r.group, set(r.columns[VERSION])) for r in drain(target)] == [(0, {2})]
    assert [(r.group, set(r.columns[VERSION])) for r in drain(source)] == [(1, {1})]


def test_a_trajectory_may_move_on_and_back_before_it_ran_again(make, tmp_path):
    engines = [make(cut=True) for _ in range(3)]
    alone = make(cut=True)
    for engine in (alone, engines[0]):
        begun(engine, *(ask(0, s, stop_ids=(), max_tokens=9) for s in range(2)))
    for here, there in ((0, 1), (1, 2), (2, 0)):
        assert moved(engines[here], engines[there], [(0, 0), (0, 1)], tmp_path / f"state{here}")[1].prefilled_tokens == 0
    assert texts(drain(engines[0])) == texts(drain(alone))


def test_a_moved_trajectory_can_be_aborted_where_it_came_to_and_is_unknown_where_it_was(make, tmp_path):
    source, target = make(cut=True), make(cut=True)
    begun(source, ask(0, 0, stop_ids=()))
    moved(source, target, [(0, 0)], tmp_path / "state")
    assert not source.abort(0, 0)
    assert target.abort(0, 0)
    assert drain(target) == drain(source) == []
    assert target.load_state().kv_used == 0


def test_a_state_file_that_cannot_be_read_or_written_is_refused_and_moves_nothing(make, tmp_path):
    source, target = make(cut=True), make(cut=True)
    begun(source, ask(0, 0, stop_ids=()))
    with pytest.raises(StateFileError, match="cannot write"):
        source.hand_over([(0, 0)], str(tmp_path / "nowhere" / "state"))
    assert source.load_state().running == 1
    source.hand_over([(0, 0)], str(tmp_path / "state"))
    (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:-20])
    for name in ("cut", "absent"):
        with pytest.raises(StateFileError, match="cannot read"):
            target.take_in(str(tmp_path / name))
    assert target.load_state().waiting == 0
    target.take_in(str(tmp_path / "state"))
    assert len(drain(target)) == 1


def test_weights_may_arrive_under_work_that_was_taken_in_and_has_not_run_yet(make, directories, tmp_path):
    for unfinished in ("keep", "recompute"):
        source, target = make(cut=True), make(slots=1, cut=True)
        for engine in (source, target):
            engine.load(WeightsRef(1), directories[0])
        begun(source, *(ask(0, s, version=1, stop_ids=(), max_tokens=8) for s in range(3)))
        moved(source, target, [(0, 0), (0, 1), (0, 2)], tmp_path / "state")
        target.load(WeightsRef(2), directories[1], unfinished, replaces=1)
        results = drain(target)
        assert sorted(r.sample for r in results) == [0, 1, 2]
        assert all(r.columns[VERSION].tolist() == [1] * 3 + [2] * (len(r.ids) - 3) for r in results)
        assert (target.prefilled > 0) == (unfinished == "recompute")
        assert target.load_state().kv_used == 0


def test_a_state_file_is_taken_in_once(make, tmp_path):
    source, target = make(cut=True), make(cut=True)
    begun(source, ask(0, 0, stop_ids=()))
    moved(source, target, [(0, 0)], tmp_path / "state")
    with pytest.raises(EngineError, match=r"trajectory \(0, 0\) in: it is here already"):
        target.take_in(str(tmp_path / "state"))
    assert len(drain(target)) == 1
