"""The emulated engine's own promises: when things happen, and that nothing else does. The contract tests hold the rest."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.core.costs import DecodeCost, LinearCost
from paceline.engines.emulated import EmulatedEngine, EngineCosts, Lengths
from paceline.ports.rollout import Failure
from paceline.runtime.bodies import PausingBody
from paceline.types.errors import EngineError, StateFileError
from paceline.types.records import VERSION, Request, Sampling, Trajectory
from paceline.types.weights import WeightsRef

DECODE = DecodeCost(0.1, 0.01, 0.0001)


class Place:
    """An engine and its time."""

    def __init__(self, *, mean: float = 50, sigma: float = 1.0, slots: int = 8, kv_tokens: int = 10**6, decode: DecodeCost = DECODE,
                 prefill: float = 0.0, load: float = 0.0, move: float = 0.0, jitter: float = 0.0, name: str = "e", held: int = 1,
                 trace: tuple[int, ...] = ()) -> None:  # fmt: skip
        self.now = 0.0
        self.engine = EmulatedEngine(
            instance=name, slots=slots, kv_tokens=kv_tokens, costs=EngineCosts(decode, LinearCost(0.0, prefill), load, LinearCost(0.0, move), jitter),
            lengths=Lengths(mean, sigma, trace), solved=0.5, clock=lambda: self.now, sleep=self.sleep, versions_held=held,
        )  # fmt: skip

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, until: float = float("inf")) -> list[tuple[float, Trajectory]]:
        """Step exactly when the engine asks for it; (time, trajectory) of everything that ends."""
        ended: list[tuple[float, Trajectory]] = []
        while True:
            for result in self.engine.step():
                assert isinstance(result, Trajectory), result
                ended.append((self.now, result))
            pause = self.engine.pause()
            if pause is None or self.now >= until:
                return ended
            self.now = min(until, self.now + max(pause, 1e-9))


def ask(group: int, sample: int = 0, *, prompt: int = 10, most: int = 10**4, version: int = 0) -> Request:
    return Request(group, sample, 0, np.arange(prompt, dtype=np.int32), Sampling(most), 7, version)


def publish(directory: Path, number: int) -> str:
    path = directory / f"updates-{number}"
    path.write_text(f'{{"applied": {number}}}')
    return str(path)


def stepwise(lengths: list[int], prompt: int, slots: int) -> list[float]:
    """End times by taking every step on its own."""
    waiting, running, now = list(enumerate(lengths)), {}, 0.0
    ends = [0.0] * len(lengths)
    while waiting or running:
        while waiting and len(running) < slots:
            place, length = waiting.pop(0)
            running[place] = [0, length]
        now += DECODE.step(len(running), prompt + sum(done for done, _ in running.values()) / len(running))
        for place in list(running):
            running[place][0] += 1
            if running[place][0] == running[place][1]:
                ends[place] = now
                del running[place]
    return ends


def test_trajectories_end_when_decoding_step_by_step_would_end_them() -> None:
    lengths = Place(slots=40)
    lengths.engine.submit([ask(group) for group in range(40)])
    counted = {result.group: len(result.ids) for _, result in lengths.run()}
    place = Place(slots=5)
    place.engine.submit([ask(group) for group in range(40)])
    ends = {result.group: now for now, result in place.run()}
    assert [ends[group] for group in range(40)] == pytest.approx(stepwise([counted[group] for group in range(40)], 10, 5), rel=1e-6)


def test_the_seconds_of_a_trajectory_do_not_depend_on_when_one_looks() -> None:
    found = []
    for late in (0.0, 1.3):
        place = Place(slots=3)
        place.engine.submit([ask(group) for group in range(20)])
        seconds: dict[int, float] = {}
        while (pause := place.engine.pause()) is not None:
            seconds |= {result.group: result.seconds for result in place.engine.step() if isinstance(result, Trajectory)}
            place.now += pause + late
        found.append(seconds)
    assert len(found[0]) == 20
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_lengths_and_outcomes_are_those_of_the_request_whatever_the_instance_slots_and_speed() -> None:
    found = []
    for place in (Place(), Place(slots=2, name="other", jitter=0.3), Place(kv_tokens=12000, decode=DecodeCost(0.01, 0.0))):
        place.engine.submit([ask(group, sample) for group in range(4) for sample in range(4)])
        found.append({(t.group, t.sample): (len(t.ids), t.text, int(t.ids[0])) for _, t in place.run()})
    assert found[0] == found[1] == found[2]
    assert {text for _, text, _ in found[0].values()} == {"0", "1"}
    assert len({length for length, _, _ in found[0].values()}) > 8


def test_lengths_have_the_mean_and_deviation_asked_for_or_those_of_the_trace() -> None:
    drawn = np.array([Lengths(2400, 1.0).at((i + 0.5) / 20000) for i in range(20000)])
    assert drawn.mean() == pytest.approx(2400, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(1.0, rel=0.01)
    assert {Lengths(1, 1, (3, 5)).at(q) for q in (0.0, 0.49, 0.5, 0.99)} == {3, 5}
    place = Place(trace=(17,))
    place.engine.submit([ask(0), ask(1, most=5)])
    assert {(len(t.ids), t.finish) for _, t in place.run()} == {(17, "eos"), (5, "length")}


def test_steps_and_their_seconds_are_counted_and_neither_prompts_nor_idle_time() -> None:
    place = Place(prefill=0.5, decode=DecodeCost(1.0, 0.5), trace=(40,))
    for start in (0.0, 1000.0):
        place.now = start
        place.engine.submit([ask(group) for group in range(4)])
        place.run()
    load = place.engine.load_state()
    assert (load.tokens, load.steps, load.seconds) == (320, 80, pytest.approx(80 * 3.0))
    assert PausingBody(place.engine).call("load_state") == load


def test_a_prompt_is_read_once_for_the_samples_that_run_together_and_nothing_decodes_meanwhile() -> None:
    place = Place(prefill=0.5, decode=DecodeCost(1.0, 0.0), trace=(4,))
    place.engine.submit([ask(group, sample) for group in range(2) for sample in range(3)])
    ended = place.run()
    assert place.engine.prefilled == 20
    assert {now for now, _ in ended} == {10.0 + 4.0}


def test_the_youngest_makes_room_when_memory_is_full_and_its_tokens_are_read_again() -> None:
    place = Place(kv_tokens=100, trace=(40,), decode=DecodeCost(1.0, 0.0))
    place.engine.submit([ask(group, most=40) for group in range(4)])
    ended = place.run()
    assert place.engine.preempted == 2
    assert place.engine.prefilled > 4 * 10
    assert [result.group for _, result in ended] == [0, 1, 2, 3]
    assert all(len(result.ids) == 40 for _, result in ended)
    assert ended[0][0] == 40.0, "the oldest is never preempted"
    assert (place.engine.load_state().kv_used, place.engine.load_state().tokens) == (0, 160)


def test_memory_is_never_overfull() -> None:
    place = Place(kv_tokens=400, mean=60, slots=16)
    place.engine.submit([ask(group, sample, most=150) for group in range(6) for sample in range(4)])
    count = 0
    while (pause := place.engine.pause()) is not None:
        count += len(place.engine.step())
        assert place.engine.load_state().kv_used <= 400
        place.now += pause
    assert count == 24


def test_jitter_changes_when_things_end_by_about_its_size_and_repeats() -> None:
    def end(jitter: float, name: str) -> float:
        place = Place(jitter=jitter, name=name, trace=(20000,), decode=DecodeCost(0.01, 0.0))
        place.engine.submit([ask(0, most=20000)])
        return place.run()[0][0]

    assert end(0.0, "a") == pytest.approx(200.0)
    assert end(0.2, "a") == end(0.2, "a") != end(0.2, "b")
    ends = [end(0.2, f"rollout-{i}") for i in range(20)]
    assert np.mean(ends) == pytest.approx(200.0, rel=0.03)
    assert np.std(ends) == pytest.approx(200.0 * 0.2 / np.sqrt(20000 / 256), rel=0.5)


def test_weights_that_change_under_work_mark_the_tokens_sampled_after_them_and_cost_their_time(tmp_path: Path) -> None:
    for unfinished, late in (("keep", 5.0), ("recompute", 5.0 + 0.1 * (10 + 20))):
        place = Place(trace=(50,), decode=DecodeCost(1.0, 0.0), load=5.0, prefill=0.1)
        place.engine.load(WeightsRef(1), publish(tmp_path, 1))
        place.now, place.engine._at = 0.0, 0.0
        place.engine.submit([ask(0, version=1)])
        place.run(until=21.0)
        place.engine.load(WeightsRef(2), publish(tmp_path, 2), unfinished, 1)  # type: ignore[arg-type]
        ((now, result),) = place.run()
        assert result.columns[VERSION].tolist() == [1] * 20 + [2] * 30
        assert now == pytest.approx(1.0 + 50.0 + late)


def test_versions_side_by_side_read_their_weights_each(tmp_path: Path) -> None:
    place = Place(trace=(10,), decode=DecodeCost(1.0, 0.0), held=2)
    for version in (1, 2):
        place.engine.load(WeightsRef(version), publish(tmp_path, version))
    place.engine.submit([ask(0, version=1), ask(1, version=2)])
    assert [(now, set(result.columns[VERSION])) for now, result in place.run()] == [(20.0, {1}), (20.0, {2})]
    assert place.engine.probe([5, 6, 7], 1).logprobs != place.engine.probe([5, 6, 7]).logprobs
    with pytest.raises(EngineError, match="cannot load version 3"):
        place.engine.load(WeightsRef(3), publish(tmp_path, 3))


def test_moved_trajectories_go_on_where_they_were_without_reading_their_prompt_again(tmp_path: Path) -> None:
    here, there = (Place(trace=(30,), decode=DecodeCost(1.0, 0.0), prefill=0.1, move=0.05, name=name) for name in ("a", "b"))
    here.engine.submit([ask(0, sample) for sample in range(2)])
    here.run(until=11.0)
    assert here.engine.hand_over([(0, 0), (0, 1), (9, 9)], str(tmp_path / "state")) == ((0, 0), (0, 1))
    moved_tokens = 10 + 2 * 10
    assert here.now == pytest.approx(11.0 + 0.05 * moved_tokens)
    assert (here.engine.load_state().kv_used, here.engine.pause()) == (0, None)
    there.now = there.engine._at = here.now
    taken = there.engine.take_in(str(tmp_path / "state"))
    assert (taken.trajectories, taken.prefilled_tokens) == (((0, 0), (0, 1)), 0)
    ended = there.run()
    assert there.engine.prefilled == 0
    assert [now for now, _ in ended] == pytest.approx([here.now + 0.05 * moved_tokens + 20.0] * 2)
    assert [(result.sample, len(result.ids), result.instance) for _, result in ended] == [(0, 30, "b"), (1, 30, "b")]


def test_what_travels_is_plain_json_and_keeps_versions_attempts_and_the_time_spent(tmp_path: Path) -> None:
    here, there = (Place(trace=(30,), decode=DecodeCost(1.0, 0.0), name=name, held=2) for name in ("a", "b"))
    for place in (here, there):
        place.engine.load(WeightsRef(1), publish(tmp_path, 1))
    here.engine.submit([ask(0, version=1)])
    here.run(until=11.0)
    here.engine.load(WeightsRef(2), publish(tmp_path, 2), "keep", 1)
    there.engine.load(WeightsRef(2), publish(tmp_path, 2))
    here.engine.hand_over([(0, 0)], str(tmp_path / "state"))
    (travels,) = json.loads((tmp_path / "state").read_text())["trajectories"]
    assert (travels["versions"], travels["done"], travels["kv"], travels["seconds"]) == ([[0, 1], [11, 2]], 11, True, 11.0)
    there.now = there.engine._at = 500.0
    there.engine.take_in(str(tmp_path / "state"))
    ((_, result),) = there.run()
    assert result.columns[VERSION].tolist() == [1] * 11 + [2] * 19
    assert result.seconds == 30.0, "the other instance's clock does not count"
    (tmp_path / "other").write_text('{"format": 0, "trajectories": []}')
    with pytest.raises(StateFileError, match="state of format 0, this engine reads format 1"):
        there.engine.take_in(str(tmp_path / "other"))


def test_trajectories_of_a_version_that_is_not_held_are_not_taken_in(tmp_path: Path) -> None:
    here, there = Place(trace=(30,)), Place()
    here.engine.submit([ask(0)])
    here.engine.hand_over([(0, 0)], str(tmp_path / "state"))
    there.engine.load(WeightsRef(1), publish(tmp_path, 1))
    with pytest.raises(EngineError, match="e holds version 1, not 0"):
        there.engine.take_in(str(tmp_path / "state"))
    with pytest.raises(EngineError, match="cannot read the state"):
        there.engine.take_in(str(tmp_path / "nothing"))
    assert there.engine.pause() is None


def test_an_engine_without_work_asks_for_nothing_and_refusals_are_told_at_once() -> None:
    place = Place(kv_tokens=50)
    assert place.engine.pause() is None
    place.engine.submit([ask(0, most=100)])
    assert place.engine.pause() == 0
    (failure,) = place.engine.step()
    assert isinstance(failure, Failure)
    assert place.engine.pause() is None


def test_a_worker_of_the_emulated_engine_or_trainer_loads_nothing_heavy() -> None:
    code = "import sys, paceline.cli.emulated; print([m for m in ('torch', 'pyarrow', 'pydantic', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
