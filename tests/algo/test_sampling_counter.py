"""The numbers themselves: known answers, independence of how they are asked for, and statistics with fixed seeds."""

import numpy as np
import pytest

from paceline.algo.counter import PURPOSES, philox, stream_key, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    assert tuple(int(w) for w in philox(counter, key)) == answer


def test_numbers_of_a_token_never_change_between_releases():
    keys = np.stack([stream_key(17, "train", 3, 0), stream_key(17, "eval", 3, 0), stream_key(-1, "draft", 2**40, 7)])
    assert (uniforms(keys, [0, 1, 2**33]) * 2**24).astype(int).tolist() == [6488257, 6691811, 6102253]


def test_a_batch_gives_the_numbers_that_single_calls_give():
    keys = np.stack([stream_key(5, "train", g, s) for g in range(3) for s in range(4)])
    positions = np.arange(12) * 7
    one_by_one = [float(uniforms(k, p)) for k, p in zip(keys, positions, strict=True)]
    assert uniforms(keys, positions).tolist() == one_by_one


def test_numbers_lie_in_the_half_open_unit_interval_on_the_float32_grid():
    numbers = uniforms(stream_key(1, "train", 0, 0), np.arange(100_000))
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.array_equal(numbers, (numbers * 2**24).astype(np.int64) / 2**24)


@pytest.mark.parametrize("axis", ["position", "sample", "group", "seed", "lane"])
def test_numbers_are_uniform_along_every_axis(axis):
    counts = np.bincount((_along(axis, 20_000) * 100).astype(int), minlength=100)
    statistic = float(((counts - 200.0) ** 2 / 200.0).sum())
    assert abs(statistic - 99) < 4 * np.sqrt(2 * 99)


@pytest.mark.parametrize("axis", ["position", "sample", "group", "seed", "lane"])
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbours_along_every_axis_are_uncorrelated(axis, lag):
    numbers = _along(axis, 20_000).astype(np.float64)
    correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(numbers))


def test_purposes_and_lanes_of_the_same_token_are_uncorrelated():
    positions = np.arange(20_000)
    streams = [uniforms(stream_key(9, purpose, 4, 2), positions, lane) for purpose in PURPOSES for lane in (0, 1)]
    correlations = np.corrcoef(np.stack(streams).astype(np.float64)) - np.eye(len(streams))
    assert np.abs(correlations).max() < 4.5 / np.sqrt(len(positions))


def _along(axis, n):
    """n numbers that differ in one part of their name only."""
    if axis in ("position", "lane"):
        key = stream_key(3, "train", 11, 5)
        return uniforms(key, np.arange(n)) if axis == "position" else uniforms(key, 0, np.arange(n))
    names = {"sample": lambda i: (3, 11, i), "group": lambda i: (3, i, 5), "seed": lambda i: (i, 11, 5)}[axis]
    return uniforms(np.stack([stream_key(seed, "train", group, sample) for seed, group, sample in map(names, range(n))]), np.zeros(n, int))
