"""A story as a trace that ui.perfetto.dev opens: Chrome's JSON trace format, written as the items come.

What shapes the file: Perfetto drops slices of one thread that overlap without nesting, so everything that overlaps has a thread (a lane) of
its own. It ignores colours in the file and picks one by the slice's name *without its ASCII digits*, so versions are written in subscript
digits: equal versions look alike, different ones do not. Flows are pairs of events that bind to the slices around them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from paceline.core import commands as c
from paceline.core.account.causes import TRAINER
from paceline.timeline.story import (
    EvaluationSpan,
    GroupSpan,
    Item,
    Level,
    LoadSpan,
    Mark,
    Move,
    ServeSpan,
    Staleness,
    TrainerSpan,
    TrajectorySpan,
)

TRAINER_POOL, GROUPS, ROLLOUT = 1, 2, 3
"""Processes of the trace."""
_NAMES = {TRAINER_POOL: "trainer", GROUPS: "groups", ROLLOUT: "rollout"}
_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
LOADS = -1
"""Lane of an instance's loads; above it are those of the versions that it serves, below it those of its slots."""


def version_name(version: int) -> str:
    """A version as slices name it."""
    return "v" + str(version).translate(_SUBSCRIPT)


class PerfettoWriter:
    """Writes one trace; `write` any number of items, then `close`."""

    def __init__(self, out: TextIO, about: dict[str, Any]) -> None:
        """`about` stands in the trace's metadata."""
        self._out = out
        self._first = True
        self._threads: dict[tuple[int, Any], int] = {}
        self._instances: dict[str, int] = {}
        out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
        for pid, name in _NAMES.items():
            self._event("M", "process_name", pid, args={"name": name})
            self._event("M", "process_sort_index", pid, args={"sort_index": pid})

    def write(self, items: Iterable[Item]) -> None:
        """Write items, in any order."""
        for item in items:
            _WRITES[type(item)](self, item)

    def close(self) -> None:
        """End the file's content; the stream stays open."""
        self._out.write("\n]}\n")

    def _event(self, phase: str, name: str, pid: int, tid: int = 0, **fields: Any) -> None:
        event = {"ph": phase, "name": name, "pid": pid, "tid": tid, **fields}
        self._out.write(("" if self._first else ",\n") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
        self._first = False

    def _thread(self, pid: int, key: Any, name: str, order: int) -> int:
        """The number of a lane, unique in the whole trace; named when it is first used."""
        tid = self._threads.get((pid, key))
        if tid is None:
            tid = self._threads[pid, key] = len(self._threads) + len(_NAMES) + 1
            self._event("M", "thread_name", pid, tid, args={"name": name})
            self._event("M", "thread_sort_index", pid, tid, args={"sort_index": order})
        return tid

    def _slice(self, pid: int, tid: int, name: str, start: float, end: float, **args: Any) -> None:
        begin = _us(start)
        self._event("X", name, pid, tid, ts=begin, dur=_us(end) - begin, args=args)

    def _flow(self, phase: str, name: str, number: int, pid: int, tid: int, ts: int) -> None:
        binding = {"bp": "e"} if phase == "f" else {}
        self._event(phase, name, pid, tid, ts=ts, id=number, cat="flow", **binding)

    # Items

    def _trainer(self, span: TrainerSpan) -> None:
        tid = self._thread(TRAINER_POOL, 0, "trainer", 0)
        name, args = span.state, {"what": TRAINER[span.state]}
        if isinstance(span.command, c.Dispatch):
            d = span.command
            name = f"{'step' if span.stepping else 'train'} {d.update}"
            args = {"update": str(d.update), "groups": str(d.groups), "staleness": str(d.staleness)}
        elif isinstance(span.command, c.Publish):
            name, args = f"publish {version_name(span.command.version)}", {"updates": str(span.command.updates)}
        elif span.command is None:
            name = f"waits: {span.state}"
        self._slice(TRAINER_POOL, tid, name, span.start, span.end, **args)

    def _group(self, span: GroupSpan) -> None:
        tid = self._thread(GROUPS, span.lane, f"groups {span.lane}", span.lane)
        name = f"group {span.group} {version_name(span.versions[0][1])}"
        args = {
            "outcome": span.outcome,
            "why": span.why,
            "update": span.update,
            "staleness": span.staleness,
            "tokens": span.tokens,
            "home": span.home,
            "versions": [version for _, version in span.versions],
        }
        self._slice(GROUPS, tid, name, span.start, span.end, **args)
        stages = (("decode", span.start, span.served), ("reward", span.served, span.trainable), ("buffer", span.trainable, span.end))
        for stage, start, end in stages:
            if start is not None and (last := span.end if end is None else end) > start:
                self._slice(GROUPS, tid, stage, start, last)
        if span.update:
            trainer = self._thread(TRAINER_POOL, 0, "trainer", 0)
            self._flow("s", "consumed", span.group, GROUPS, tid, max(_us(span.start), _us(span.end) - 1))
            self._flow("f", "consumed", span.group, TRAINER_POOL, trainer, _us(span.end) + 1)

    def _lane(self, instance: str, lane: int) -> int:
        index = self._instances.setdefault(instance, len(self._instances))
        what = f"slot {lane}" if lane >= 0 else "loads" if lane == LOADS else f"serves {LOADS - 1 - lane}"
        return self._thread(ROLLOUT, (instance, lane), f"{instance} {what}", index * 100_000 + 1000 + lane)

    def _trajectory(self, span: TrajectorySpan) -> None:
        tid = self._lane(span.instance, span.lane)
        args = {"attempt": span.attempt, "outcome": span.outcome, "tokens": span.tokens}
        self._slice(ROLLOUT, tid, f"{span.group}.{span.sample} {version_name(span.version)}", span.start, span.end, **args)
        if span.came:
            self._flow("f", "moved", span.came, ROLLOUT, tid, _us(span.start))
        if span.left:
            self._flow("s", "moved", span.left, ROLLOUT, tid, max(_us(span.start), _us(span.end) - 1))

    def _serve(self, span: ServeSpan) -> None:
        self._slice(ROLLOUT, self._lane(span.instance, LOADS - 1 - span.lane), f"serves {version_name(span.version)}", span.start, span.end)

    def _load(self, span: LoadSpan) -> None:
        name = f"loads {version_name(span.version)}"
        self._slice(ROLLOUT, self._lane(span.instance, LOADS), name, span.start, span.end)

    def _evaluation(self, span: EvaluationSpan) -> None:
        tid = self._thread(TRAINER_POOL, 1, "evaluation", 1)
        self._slice(TRAINER_POOL, tid, f"evaluate {version_name(span.version)}", span.start, span.end)

    def _move(self, span: Move) -> None:
        tid = self._thread(ROLLOUT, "moves", "moves", 1 << 30)
        text = f"{span.moved} trajectories of version {span.version} from {span.source} to {span.target}"
        self._event("i", "move", ROLLOUT, tid, ts=_us(span.end), s="t", args={"what": text})

    def _mark(self, mark: Mark) -> None:
        name = f"publish {version_name(mark.version)}" if mark.kind == "published" else mark.kind
        self._event("i", name, TRAINER_POOL, ts=_us(mark.time), s="g", args={"what": mark.text})

    def _level(self, level: Level) -> None:
        values = {"in flight": level.in_flight, "trainable": level.trainable, "decoding": level.decoding}
        limits = {name: value for name, value in (("frontier", level.frontier), ("window", level.window)) if value is not None}
        self._event("C", "groups", GROUPS, ts=_us(level.time), args=values)
        if limits:
            self._event("C", "limits", GROUPS, ts=_us(level.time), args=limits)

    def _staleness(self, item: Staleness) -> None:
        self._event("C", "staleness", TRAINER_POOL, ts=_us(item.time), args={"versions": item.versions})


def _us(seconds: float) -> int:
    """Microseconds: whole ones, so that parts nest exactly in what they are part of."""
    return round(seconds * 1e6)


_WRITES: dict[type, Callable[[PerfettoWriter, Any], None]] = {
    TrainerSpan: PerfettoWriter._trainer,
    GroupSpan: PerfettoWriter._group,
    TrajectorySpan: PerfettoWriter._trajectory,
    ServeSpan: PerfettoWriter._serve,
    LoadSpan: PerfettoWriter._load,
    EvaluationSpan: PerfettoWriter._evaluation,
    Move: PerfettoWriter._move,
    Mark: PerfettoWriter._mark,
    Level: PerfettoWriter._level,
    Staleness: PerfettoWriter._staleness,
}
