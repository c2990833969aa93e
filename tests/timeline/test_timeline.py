"""A run as a picture: everything is drawn once, where and when it was; what is written is what the viewers read."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.core.flood import SIZE, Flood
from tests.core.hand import schedule
from tests.core.test_recorded_runs import RECORDED, read

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account import account
from paceline.core.schedule import Preset, Resume, Schedule
from paceline.sim import cases
from paceline.sim.driver import Trace, simulate
from paceline.sim.world import FakeInstance, Lengths, World
from paceline.timeline.perfetto import PerfettoWriter, version_name
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
    Story,
    TrainerSpan,
    TrajectorySpan,
    tell,
)
from paceline.timeline.svg import Items, draw
from paceline.types.weights import InstanceInfo

PRESETS: tuple[Preset, ...] = ("serial", "pipelined", "streaming", "multiversion")
FIELDS: dict[str, dict[str, Any]] = {
    "serial": {"r": 8},
    "pipelined": {"r": 8, "d": 2, "frontier": 4},
    "streaming": {"d": 2, "upp": 2, "staleness": 2, "at_publish": "keep"},
    "multiversion": {"d": 2, "upp": 2, "version_window": 3},
}


def arbitrary(seed: int) -> tuple[Schedule, Trace]:
    pick = cases.Chooser(random.Random(seed).choice)
    chosen = cases.schedule(PRESETS[seed % 4], pick)
    return chosen, simulate(chosen, cases.world(pick, chosen))


def plain(preset: Preset) -> tuple[Schedule, Trace]:
    chosen = schedule(preset, u=4, group_size=4, total_updates=8, evaluate_every=4, checkpoint_every=4, **FIELDS[preset])
    fleet = tuple(FakeInstance(f"rollout-{number}", slots=8) for number in range(4))
    return chosen, simulate(chosen, World(fleet, lengths=Lengths("long_tail", 200, 2000)))


def items(chosen: Schedule, trace: Trace) -> list[Item]:
    return list(tell(chosen, Resume(), trace.records))


def of(kind: type[Any], told: Iterable[Item]) -> list[Any]:
    return [item for item in told if isinstance(item, kind)]


def apart(spans: Iterable[tuple[Any, float, float]]) -> bool:
    """Whether no two spans of a row overlap."""
    rows: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for row, start, end in spans:
        rows[row].append((start, end))
    return all(a[1] <= b[0] + 1e-9 for row in rows.values() for a, b in zip(sorted(row), sorted(row)[1:], strict=False))


@pytest.mark.parametrize("seed", range(60))
def test_every_group_and_trajectory_is_drawn_once_in_a_lane_of_its_own(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    told = items(chosen, trace)
    groups, trajectories = of(GroupSpan, told), of(TrajectorySpan, told)
    admits = [r for r in trace.commands if isinstance(r, c.Admit)]
    counts = Counter(span.group for span in groups if span.outcome != "retried")
    assert set(counts.values()) <= {1}
    assert {span.group for span in groups} == {a.group for a in admits}
    whole = Counter((span.group, span.sample, span.attempt) for span in trajectories if not span.came)
    assert whole == Counter((a.group, a.sample, a.attempt) for a in admits)
    assert apart((span.lane, span.start, span.end) for span in groups)
    assert apart(((span.instance, span.lane), span.start, span.end) for span in trajectories)
    assert apart(((span.instance, span.lane), span.start, span.end) for span in of(ServeSpan, told))
    consumed = {group: d.update for d in trace.commands if isinstance(d, c.Dispatch) for group in d.groups}
    assert {span.group: span.update for span in groups if span.update} == consumed


@pytest.mark.parametrize("seed", range(60))
def test_times_run_forward_and_stay_within_the_run(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    for item in items(chosen, trace):
        if isinstance(item, (Mark, Level, Staleness)):
            assert 0 <= item.time <= trace.end
            continue
        assert 0 <= item.start <= item.end <= trace.end
        if isinstance(item, GroupSpan):
            stages = [item.start, item.served, item.trainable, item.end]
            known = [stage for stage in stages if stage is not None]
            assert known == sorted(known)
            assert [since for since, _ in item.versions] == sorted(since for since, _ in item.versions)


@pytest.mark.parametrize("seed", range(60))
def test_what_decodes_keeps_to_the_frontier_and_what_is_in_flight_to_the_window(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    levels = of(Level, items(chosen, trace))
    assert levels
    for level in levels:
        assert level.trainable <= level.in_flight
        assert level.frontier is None or level.decoding <= level.frontier
        assert (level.window is None) == (chosen.preset in ("serial", "pipelined"))
        assert level.window is None or level.in_flight <= level.window


@pytest.mark.parametrize(("preset", "lines"), [("serial", 0), ("pipelined", 2), ("streaming", 1), ("multiversion", 1)])
def test_a_picture_shows_the_limit_that_its_schedule_has(preset: Preset, lines: int) -> None:
    chosen, trace = plain(preset)
    drawn = Items()
    drawn.take(items(chosen, trace))
    text = draw(drawn, "a run", [], 0.0, trace.end)
    legend = [words for words in ("frontier", "decoding, in groups", "window: most in flight") if f">{words}</text>" in text]
    assert len(legend) == lines
    paths = re.findall(r'<path class="(?:mark|l1 line)" d="(M[^"]*H[^"]*)"', text)
    assert len(paths) == lines
    assert all(len(path) < 4000 for path in paths), "a step per change, not per record"


@pytest.mark.parametrize("seed", range(40))
def test_the_trainers_lane_has_no_gap_and_says_what_the_account_says(seed: int) -> None:
    chosen, trace = arbitrary(seed)
    spans = of(TrainerSpan, items(chosen, trace))
    assert all(a.end == b.start for a, b in itertools.pairwise(spans))
    fold, _ = account(chosen, Resume(), trace.records)
    drawn: Counter[str] = Counter()
    for span in spans:
        drawn[span.state] += span.end - span.start  # type: ignore[assignment]
        assert (span.command is None) == (span.state not in ("train", "publish", "checkpoint"))
    assert dict(drawn) == pytest.approx(fold.total.trainer)


def trace_of(told: Iterable[Item]) -> list[dict[str, Any]]:
    out = io.StringIO()
    writer = PerfettoWriter(out, {"run": 'a "run"'})
    writer.write(told)
    writer.close()
    parsed = json.loads(out.getvalue())
    assert parsed["otherData"] == {"run": 'a "run"'}
    return list(parsed["traceEvents"])


@pytest.mark.parametrize("seed", range(40))
def test_slices_of_a_thread_nest_or_are_apart_as_perfetto_wants_them(seed: int) -> None:
    events = trace_of(items(*arbitrary(seed)))
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["tid"]].append((event["ts"], -event["dur"]))
    for row in rows.values():
        open_: list[int] = []
        for start, less in sorted(row):
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or start - less <= open_[-1]
            open_.append(start - less)


@pytest.mark.parametrize("seed", range(40))
def test_flows_start_and_end_within_a_slice_of_their_thread(seed: int) -> None:
    events = trace_of(items(*arbitrary(seed)))
    slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for event in events:
        if event["ph"] in "sf":
            ends[event["name"], event["id"]].append(event["ph"])
            touching = [1 for start, end in slices[event["tid"]] if start <= event["ts"] <= max(end, start + 1)]
            assert touching, event
    assert all(sorted(phases) == ["f", "s"] for phases in ends.values())


def test_threads_are_named_once_and_their_numbers_are_unique_in_the_trace() -> None:
    events = trace_of(items(*plain("multiversion")))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(names) == len(set(names.values())) == sum(event["name"] == "thread_name" for event in events)
    used = {event["tid"] for event in events if event["ph"] == "X"}
    assert used <= set(names)
    assert {"trainer", "evaluation", "groups 0", "rollout-0 slot 0", "rollout-0 serves 0", "rollout-0 loads"} <= set(names.values())


def test_versions_are_told_apart_by_names_that_perfetto_colours_differently() -> None:
    def coloured(name: str) -> str:
        return re.sub(r"( )?[0-9]+", "", name)

    assert coloured(f"group 12 {version_name(3)}") == coloured(f"group 99 {version_name(3)}")
    assert coloured(f"group 12 {version_name(3)}") != coloured(f"group 12 {version_name(13)}")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_picture_is_one_valid_svg_with_every_group_instance_and_publish(preset: Preset) -> None:
    chosen, trace = plain(preset)
    told = items(chosen, trace)
    kept = Items()
    kept.take(told)
    text = draw(kept, "a < b", ["one & two"], 0.0, trace.end)
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "a < b"
    words = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    tips = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert {"a < b", "one & two", "trainer", "trainable", "rollout-0", "rollout-3", "v0", "v4", "evaluation"} <= set(words)
    for span in of(GroupSpan, told):
        assert any(tip.startswith(f"group {span.group},") for tip in tips)
    assert "prefers-color-scheme:dark" in text
    assert "http://www.w3.org/1999/xlink" not in text


def test_many_instances_share_lanes_and_every_eighth_is_named() -> None:
    chosen = schedule("multiversion", u=8, group_size=4, total_updates=6, version_window=3, no_signal="drop")
    fleet = tuple(FakeInstance(f"rollout-{number}", slots=4, versions_held=1 + number % 2) for number in range(40))
    trace = simulate(chosen, World(fleet, lengths=Lengths("long_tail", 200, 2000), no_signal=0.2, migrate_seconds=1.0))
    kept = Items()
    kept.take(items(chosen, trace))
    root = ElementTree.fromstring(draw(kept, "t", [], 0.0, trace.end))
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word and word.startswith("rollout-")] == [f"rollout-{number}" for number in range(0, 40, 8)]
    assert {"groups", "filtered, failed or retried"} <= set(words)


def test_a_range_shows_only_what_lies_in_it() -> None:
    chosen, trace = plain("pipelined")
    kept = Items()
    kept.take(items(chosen, trace))
    whole = draw(kept, "t", [], 0.0, trace.end)
    part = draw(kept, "t", [], trace.end / 2, trace.end)
    assert "group 0," in whole
    assert "group 0," not in part
    assert 'x="-' not in part


def test_many_groups_make_a_small_file() -> None:
    kept = Items()
    kept.take(tell(schedule("streaming", u=4, group_size=SIZE, staleness=2), Resume(), Flood().records(1000)))
    text = draw(kept, "t", [], 0.0, 1010.0)
    assert len(text) < 600_000
    ElementTree.fromstring(text)


def test_an_empty_picture_is_a_picture() -> None:
    ElementTree.fromstring(draw(Items(), "t", [], 0.0, 0.0))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_real_run_is_drawn_with_all_its_updates(path: Path) -> None:
    chosen, resume, records = read(path)
    told = list(tell(chosen, resume, [(now, record) for _, now, record in records]))
    assert len(of(GroupSpan, told)) == chosen.total_updates * chosen.groups_per_update
    assert {span.outcome for span in of(GroupSpan, told)} == {"trained"}
    names = {event["name"] for event in trace_of(told)}
    assert {f"train {update}" for update in range(1, chosen.total_updates + 1)} <= names
    assert records[0][1] > 1, "the workers took their time to start"
    assert min(span.start for span in of(TrainerSpan, told)) == 0, "time begins with the first record"
    assert max(span.end for span in of(TrainerSpan, told)) == pytest.approx(records[-1][1] - records[0][1])


def test_a_long_run_streams_and_no_more_is_held_than_is_in_flight() -> None:
    story = Story(schedule("streaming", u=4, group_size=SIZE, staleness=2), Resume())
    out = io.StringIO()
    writer = PerfettoWriter(out, {})
    began, held = time.process_time(), 0
    for now, record in Flood().records(1000):
        writer.write(story.feed(record, now))
        held = max(held, len(story._running) + len(story._groups))
    writer.write(story.close())
    writer.close()
    assert time.process_time() - began < 20
    assert held < 15 * (SIZE + 1)
    assert out.getvalue().count('"finished"') == 1000 * SIZE


class Told:
    """Records by hand."""

    def __init__(self, preset: Preset = "streaming", **fields: Any) -> None:
        self.story = Story(
            schedule(preset, **({"staleness": 1, "at_publish": "keep"} if preset == "streaming" else {}), **fields), Resume()
        )
        self.items: list[Item] = []
        for name in ("a", "b"):
            self(0.0, e.InstanceUp(InstanceInfo(name, 8)))

    def __call__(self, now: float, *records: Any) -> Told:
        for record in records:
            self.items += self.story.feed(record, now)
        return self

    def close(self) -> list[Item]:
        self.items += self.story.close()
        return self.items


def test_a_group_whose_weights_change_under_it_shows_both_versions() -> None:
    told = Told()
    told(1.0, c.LoadWeights(1, "a", 0), e.WeightsLive(1, "a", 0, "f", 0.0, 1.0), c.Admit(2, 0, 0, 0, "a", 0), c.Admit(3, 1, 0, 0, "b", 0))
    told(5.0, c.LoadWeights(4, "a", 1, "keep", 0))
    told(6.0, e.WeightsLive(4, "a", 1, "f", 0.0, 1.0))
    groups = {span.group: span for span in of(GroupSpan, told.close())}
    assert groups[0].versions == [(1.0, 0), (6.0, 1)]
    assert groups[1].versions == [(1.0, 0)], "it runs on another instance"
    assert [(s.version, s.start, s.end) for s in of(ServeSpan, told.items)] == [(0, 1.0, 6.0), (1, 6.0, 6.0)]


def test_a_move_ends_a_trajectory_here_and_starts_it_there() -> None:
    told = Told("multiversion", version_window=2)
    told(1.0, c.Admit(1, 0, 0, 0, "a", 0), c.Admit(2, 0, 1, 0, "a", 0))
    told(2.0, c.Migrate(3, ((0, 0), (0, 1)), "a", "b", 0))
    told(3.0, e.Migrated(3, ((0, 0), (9, 9))))
    spans = of(TrajectorySpan, told.close())
    assert [(s.sample, s.instance, s.start, s.end, s.outcome) for s in spans[:1]] == [(0, "a", 1.0, 3.0, "moved")]
    assert {(s.sample, s.instance, s.outcome) for s in spans[1:]} == {(0, "b", "open"), (1, "a", "open")}
    assert spans[0].left == next(s for s in spans if s.instance == "b").came == 1
    assert of(Move, told.items) == [Move("a", "b", 0, 2.0, 3.0, 2)]


def test_what_ran_on_a_lost_instance_ends_with_it_and_so_does_its_load() -> None:
    told = Told()
    told(1.0, c.LoadWeights(1, "a", 0), e.WeightsLive(1, "a", 0, "f", 0.0, 1.0), c.Admit(2, 0, 0, 0, "a", 0), c.LoadWeights(3, "a", 1))
    told(4.0, e.InstanceLost("a", "killed"))
    told(9.0, c.Admit(4, 0, 0, 1, "b", 0))
    found = told.close()
    assert [(s.attempt, s.outcome, s.end) for s in of(TrajectorySpan, found)] == [(0, "lost", 4.0), (1, "open", 9.0)]
    assert [(s.version, s.end) for s in of(LoadSpan, found)] == [(0, 1.0), (1, 4.0)]
    assert [s.end for s in of(ServeSpan, found)] == [4.0]
    assert [(m.kind, m.text) for m in of(Mark, found)] == [("up", "a"), ("up", "b"), ("lost", "a: killed")]


def test_a_load_or_abort_that_fails_ends_what_it_was_about() -> None:
    told = Told()
    told(1.0, c.Admit(1, 0, 0, 0, "b", 0), c.LoadWeights(2, "a", 1), c.Abort(3, 0, 0, 0, "b", "no"))
    told(2.0, e.CommandFailed(2, "broke"), e.CommandFailed(3, "broke"))
    found = told.close()
    assert [(s.instance, s.end) for s in of(LoadSpan, found)] == [("a", 2.0)]
    assert [(s.outcome, s.end) for s in of(TrajectorySpan, found)] == [("aborted", 2.0)]
    assert [m.text for m in of(Mark, found) if m.kind == "failed"] == ["broke", "broke"]


def test_late_answers_draw_nothing() -> None:
    told = Told()
    told(1.0, e.TrajectoryFinished(9, 0, 0, 0, "a", 5, 0, 0), e.Aborted(9), e.Migrated(9, ((0, 0),)), e.GroupMaterialized(9, 0, True, 2))
    told(1.0, e.Published(9, 1, "f"), c.Materialize(1, 7, (0,)), c.Terminal(2, 7, "failed"), e.Evaluated(9))
    assert [type(item) for item in told.close() if not isinstance(item, Mark)] == [TrainerSpan]


def test_an_over_stale_group_is_drawn_as_retried_and_again() -> None:
    chosen = replace(schedule("streaming", u=2, total_updates=6, staleness=0, overstale="retry", at_publish="keep"))
    told = items(chosen, simulate(chosen, World(lengths=Lengths("long_tail", 200, 2000))))
    outcomes = Counter(span.outcome for span in of(GroupSpan, told))
    assert outcomes["retried"] > 0
    retried = {span.group for span in of(GroupSpan, told) if span.outcome == "retried"}
    assert retried & {span.group for span in of(GroupSpan, told) if span.outcome == "trained"}


def test_warnings_frontiers_and_the_end_are_marked() -> None:
    told = Told()
    frontier = c.SetFrontier(2, 3, 4, None)
    told(1.0, c.Warn(1, "slow"), frontier, c.Stop(3, "done"), c.Evaluate(4, 0, 0))
    found = told.close()
    assert [(m.kind, m.text) for m in of(Mark, found)][2:] == [("warning", "slow"), ("frontier", frontier.words), ("stop", "done")]
    assert of(EvaluationSpan, found) == [EvaluationSpan(0, 1.0, 1.0)]
