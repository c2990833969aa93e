"""What the core holds on to: what is alive, never what has been."""

import gc
from collections import deque
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import get_args

import pytest

from paceline.core.account import Account
from paceline.core.schedule import Preset, Schedule
from paceline.sim.driver import Simulation
from paceline.sim.world import FakeInstance, Lengths, World

WORLD = World((FakeInstance("a", slots=4), FakeInstance("b", slots=4)), lengths=Lengths("uniform", 20), report=0.9)


def entries(*roots: object) -> int:
    """Items of all containers that are reachable from these objects, code apart."""
    todo: list[object] = list(roots)
    seen: set[int] = set()
    total = 0
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | list | set | frozenset | deque | tuple):
            total += len(thing)
        todo.extend(gc.get_referents(thing))
    return total


def held(preset: Preset, updates: int) -> int:
    """Entries that machine, rules and account hold at the end of a run of so many updates, a publish each."""
    schedule = Schedule(
        preset=preset,
        group_size=2,
        groups_per_round=1,
        groups_per_update=1,
        groups_per_dispatch=1,
        updates_per_publish=1,
        start_when="all" if preset == "serial" else "dispatch",
        total_updates=updates,
        staleness=int(preset == "streaming"),
        at_publish="keep" if preset == "streaming" else "drain",
        buffer_groups=2 if preset == "streaming" else 0,
        version_window=2 if preset == "multiversion" else 1,
    )
    simulation, account = Simulation(schedule, WORLD), Account(schedule)
    trace = simulation.run()
    assert trace.stop is not None
    assert trace.stop.ok
    for now, record in trace.records:
        account.feed(record, now)
    return entries(simulation.machine, simulation.rules, account)


@pytest.mark.parametrize("preset", get_args(Preset))
def test_five_hundred_more_updates_leave_nothing_behind(preset: Preset) -> None:
    assert held(preset, 540) - held(preset, 40) < 250
