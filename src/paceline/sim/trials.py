"""A trial: one schedule in one world, killed and resumed as often as asked, and everything that must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.core import commands as c
from paceline.core.replay import difference, replay
from paceline.core.rules.book import Book
from paceline.core.rules.facts import ENDED, FINISHED
from paceline.core.schedule import Resume, Schedule
from paceline.sim import cases
from paceline.sim.driver import Trace, simulate
from paceline.sim.world import World


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found. `wrong` is empty when all is well; `records` counts events and commands of all lineages."""

    wrong: tuple[str, ...]
    records: int
    lineages: int


def trial(schedule: Schedule, world: World, kills: Sequence[float] = ()) -> Trial:
    """Run to the end; the controller of the i-th lineage is killed at `kills[i]` (virtual seconds) and a resume follows."""
    resume = Resume()
    ended: Counter[int] = Counter()
    wrong: list[str] = []
    records = lineages = 0
    for kill in (*kills, None):
        trace = simulate(schedule, world if kill is None else replace(world, kill_at=kill), resume)
        records, lineages = records + len(trace.records), lineages + 1
        wrong += problems(schedule, world, trace, resume)
        last = trace.resume()
        if last is not None:
            ended.update(terminal_before(trace, last))
            resume = last
        if trace.stop is not None or wrong:
            break
    if not wrong and trace.stop is not None and trace.stop.ok and trace.stopping != "now":
        wrong += unbalanced(ended, resume)
    return Trial(tuple(wrong), records, lineages)


def problems(schedule: Schedule, world: World, trace: Trace, resume: Resume) -> Iterator[str]:
    """What is wrong with one lineage: violations, a stall, an end without cause, broken promises, commands that do not replay."""
    yield from map(str, trace.violations)
    if trace.stalled:
        yield f"stalled: {trace.stalled}"
    yield from wrong_end(schedule, world, trace, resume)
    for name, most in trace.most_running.items():
        if most > next(i.slots for i in world.instances if i.name == name):
            yield f"{name} ran {most} trajectories at a time"
    yield from broken_promises(schedule, trace, resume)
    if (parted := difference(trace.commands, replay(schedule, resume, trace.events))) is not None:
        yield f"replay: {parted}"


def wrong_end(schedule: Schedule, world: World, trace: Trace, resume: Resume) -> Iterator[str]:
    """A stop with an error, or before the last update, that nothing in the world explains."""
    stop = trace.stop
    if stop is None:
        return
    if not stop.ok and not cases.may_fail(schedule, world):
        yield f"stopped with an error: {stop.reason}"
    if stop.ok and world.prompts is None and world.stop is None:
        last = max((r.update for r in trace.commands if type(r) is c.Dispatch and r.step), default=resume.update)
        if last != schedule.total_updates:
            yield f"stopped after {last} of {schedule.total_updates} updates: {stop.reason}"


def broken_promises(schedule: Schedule, trace: Trace, resume: Resume) -> Iterator[str]:
    """What a schedule promises beside the rules: the frontier, that no publish leaves a group behind by more than the bound, and that no
    group is generated more than once, with `retry` twice."""
    book = Book(schedule, resume)
    generated: Counter[int] = Counter()
    for now, record in trace.records:
        book.take(record, now)
        if type(record) is c.Materialize:
            generated[record.group] += 1
            if generated[record.group] > 1 + (schedule.overstale == "retry"):
                yield f"group {record.group} was generated {generated[record.group]} times"
        if type(record) is c.Admit and book.frontier is not None:
            flying = len(book.since[c.Admit]) - len(book.aborting)
            if flying > book.frontier * schedule.group_size:
                yield f"{flying} trajectories in flight, F = {book.frontier} groups of {schedule.group_size}"
        ending = book.stopping or book.stepped >= schedule.total_updates
        if type(record) is c.Publish and schedule.overstale == "pace" and not ending:
            yield from left_behind(book)


def left_behind(book: Book) -> Iterator[str]:
    """Unconsumed groups with tokens that are older than the bound allows at the newest version."""
    for index, group in book.groups.items():
        started = [s.low if s.state == FINISHED else s.version for s in group.samples.values() if s.state != ENDED]
        if not group.dispatched and min(started, default=book.newest) < book.newest - book.schedule.bound:
            yield f"version {book.newest} was published with group {index} of version {min(started)} unconsumed"


def terminal_before(trace: Trace, resume: Resume) -> list[int]:
    """Groups that became terminal before the checkpoint that a resume starts from."""
    ended: list[int] = []
    saved: list[int] = []
    for _, record in trace.records:
        if type(record) is c.Terminal:
            ended.append(record.group)
        elif type(record) is c.Checkpoint and record.resume == resume:
            saved = list(ended)
    return saved


def unbalanced(ended: Counter[int], resume: Resume) -> Iterator[str]:
    """Rule 1 across lineages, counted without the rules: each prompt before `next_index` is terminal once, or pending."""
    for index in sorted({*ended, *resume.pending, *range(resume.next_index)}):
        times = ended[index] + (index in resume.pending)
        if times != 1 or index >= resume.next_index:
            yield f"prompt {index} is accounted for {times} times, the next new one is {resume.next_index}"
