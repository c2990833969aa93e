"""Deterministic mode: whole runs of the real runtime give the same bits, whatever the schedule, in the dtypes in which rounding shows."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from schedule_runs import Played, consumed, play, schedule

from paceline.models.tiny import write_tiny
from paceline.types.records import LOGPROB

torch.set_num_threads(1)
DTYPES = ("float32", "bfloat16")
Bits = tuple[list[tuple[tuple[int, int], bytes, bytes]], dict[str, bytes]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model", width=64)


def bits(run: Played) -> Bits:
    """Tokens and log-probs in order of consumption, and the weights of every version."""
    assert run.stop.ok
    assert run.violations == ()
    trajectories = [(key, t.ids.tobytes(), t.columns[LOGPROB].tobytes()) for key, t in run.trajectories.items()]
    weights = {
        f"{version}/{name}": tensor.numpy().tobytes() for version, named in run.witness.versions.items() for name, tensor in named.items()
    }
    return trajectories, weights


def serial(tiny: Path, root: Path, dtype: str, update: int = 6) -> Bits:
    """Two rounds of six groups; all 24 trajectories of a round decode together."""
    plan = schedule(groups=6, update=update, rounds=2, in_order=True)
    return bits(play(tiny, root, plan, slots=24, exact=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pipelined_is_serial_bit_for_bit(tiny: Path, tmp_path: Path, dtype: str) -> None:
    right = serial(tiny, tmp_path / "serial", dtype)
    ways: list[tuple[int, int, dict[str, Any]]] = [
        (5, 1, {"groups_per_dispatch": 1}),
        (20, 2, {"groups_per_dispatch": 3, "frontier": 2, "refill": "group"}),
    ]
    for number, (slots, instances, changes) in enumerate(ways):
        plan = schedule("pipelined", groups=6, update=6, rounds=2, in_order=True, **changes)
        run = play(tiny, tmp_path / str(number), plan, slots=slots, instances=instances, exact=dtype)
        assert bits(run) == right


def test_several_updates_per_round_are_those_of_serial_bit_for_bit(tiny: Path, tmp_path: Path) -> None:
    right = serial(tiny, tmp_path / "serial", "bfloat16", update=2)
    plan = schedule("pipelined", groups=6, update=2, rounds=2, groups_per_dispatch=1, frontier=4, in_order=True)
    assert bits(play(tiny, tmp_path / "pipelined", plan, slots=7, exact="bfloat16")) == right


def test_a_penalty_and_a_sequence_mean_change_nothing_about_it(tiny: Path, tmp_path: Path) -> None:
    algorithm = {"aggregation": "sequence", "kl": "k3", "kl_weight": 0.1, "correction": "truncate"}
    plans = (
        schedule(groups=4, update=4, rounds=2, in_order=True),
        schedule("pipelined", groups=4, update=4, rounds=2, groups_per_dispatch=1, in_order=True),
    )
    first, second = (bits(play(tiny, tmp_path / plan.preset, plan, slots=16, algorithm=algorithm, exact="float32")) for plan in plans)
    assert first == second


def test_streaming_samples_the_same_bits_for_groups_of_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    """What the mode covers where token versions depend on timing: the engine."""
    runs = [
        play(
            tiny,
            tmp_path / str(slots),
            schedule("streaming", groups=4, update=4, rounds=2, staleness=1, at_publish="keep", in_flight_groups=8),
            slots=slots,
            exact="float32",
        )
        for slots in (9, 32)
    ]
    first, second = (
        {key: (t.ids.tobytes(), t.columns[LOGPROB].tobytes()) for key, t in run.trajectories.items() if not t.columns["version"].any()}
        for run in runs
    )
    both = first.keys() & second.keys()
    assert len(both) >= 12
    assert all(first[key] == second[key] for key in both)


def test_without_the_mode_the_order_of_consumption_shows_in_the_last_bits(tiny: Path, tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    right = play(tiny, tmp_path / "serial", schedule(groups=6, update=6, rounds=2), slots=24)
    run = play(tiny, tmp_path / "pipelined", schedule("pipelined", groups=6, update=6, rounds=2, groups_per_dispatch=1), slots=5)
    assert consumed(run) != consumed(right)
    assert bits(run)[1] != bits(right)[1]
