import math

import numpy as np
import pytest

from paceline.runtime.weights import BOUNDS, MISSING, OF_ONE, ROUNDINGS, Probes, compare
from paceline.types.errors import EngineError
from paceline.types.progress import ProbeReport

BFLOAT16 = BOUNDS["bfloat16"]
RANDOM = np.random.default_rng(5)
LOST = 0.05
"""What the trainer's log-probs lose by rounding."""
BASE = -RANDOM.exponential(2.0, 63)


def report(logprobs: np.ndarray, rounding: float = 0.0) -> ProbeReport:
    return ProbeReport(0, "f", tuple(logprobs.tolist()), rounding=rounding)


def noise(mean: float) -> np.ndarray:
    """Rounding that differs from token to token, of this mean absolute size."""
    return RANDOM.normal(0, mean / math.sqrt(2 / math.pi), 63)


def probes(trainer: np.ndarray, engine: np.ndarray) -> Probes:
    return Probes(report(trainer, LOST), report(engine))


def test_the_measure_furthest_beyond_its_bound_is_found() -> None:
    one = np.zeros(63)
    one[7] = 1.01 * OF_ONE * LOST
    largest = compare(probes(BASE, BASE + one), None, BFLOAT16)
    assert ("largest" in largest.what, largest.fits) == (True, False)
    assert compare(probes(BASE, BASE + 0.9 * one), None, BFLOAT16).fits
    everywhere = compare(probes(BASE, BASE + 2 * ROUNDINGS * LOST), None, BFLOAT16)
    assert "mean" in everywhere.what
    assert everywhere.value == pytest.approx(2 * ROUNDINGS * LOST)
    assert not everywhere.fits


def test_a_copy_that_stands_still_is_found_at_a_change_far_below_the_rounding_of_bfloat16() -> None:
    engine = BASE + noise(LOST)
    for change in (2e-3, 1e-2, 5e-2):
        moved = BASE + noise(change)
        found = compare(probes(moved, engine), probes(BASE, engine), BFLOAT16)
        assert (found.value, found.bound, found.fits) == (1.0, MISSING, False)
        assert compare(probes(moved, engine), None, BFLOAT16).fits, "neither the largest nor the mean difference shows it"


def test_a_copy_that_follows_is_within_the_bounds_whatever_the_change_and_the_rounding() -> None:
    for change in (0.0, 1e-6, 1e-3, 1e-2, 0.1, 1.0):
        for _ in range(50):
            moved = BASE + noise(change)
            before, now = (probes(at, at + noise(LOST)) for at in (BASE, moved))
            found = compare(now, before, BFLOAT16)
            assert found.fits, (change, found)


def test_a_change_that_rounding_may_hide_calls_for_none() -> None:
    nudged = BASE.copy()
    nudged[3] += 0.05  # less than 1e-3 on average
    assert compare(probes(nudged, BASE), probes(BASE, BASE), BFLOAT16).fits


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_log_prob_that_is_not_finite_is_beyond_every_bound(value: float) -> None:
    broken = BASE.copy()
    broken[0] = value
    for now in (probes(BASE, broken), probes(broken, BASE)):
        assert not compare(now, None, BOUNDS["float32"]).fits


def test_probes_of_different_lengths_are_an_error() -> None:
    with pytest.raises(EngineError, match="63 log-probs in the trainer and 62 in the engine"):
        compare(probes(BASE, BASE[1:]), None, BFLOAT16)


def test_the_mean_may_be_as_far_off_as_the_trainers_own_rounding_makes_likely_and_no_further() -> None:
    lost = 4 * BFLOAT16.mean
    for size, fits in ((1.1 * lost, True), (2 * ROUNDINGS * lost, False)):
        now = Probes(report(BASE, lost), report(BASE + noise(size)))
        assert compare(now, None, BFLOAT16).fits == fits
        assert not compare(Probes(report(BASE), now.engine), None, BFLOAT16).fits, "with less rounding it is too far"
