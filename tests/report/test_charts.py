"""Charts: what is drawn is what was given."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from paceline.report import charts
from paceline.report.charts import Series

SVG = "{http://www.w3.org/2000/svg}"


def paths(svg: str, kind: str) -> list[str]:
    return [node.attrib["d"] for node in ElementTree.fromstring(svg).iter(f"{SVG}path") if kind in node.attrib["class"].split()]


def test_a_curve_goes_through_its_points_and_a_missing_value_is_a_gap() -> None:
    svg = charts.curves("t", [1, 2, 3, 4], [Series("a", [0.0, 1.0, math.nan, 0.5], 0)], share=True)
    (path,) = paths(svg, "l0")
    assert path == "M50.0 150.0L150.7 8.0M352.0 79.0", (
        "x over 302 pixels from 50, y over 142 from 150; after the gap the pen is put down anew"
    )


def test_many_points_in_a_pixel_keep_their_least_and_their_largest() -> None:
    values = [0.0] * 5000
    values[2500], values[2501] = 7.0, -3.0
    raw, mean = paths(charts.curves("t", list(range(5000)), [Series("a", values, 0)]), "l0")
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", raw)]
    assert len(ys) < 800
    assert max(ys) - min(ys) > 60, "the peak and the dip are both there"
    assert mean != raw


@pytest.mark.parametrize("value", [0.0, 0.001, -2.0, 1e-30, 1e9])
def test_a_constant_has_an_axis_that_holds_it(value: float) -> None:
    low, high, step = charts._rounded(value, value)
    assert low <= value <= high
    assert high > low
    assert 2 <= round((high - low) / step) <= 6


def test_a_constant_that_its_sums_make_waver_in_the_last_digit_is_drawn_as_one() -> None:
    """The mean of rewards of 0.1 is at times 0.1 and at times the number below it: too near for a scale of its own."""
    low, high, _ = charts._rounded(0.09999999999999999, 0.1)
    assert (low, high) == (0.0, pytest.approx(0.1, abs=0.05))
    assert len(paths(charts.curves("t", [1, 2], [Series("a", [2e-5, 1.9999999999999998e-5], 0)]), "l0")) == 1


def test_the_running_mean_is_over_the_last_values_and_skips_what_is_no_number() -> None:
    assert charts.running_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]
    assert charts.running_mean([math.nan, 2, math.nan, 4], 2)[1:] == [2, 2, 4]


def test_stacked_bars_have_the_heights_of_their_parts() -> None:
    svg = charts.stacked("t", [1, 2], {"train": [1.0, 3.0], "reward": [2.0, 0.0]})
    heights = {kind: [float(h) for h in re.findall(r"v([\d.]+)h-", d)] for kind in ("t-train", "t-reward") for d in paths(svg, kind)}
    assert heights == {"t-train": pytest.approx([142 / 3, 142], abs=0.1), "t-reward": pytest.approx([284 / 3], abs=0.1)}


def test_one_very_long_update_does_not_flatten_the_others() -> None:
    assert charts.ceiling([1.0] * 50 + [100.0]) == 1.5
    assert charts.ceiling([1.0, 2.0, 3.0]) == 3.0


def test_a_histogram_counts_everything_once_in_ranges_of_round_width() -> None:
    counts = charts.histogram({0: 1, 9: 2, 10: 3, 295: 4}, columns=30)
    assert sum(counts.values()) == 10
    assert (counts["0"], counts["10"], counts["290"]) == (3, 3, 4)
    assert charts.histogram({}) == {}
    assert charts.histogram({2: 5}) == {"2": 5}


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "0"), (0.0125, "0.0125"), (123.0, "123"), (1234.0, "1234"), (45_600.0, "45.6k"), (2.5e6, "2.5M")]
)
def test_axis_numbers_are_short(value: float, words: str) -> None:
    assert charts.short(value) == words
