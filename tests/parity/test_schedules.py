"""The same training, whatever the schedule: whole runs of the real runtime on a tiny float64 model, against serial with the same U.

Bounds: gradients 1e-12 relative L2, final weights 1e-9, log-probs 1e-12.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from schedule_runs import (
    Played,
    behaviour_error,
    by_version,
    consumed,
    distance,
    kept_error,
    largest,
    mixed,
    play,
    regenerated,
    same_tokens,
    schedule,
)

from paceline.models.tiny import write_tiny

torch.set_num_threads(1)
GRADIENT, WEIGHT, LOGPROB = 1e-12, 1e-9, 1e-12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def serial(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Three rounds of one update each; all 24 trajectories of a round decode together."""
    return play(tiny, tmp_path_factory.mktemp("serial"), schedule(groups=6, update=6, rounds=3), slots=24)


def assert_same_training(run: Played, right: Played) -> None:
    assert run.stop.ok
    assert run.violations == ()
    assert same_tokens(run, right)
    assert len(run.witness.gradients) == len(right.witness.gradients)
    assert max(map(distance, run.witness.gradients, right.witness.gradients)) <= GRADIENT
    assert largest(run.weights, right.weights) <= WEIGHT
    assert largest(run.weights, run.witness.versions[0]) > 1e-3, "training moved the weights"


@pytest.mark.parametrize(
    "changes",
    [
        {"groups_per_dispatch": 1},
        {"groups_per_dispatch": 2, "frontier": 3, "refill": "sample"},
        {"groups_per_dispatch": 3, "frontier": 2, "refill": "group"},
        {"groups_per_dispatch": 2, "frontier": "auto"},
        {"groups_per_dispatch": 6, "frontier": 1, "refill": "group"},
    ],
    ids=str,
)
def test_pipelined_with_one_update_per_round_is_serial(tiny: Path, serial: Played, tmp_path: Path, changes: dict[str, Any]) -> None:
    slots, instances = (20, 2) if "frontier" in changes else (5, 1)
    plan = schedule("pipelined", groups=6, update=6, rounds=3, **changes)
    run = play(tiny, tmp_path, plan, slots=slots, instances=instances)
    assert_same_training(run, serial)
    if changes.get("frontier") != "auto":  # which follows measured times
        assert consumed(run) != consumed(serial), "the order of consumption differs, the sum does not"


@pytest.mark.parametrize("preset", ["serial", "pipelined"])
def test_an_evaluation_at_every_version_changes_neither_tokens_nor_gradients_nor_weights(
    tiny: Path, serial: Played, tmp_path: Path, preset: str
) -> None:
    run = play(tiny, tmp_path, schedule(preset, groups=6, update=6, rounds=3, evaluate_every=1), slots=24)
    assert_same_training(run, serial)
    lines = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [(line["update"], line["version"], line["greedy"]["count"], line["sampled"]["count"]) for line in lines] == [
        (version, version, 5, 10) for version in range(4)
    ]


@pytest.mark.parametrize("aggregation", ["sequence", "constant"])
def test_the_same_under_other_losses(tiny: Path, tmp_path: Path, aggregation: str) -> None:
    algorithm = {"aggregation": aggregation, "kl": "k3", "kl_weight": 0.1}
    right = play(tiny, tmp_path / "serial", schedule(groups=4, update=4, rounds=2), slots=16, algorithm=algorithm)
    plan = schedule("pipelined", groups=4, update=4, rounds=2, groups_per_dispatch=1, frontier=2)
    assert_same_training(play(tiny, tmp_path / "pipelined", plan, algorithm=algorithm), right)


@pytest.fixture(scope="module")
def several(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Pipelined, two rounds of three updates each; weights of the corrections are recorded."""
    plan = schedule("pipelined", groups=6, update=2, rounds=2, groups_per_dispatch=1, frontier=4)
    return play(tiny, tmp_path_factory.mktemp("several"), plan, slots=16, instances=2, algorithm={"correction": "truncate"})


def test_with_several_updates_per_round_the_trajectories_are_those_of_the_rounds_version(
    tiny: Path, several: Played, tmp_path: Path
) -> None:
    assert several.stop.ok
    assert several.violations == ()
    assert {version: len(groups) for version, groups in by_version(several).items()} == {0: 6, 1: 6}
    assert regenerated(tiny, tmp_path, several)
    assert behaviour_error(tiny, several) <= LOGPROB


def test_the_ledger_records_the_order_of_consumption(several: Played) -> None:
    dispatched = [group for _, groups in several.dispatched for group in groups]
    assert dispatched == consumed(several)
    assert [update for update, _ in several.dispatched] == [1 + i // 2 for i in range(12)]
    assert any(later < earlier for earlier, later in pairwise(dispatched)), "completion, not submission, decides"
    assert [report.groups for report in several.witness.reports] == [tuple(dispatched[i : i + 2]) for i in range(0, 12, 2)]


def test_weights_of_the_correction_measure_what_the_updates_of_the_round_changed(several: Played) -> None:
    drift = [max(-row["correction/log_weight/min"], row["correction/log_weight/max"]) for row in several.metrics]
    assert max(drift[0], drift[3]) <= LOGPROB, "the first update of a round is on policy"
    assert min(drift[1], drift[2], drift[4], drift[5]) > 1e-3


def test_consumed_in_order_several_updates_per_round_are_serial_too(tiny: Path, tmp_path: Path) -> None:
    right = play(tiny, tmp_path / "serial", schedule(groups=6, update=2, rounds=2, in_order=True), slots=24)
    plan = schedule("pipelined", groups=6, update=2, rounds=2, groups_per_dispatch=1, frontier=4, in_order=True)
    assert_same_training(play(tiny, tmp_path / "pipelined", plan), right)


@pytest.fixture(scope="module")
def small(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Serial, three rounds of one update of three groups."""
    return play(tiny, tmp_path_factory.mktemp("small"), schedule(groups=3, update=3, rounds=3), slots=12)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("streaming", {"staleness": 0, "at_publish": "drain", "buffer_groups": 3}),
        ("streaming", {"staleness": 0, "at_publish": "keep", "buffer_groups": 3, "groups_per_dispatch": 1}),
        ("multiversion", {"version_window": 1, "groups_per_dispatch": 1}),
    ],
    ids=str,
)
def test_streaming_without_staleness_and_a_window_of_one_version_are_serial(
    tiny: Path, small: Played, tmp_path: Path, preset: str, changes: dict[str, Any]
) -> None:
    run = play(tiny, tmp_path, schedule(preset, groups=3, update=3, rounds=3, **changes))
    assert_same_training(run, small)
    assert [row["staleness/max"] for row in run.metrics] == [0, 0, 0]
    assert max(row["logprob_gap/max"] for row in run.metrics) <= LOGPROB
    assert all(row["logprob_gap/tokens"] > 0 for row in run.metrics), "every update began with the weights that sampled"


STALE = {
    "drain": ("streaming", {"staleness": 1, "at_publish": "drain", "buffer_groups": 4}, {"instances": 2}),
    "window": ("multiversion", {"version_window": 2}, {"instances": 2}),
    "moves": ("multiversion", {"version_window": 3}, {"instances": 3, "slots": 2}),
    "several versions per engine": ("multiversion", {"version_window": 3}, {"versions_held": 3, "slots": 3}),
}


@pytest.mark.parametrize("name", STALE)
def test_with_staleness_each_answer_is_sampled_by_one_version_and_weights_of_the_correction_measure_its_age(
    tiny: Path, tmp_path: Path, name: str
) -> None:
    preset, changes, fleet = STALE[name]
    plan = schedule(preset, groups=2, update=2, rounds=6, **changes)
    run = play(tiny, tmp_path / "run", plan, algorithm={"correction": "mask"}, **fleet)
    assert run.stop.ok
    assert run.violations == ()
    if preset == "multiversion":  # samples of a streamed group may start under different versions
        assert len(by_version(run)) > 1
    assert regenerated(tiny, tmp_path, run)
    assert behaviour_error(tiny, run) <= LOGPROB
    assert run.moved > 0 or name != "moves"
    stale = [row for row in run.metrics if row["staleness/max"]]
    assert stale, "some groups were consumed by newer weights than sampled them"
    for row in run.metrics:
        drift = max(-row["correction/log_weight/min"], row["correction/log_weight/max"])
        assert (drift > 1e-3) if row in stale else (drift <= LOGPROB)


@pytest.mark.parametrize("at_publish", ["keep", "recompute"])
def test_under_new_weights_in_mid_answer_every_log_prob_is_that_of_its_tokens_version(tiny: Path, tmp_path: Path, at_publish: str) -> None:
    plan = schedule("streaming", groups=2, update=2, rounds=6, staleness=2, at_publish=at_publish, buffer_groups=4)
    run = play(tiny, tmp_path, plan, slots=3)
    assert run.stop.ok
    assert run.violations == ()
    assert mixed(run) > 0, "new weights came in the middle of answers"
    error, other = behaviour_error(tiny, run), kept_error(tiny, run)
    if at_publish == "keep":
        error, other = other, error
    assert error <= LOGPROB
    assert other > 0.01, "a kept cache and a rebuilt one are not the same policy"
