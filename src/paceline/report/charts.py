"""Small charts as SVG, drawn once in Python so that a page shows them without a script: curves, stacked bars, histograms, bars.

All have one size in view-box pixels, so that a grid of them is one column on a phone. Colours are classes of `timeline.canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.timeline.canvas import Canvas
from paceline.timeline.svg import nice

WIDTH, HEIGHT, WIDE = 360.0, 170.0, 560.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 8.0, 8.0, 20.0
SMOOTH_FROM = 60
"""With more points than that a curve is drawn pale, and its running mean strong."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. `values` has a place per x; NaN = none there."""

    name: str
    values: Sequence[float]
    hue: int
    error: Sequence[tuple[float, float]] | None = None
    """Interval of every point."""


class Plot:
    """One pair of axes. x is mapped from `first`..`last`, y from what it must show."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], width: float = WIDTH) -> None:
        self.canvas = Canvas()
        self.width = width
        self.first, self.last = x
        self.low, self.high, self.step = _rounded(*y)

    def x(self, value: float) -> float:
        """Pixels."""
        span = self.last - self.first
        share = (value - self.first) / span if span > 0 else 0.5
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels."""
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_labels: Sequence[tuple[float, str]]) -> None:
        """Lines and labels of both axes."""
        for number in range(round(self.low / self.step), round(self.high / self.step) + 1):
            tick = number * self.step
            self.canvas.line("grid", LEFT, self.y(tick), self.width - RIGHT, self.y(tick))
            self.canvas.text("soft right", LEFT - 5, self.y(tick) + 4, short(tick))
        for value, words in x_labels:
            at = self.x(value)
            kind = "soft right" if at > self.width - RIGHT - 12 else "soft mid"
            self.canvas.text(kind, self.width - RIGHT if at > self.width - RIGHT - 12 else at, HEIGHT - 5, words)

    def svg(self, label: str) -> str:
        """The picture, for a page that has the style sheet."""
        return self.canvas.fragment(self.width, HEIGHT, label)


def curves(label: str, xs: Sequence[float], series: Sequence[Series], marks: Sequence[float] = (), share: bool = False) -> str:
    """Curves over ascending xs; `marks` are dashed lines; `share` fixes y to 0..1."""
    shown = [value for one in series for value in one.values if math.isfinite(value)]
    shown += [bound for one in series for pair in one.error or () for bound in pair if math.isfinite(bound)]
    plot = Plot((xs[0], xs[-1]), (0.0, 1.0) if share else (min(shown, default=0.0), max(shown, default=1.0)))
    plot.axes(ticks(xs[0], xs[-1]))
    for mark in marks:
        plot.canvas.line("mark", plot.x(mark), TOP, plot.x(mark), HEIGHT - BOTTOM)
    for one in series:
        _curve(plot, xs, one)
    return plot.svg(label)


def _curve(plot: Plot, xs: Sequence[float], one: Series) -> None:
    hue, many = f"l{one.hue} line", len(xs) > SMOOTH_FROM
    for x, pair in zip(xs, one.error or (), strict=False):
        if all(map(math.isfinite, pair)):
            plot.canvas.line(f"{hue} pale", plot.x(x), plot.y(pair[0]), plot.x(x), plot.y(pair[1]))
    plot.canvas.path(f"{hue} pale" if many else f"{hue} strong", _path(plot, xs, one.values))
    if many:
        plot.canvas.path(f"{hue} strong", _path(plot, xs, running_mean(one.values, len(xs) // 25 + 1)))
    if len(xs) <= 40:
        for x, value in zip(xs, one.values, strict=True):
            if math.isfinite(value):
                plot.canvas.rect(f"v{one.hue}", plot.x(x) - 1.5, plot.y(value) - 1.5, 3, 3, round_by=1.5)


def _path(plot: Plot, xs: Sequence[float], values: Sequence[float]) -> str:
    """A line with gaps where there is no value; of many points in one pixel column the least and the largest."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for x, value in zip(xs, values, strict=True):
        columns.setdefault(round(plot.x(x)), []).append((x, value))
    commands, pen = [], "M"
    for points in columns.values():
        finite = [point for point in points if math.isfinite(point[1])]
        if not finite:
            pen = "M"
            continue
        low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
        for x, value in sorted({low, high}):
            commands.append(f"{pen}{plot.x(x):.1f} {plot.y(value):.1f}")
            pen = "L"
    return "".join(commands)


def stacked(label: str, xs: Sequence[float], parts: Mapping[str, Sequence[float]], unit_share: bool = False) -> str:
    """One bar per x, parted by class; neighbours share a bar where there are too many."""
    bins = _bins(len(xs), 150)
    heights = [{kind: sum(values[i] for i in one) / len(one) for kind, values in parts.items()} for one in bins]
    most = 1.0 if unit_share else ceiling([sum(bar.values()) for bar in heights])
    plot = Plot((xs[0] - 0.5, xs[-1] + 0.5), (0.0, most), WIDE)
    plot.axes(ticks(xs[0], xs[-1]))
    for one, bar in zip(bins, heights, strict=True):
        left, right = plot.x(xs[one[0]] - 0.5), plot.x(xs[one[-1]] + 0.5)
        gap, base = (0.6 if right - left > 4 else 0.0), 0.0
        for kind, value in bar.items():
            if value > 0:
                top = min(base + value, plot.high)
                plot.canvas.merge(f"t-{kind}", left + gap, plot.y(top), right - left - 2 * gap, plot.y(base) - plot.y(top))
                base = top
    plot.canvas.flush()
    return plot.svg(label)


def ceiling(heights: Sequence[float]) -> float:
    """What a bar chart must show: the highest, or less where a few would leave the others flat; those are cut at the top."""
    ordered = sorted(heights)
    usual = ordered[int(0.97 * (len(ordered) - 1))] if ordered else 1.0
    return ordered[-1] if ordered and ordered[-1] <= 3 * usual else 1.5 * usual


def bars(label: str, counts: Mapping[str, float], hue: int) -> str:
    """One bar per name, in order."""
    plot = Plot((-0.5, len(counts) - 0.5), (0.0, max(counts.values(), default=1.0)))
    plot.axes([])
    each = max(1, len(counts) // 8)
    for place, (name, value) in enumerate(counts.items()):
        left, right = plot.x(place - 0.42), plot.x(place + 0.42)
        plot.canvas.rect(f"v{hue}", left, plot.y(value), right - left, plot.y(0) - plot.y(value), f"{name}: {value:,g}", 1)
        if place % each == 0:
            plot.canvas.text("soft mid", (left + right) / 2, HEIGHT - 5, name)
    return plot.svg(label)


def histogram(lengths: Mapping[int, int], columns: int = 30) -> dict[str, float]:
    """Counts of whole numbers in ranges of equal, round width, by the first number of each."""
    if not lengths:
        return {}
    low, high = min(lengths), max(lengths)
    width = max(1, math.ceil(nice((high - low + 1) / columns)))
    start = low - low % width
    counts = dict.fromkeys(range(start, high + 1, width), 0)
    for length, number in lengths.items():
        counts[start + (length - start) // width * width] += number
    return {f"{first:,}": float(number) for first, number in counts.items()}


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of the last `width` values, those that are numbers; NaN where there is none."""
    sums, counts, found = 0.0, 0, []
    for place, value in enumerate(values):
        if math.isfinite(value):
            sums, counts = sums + value, counts + 1
        if place >= width and math.isfinite(left := values[place - width]):
            sums, counts = sums - left, counts - 1
        found.append(sums / counts if counts else math.nan)
    return found


def ticks(first: float, last: float) -> list[tuple[float, str]]:
    """About five round numbers between two, and the last one."""
    step = max(1.0, nice(max(last - first, 1.0) / 6))
    at = math.ceil(first / step) * step
    found = []
    while at < last - step / 2:
        found.append((at, short(at)))
        at += step
    return [*found, (last, short(last))]


def short(value: float) -> str:
    """A number for an axis: three digits, thousands as k, millions as M."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}" if size < 1000 else f"{value:.0f}"


def _rounded(low: float, high: float) -> tuple[float, float, float]:
    """(low, high, step) in round numbers with room for both; zero is the bottom where it is near."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a constant, but for the last digits of its sums
        low, high = min(low, 0.0), max(high, 0.0) or float(low == 0)
    if 0 < low < 0.4 * high:
        low = 0.0
    step = nice((high - low) / 4)
    bottom = math.floor(low / step + 1e-9) * step
    top = math.ceil(high / step - 1e-9) * step
    return bottom, top if top > bottom else bottom + step, step


def _bins(count: int, most: int) -> list[list[int]]:
    """Places 0..count-1 in at most `most` runs of equal length."""
    width = math.ceil(count / most) if count else 1
    return [list(range(first, min(first + width, count))) for first in range(0, count, width)]
