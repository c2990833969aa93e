"""A story as one picture: what each instance served, where each group was, how many waited, what the trainer did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, inf, log10

from paceline.core import commands as c
from paceline.core.account.causes import TRAINER
from paceline.timeline.canvas import HUES, Canvas, steps
from paceline.timeline.lanes import Lanes
from paceline.timeline.story import EvaluationSpan, GroupSpan, Item, Level, LoadSpan, Mark, Move, ServeSpan, TrainerSpan

WIDTH, LEFT, RIGHT = 1200.0, 96.0, 24.0
_GONE = ("filtered", "failed", "retried")
SINGLE = 4000
"""Up to so many bars each has a tip; beyond, those of one colour become one shape."""
LINES = 120
"""Up to so many publishes have a line through the picture."""
APART = 4
"""With at most so many instances each has lanes of its own."""


@dataclass
class Items:
    """What is drawn, by kind; trajectories are not."""

    groups: list[GroupSpan] = field(default_factory=list)
    trainer: list[TrainerSpan] = field(default_factory=list)
    serves: list[ServeSpan] = field(default_factory=list)
    loads: list[LoadSpan] = field(default_factory=list)
    evaluations: list[EvaluationSpan] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    def take(self, items: Iterable[Item]) -> None:
        """Keep what is drawn."""
        lists: dict[type, list[Item]] = {
            GroupSpan: self.groups,  # type: ignore[dict-item]
            TrainerSpan: self.trainer,  # type: ignore[dict-item]
            ServeSpan: self.serves,  # type: ignore[dict-item]
            LoadSpan: self.loads,  # type: ignore[dict-item]
            EvaluationSpan: self.evaluations,  # type: ignore[dict-item]
            Move: self.moves,  # type: ignore[dict-item]
            Mark: self.marks,  # type: ignore[dict-item]
            Level: self.levels,  # type: ignore[dict-item]
        }
        for item in items:
            if (kept := lists.get(type(item))) is not None:
                kept.append(item)


class Picture:
    """Lays the sections of one lineage out from top to bottom."""

    def __init__(self, items: Items, start: float, end: float) -> None:
        self.items = items
        self.start, self.end = start, max(end, start + 1e-6)
        self.canvas = Canvas()
        self.y = 0.0
        self.single = len(items.groups) + len(items.serves) + len(items.loads) <= SINGLE
        """Whether bars are shapes of their own, with tips."""
        self.names = sorted({span.instance for span in items.serves} | {span.home for span in items.groups}, key=_natural)

    def x(self, time: float) -> float:
        """Where a moment lies."""
        share = (min(max(time, self.start), self.end) - self.start) / (self.end - self.start)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def draw(self, title: str, notes: Sequence[str]) -> str:
        """The file."""
        self._head(title, notes)
        self._body()
        return self.canvas.document(WIDTH, self.y + 8, title)

    def fragment(self, label: str) -> str:
        """The picture without a title, for a page that has the style sheet."""
        self.y = 22.0
        self._body()
        return self.canvas.fragment(WIDTH, self.y + 8, label)

    def _body(self) -> None:
        top = self.y
        self._instances()
        self._groups()
        self._levels()
        self._evaluations()
        self._trainer()
        self._publishes(top)
        self._axis(top)
        self._legend()

    def _head(self, title: str, notes: Sequence[str]) -> None:
        self.canvas.text("ink title", 16, 24, title)
        self.y = 42
        for note in notes:
            self.canvas.text("soft", 16, self.y, note)
            self.y += 15
        self.y += 16

    def _label(self, words: str, height: float, kind: str = "soft") -> None:
        self.canvas.text(f"{kind} right", LEFT - 8, self.y + height / 2 + 4, words)

    def _bar(self, kind: str, start: float, end: float, y: float, height: float, tip: str) -> None:
        if end < self.start or start > self.end:
            return
        if self.single:
            self.canvas.rect(kind, self.x(start), y, self.x(end) - self.x(start), height, tip)
        else:
            self.canvas.merge(kind, self.x(start), y, self.x(end) - self.x(start), height)

    # What each instance serves

    def _instances(self) -> None:
        height = max(4.0, min(12.0, 240 / max(1, len(self.names))))
        places: dict[str, float] = {}
        for number, name in enumerate(self.names):
            places[name] = self.y
            if height >= 9 or number % 8 == 0:
                self._label(name, height)
            self.y += height + (2 if height >= 9 else 1)
        side_by_side: dict[str, int] = {}
        for span in self.items.serves:
            side_by_side[span.instance] = max(side_by_side.get(span.instance, 1), span.lane + 1)
        for span in self.items.serves:
            share = height / side_by_side[span.instance]
            y = places[span.instance] + span.lane * share
            self._bar(_hue(span.version), span.start, span.end, y, share, f"{span.instance} serves version {span.version}")
            wide = self.x(span.end) - self.x(span.start)
            if share >= 9 and wide > 26:
                self.canvas.text("white small", self.x(span.start) + 3, y + share / 2 + 3.2, f"v{span.version}")
        for load in self.items.loads:
            if load.instance in places:
                tip = f"{load.instance} loads version {load.version}: {load.end - load.start:.2f} s"
                self._bar("t-load", load.start, load.end, places[load.instance], height, tip)
        self.canvas.flush()
        self._moves(places, height)
        self.y += 10

    def _moves(self, places: dict[str, float], height: float) -> None:
        for move in self.items.moves:
            if move.source in places and move.target in places and self.start <= move.end <= self.end:
                x, x2 = self.x(move.start), max(self.x(move.end), self.x(move.start) + 5)
                y, y2 = places[move.source] + height / 2, places[move.target] + height / 2
                tip = f"{move.moved} trajectories of version {move.version} moved from {move.source} to {move.target}"
                self.canvas.path("move", f"M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}", tip)

    # Where each group was

    def _groups(self) -> None:
        apart = 1 < len(self.names) <= APART
        bands = [(name, [g for g in self.items.groups if g.home == name]) for name in self.names] if apart else [("", self.items.groups)]
        packed = [(name, *_pack(groups)) for name, groups in bands]
        lanes = sum(count for _, _, count in packed)
        height = max(0.6, min(13.0, 560 / max(1, lanes)))
        for name, rows, count in packed:
            self._label(name if apart else "groups", min(height * count, 16) if apart else 16)
            for span, lane in rows:
                self._group(span, self.y + lane * height, height * (0.86 if height > 3 else 1))
            self.y += count * height + 8
        self.canvas.flush()
        self.y += 4

    def _group(self, span: GroupSpan, y: float, height: float) -> None:
        served = span.end if span.served is None else span.served
        trainable = span.end if span.trainable is None else span.trainable
        tip, hue = _describe(span), _hue(span.versions[-1][1])
        for (since, version), (until, _) in zip(span.versions, [*span.versions[1:], (served, 0)], strict=True):
            self._bar(_hue(version), since, min(until, served), y, height, tip)
        if span.outcome in _GONE:
            self._bar("gone", served, span.end, y, height, tip)
        else:
            self._bar(f"{hue} thin", served, trainable, y, height, tip)
            if height >= 2 and span.end > trainable:
                self._bar(hue, trainable, span.end, y + height / 2 - 0.4, 0.8, tip)
        number = str(span.group)
        if height >= 8 and self.x(served) - self.x(span.start) > 6 * len(number) + 6 and span.start >= self.start:
            self.canvas.text("white small", self.x(span.start) + 3, y + height / 2 + 3.2, number)

    # How many waited

    def _levels(self) -> None:
        height = 44.0
        most = max((level.in_flight for level in self.items.levels), default=0)
        if not most:
            return
        base = self.y + height
        shown = _from(self.items.levels, self.start, self.end)
        top = max(most, *(level.window or level.frontier or 0 for level in shown))
        unit = height / top
        self.canvas.path("soft area", steps(((self.x(v.time), base - unit * v.in_flight) for v in shown), base, self.x(self.end)))
        self.canvas.path("soft", steps(((self.x(v.time), base - unit * v.trainable) for v in shown), base, self.x(self.end)))
        for kind, numbers in self._limits(shown):
            self.canvas.path(kind, self._line(shown, [n if n is None else base - unit * n for n in numbers]))
        self._label("in flight", 14)
        self.canvas.text("soft right small", LEFT - 8, self.y + 24, f"at most {most}")
        self.canvas.text("soft right", LEFT - 8, base - 3, "trainable")
        self.y = base + 10

    def _limits(self, shown: Sequence[Level]) -> list[tuple[str, list[int | None]]]:
        """Lines over the levels: what decodes beside the frontier that limits it, or the window that limits what is in flight."""
        lines: list[tuple[str, list[int | None]]] = []
        if self._has("frontier"):
            lines += [("l1 line", [level.decoding for level in shown]), ("mark", [level.frontier for level in shown])]
        if self._has("window"):
            lines.append(("mark", [level.window for level in shown]))
        return lines

    def _has(self, limit: str) -> bool:
        return any(getattr(level, limit) is not None for level in self.items.levels)

    def _line(self, shown: Sequence[Level], heights: Sequence[float | None]) -> str:
        """A line of steps with gaps where there is no height; neighbours of one height, or of one pixel, are one step."""
        commands: list[str] = []
        before: float | None = None
        for level, after, y in zip(shown, [*(level.time for level in shown[1:]), self.end], heights, strict=True):
            x, end = self.x(level.time), self.x(after)
            if y is not None and y == before:
                commands[-1] = f"H{end:.1f}"
            elif y is not None and (before is None or end - x >= 0.5):
                commands += [f"M{x:.1f} {y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}", f"H{end:.1f}"]
            else:
                y = before if y is not None else None
            before = y
        return "".join(commands)

    # What the trainer did

    def _evaluations(self) -> None:
        shown = [span for span in self.items.evaluations if span.end >= self.start and span.start <= self.end]
        if not shown:
            return
        self._label("evaluation", 10)
        for span in shown:
            tip = f"evaluation of version {span.version}: {span.end - span.start:.2f} s"
            self._bar("t-evaluation", span.start, span.end, self.y, 10, tip)
        self.canvas.flush()
        self.y += 16

    def _trainer(self) -> None:
        height = 26.0
        self._label("trainer", height, "ink")
        for span in self.items.trainer:
            step = isinstance(span.command, c.Dispatch) and span.stepping
            self._bar(f"t-{'step' if step else span.state}", span.start, span.end, self.y, height, _tell(span))
            if isinstance(span.command, c.Dispatch) and span.start >= self.start and span.end <= self.end:
                x, words = (self.x(span.start) + self.x(span.end)) / 2, str(span.command.update)
                if not step and self.x(span.end) - self.x(span.start) > 6 * len(words) + 3:
                    self.canvas.text("on mid small", x, self.y + height / 2 + 3.2, words)
        self.canvas.flush()
        self.y += height + 6

    def _publishes(self, top: float) -> None:
        marks = [mark for mark in self.items.marks if mark.kind == "published" and self.start <= mark.time <= self.end]
        before = -inf
        for mark in marks:
            x, words = self.x(mark.time), f"v{mark.version}"
            if len(marks) <= LINES:
                self.canvas.line("mark", x, top - 4, x, self.y - 6)
            if x - before > 6 * len(words) + 10:
                self.canvas.text("soft mid small", x, top - 8, words)
                before = x

    def _axis(self, top: float) -> None:
        step = nice((self.end - self.start) / 10)
        tick = -(-self.start // step) * step
        while tick <= self.end:
            self.canvas.line("grid", self.x(tick), self.y - 4, self.x(tick), self.y)
            self.canvas.text("soft mid", self.x(tick), self.y + 12, f"{tick + 0.0:g} s")
            tick += step
        self.y += 28

    def _legend(self) -> None:
        x = LEFT
        for kind, words in (("v0", "group decodes (colour: version)"), ("v0 thin", "is judged")):
            x = self._key(x, kind, words)
        self.canvas.rect("v0", x, self.y - 4, 14, 0.8)
        x = self._key(x, "", "waits for its update")
        if any(span.outcome in _GONE for span in self.items.groups):
            x = self._key(x, "gone", "filtered, failed or retried")
        if self.items.moves:
            self.canvas.path("move", f"M{x + 4:.1f} {self.y - 8:.1f}L{x + 11:.1f} {self.y + 1:.1f}")
            x = self._key(x, "", "trajectories move")
        for limit, kind, words in (
            ("frontier", "l1 line", "decoding, in groups"), ("frontier", "mark", "frontier"), ("window", "mark", "window: most in flight"),
        ):  # fmt: skip
            if self._has(limit):
                self.canvas.line(kind, x, self.y - 4, x + 14, self.y - 4)
                x = self._key(x, "", words)
        self.y += 17
        self._states()
        self.y += 10

    def _states(self) -> None:
        """What the trainer's colours mean, those that occur."""
        shown = [span for span in self.items.trainer if span.end >= self.start and span.start <= self.end]
        states, x = {"step" if span.stepping else span.state for span in shown}, LEFT
        for state in [*TRAINER, "step"]:
            if state in states:
                works = state in ("train", "publish", "checkpoint", "step")
                x = self._key(x, f"t-{state}", state if works else f"waits: {state}")

    def _key(self, x: float, kind: str, words: str) -> float:
        if kind:
            self.canvas.rect(kind, x, self.y - 8, 14, 9, round_by=2)
        self.canvas.text("soft", x + 19, self.y, words)
        return x + 19 + 6.1 * len(words) + 16


def draw(items: Items, title: str, notes: Sequence[str], start: float, end: float) -> str:
    """One SVG file of what happened between two moments."""
    return Picture(items, start, end).draw(title, notes)


def _hue(version: int) -> str:
    return f"v{version % len(HUES)}"


def _pack(groups: list[GroupSpan]) -> tuple[list[tuple[GroupSpan, int]], int]:
    """Each group with a lane in which nothing else is at the time, and how many lanes there are."""
    lanes, rows, ends = Lanes(), [], sorted((g.end, n) for n, g in enumerate(groups))
    taken: dict[int, int] = {}
    gone = 0
    for number in sorted(range(len(groups)), key=lambda n: (groups[n].start, groups[n].group)):
        while gone < len(ends) and ends[gone][0] <= groups[number].start:
            if (lane := taken.pop(ends[gone][1], None)) is not None:
                lanes.free(lane)
            gone += 1
        taken[number] = lanes.take()
        rows.append((groups[number], taken[number]))
    return rows, lanes.count


def _describe(span: GroupSpan) -> str:
    versions = ", ".join(str(version) for version in dict.fromkeys(version for _, version in span.versions))
    parts = [f"group {span.group}, version {versions}, {span.tokens} tokens", f"from {span.start:.2f} s"]
    if span.served is not None:
        parts.append(f"decoded for {span.served - span.start:.2f} s")
    if span.served is not None and span.trainable is not None:
        parts.append(f"judged for {span.trainable - span.served:.2f} s")
    if span.update:
        parts.append(f"consumed at {span.end:.2f} s by update {span.update}, {span.staleness} versions stale")
    else:
        parts.append(f"{span.outcome} {span.why}".strip())
    return "; ".join(parts)


def _tell(span: TrainerSpan) -> str:
    took = f"{span.end - span.start:.2f} s"
    if isinstance(span.command, c.Dispatch):
        what = "optimizer step" if span.stepping else f"{len(span.command.groups)} groups"
        return f"update {span.command.update}: {what}, {took}"
    if span.command is None:
        return f"waits for {took}: {TRAINER[span.state]}"
    return f"{span.state}: {took}"


def _from(levels: list[Level], start: float, end: float) -> list[Level]:
    """The levels that hold somewhere between two moments."""
    held = [level for level in levels if level.time <= start][-1:]
    return held + [level for level in levels if start < level.time <= end]


def nice(step: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `step`."""
    power = 10.0 ** floor(log10(step))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= step * 0.999)


def _natural(name: str) -> tuple[str, int]:
    """Instances in the order of their numbers."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
