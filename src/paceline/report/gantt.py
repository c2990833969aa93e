"""Parts of the timeline that a page can show: the beginning, the slowest period, the end; all of it where it is short."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.report.gather import Run, Told
from paceline.timeline.range import Range
from paceline.timeline.story import GroupSpan, Move
from paceline.timeline.svg import Items, Picture

GROUPS = 200
"""Groups that one picture shows, about."""


@dataclass(frozen=True, slots=True)
class View:
    """One picture, and what part of which life it is."""

    title: str
    words: str
    svg: str


def views(run: Run) -> list[View]:
    """Of the latest life three parts, or all of it; of earlier lives the end."""
    found = _parts(run.latest, "")
    for told in reversed(run.lives[:-1]):
        start, end = _around(told, len(_edges(told)) - 2)
        found.append(_view(told, f"end of lineage {told.life.lineage.id}", max(0.0, start), told.end if end <= start else end))
    return found[:5]


def _parts(told: Told, suffix: str) -> list[View]:
    count = sum(isinstance(item, GroupSpan) for item in told.items)
    if count <= GROUPS or len(_edges(told)) < 4:
        return [_view(told, f"all{suffix}", 0.0, told.end)]
    edges = _edges(told)
    slowest = max(range(len(edges) - 1), key=lambda place: edges[place + 1] - edges[place])
    chosen = {"beginning": _around(told, 0), "slowest period": _around(told, slowest), "end": _around(told, len(edges) - 2)}
    return [_view(told, name, start, end) for name, (start, end) in chosen.items()]


def _edges(told: Told) -> list[float]:
    """Moments that part the periods."""
    inner = [row.now for row in told.periods if 0.0 < row.now < told.end]
    return [0.0, *inner, told.end]


def _around(told: Told, place: int) -> tuple[float, float]:
    """Periods around one, as many as hold GROUPS groups."""
    edges = _edges(told)
    groups = max(1, sum(isinstance(item, GroupSpan) for item in told.items))
    periods = max(1, round(GROUPS * (len(edges) - 1) / groups))
    first = min(max(0, place - periods // 2), max(0, len(edges) - 1 - periods))
    return edges[first], edges[min(first + periods, len(edges) - 1)]


def _view(told: Told, title: str, start: float, end: float) -> View:
    only, items = Range(start, end), Items()
    items.take(only.cut(told.items))
    moves = sum(isinstance(item, Move) and item.moved > 0 for item in items.moves)
    words = f"{start:,.1f} to {end:,.1f} s of lineage {told.life.lineage.id}, {len(items.groups):,} groups"
    return View(title, words + (f", {moves:,} migrations" if moves else ""), Picture(items, start, end).fragment(f"timeline: {title}"))
