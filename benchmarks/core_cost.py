"""Cost of the pure core: microseconds per event or command, rules included, and the worst single step, by size and preset.

Times `Machine.step` and `Rules.feed` alone, inside a simulated run: the driver's own work, replay, ledger and printing are outside.
A size is the number of trajectories alive at a time. The garbage collector is off, since its pauses belong to the process, not a step.
"""

from __future__ import annotations

import argparse
import gc
from time import perf_counter_ns
from typing import Any, get_args

from evidence import measured
from paceline.core.commands import Command
from paceline.core.events import Event
from paceline.core.machine import Machine
from paceline.core.rules import Rules
from paceline.core.schedule import Preset, Schedule
from paceline.sim.driver import Simulation
from paceline.sim.world import FakeInstance, Lengths, World

GROUP = 8
TARGET_US = 20.0


class Clock:
    """Adds up what the core does for each event: its step, then the rules over the event and its commands."""

    def __init__(self) -> None:
        self.step_ns = self.rules_ns = self.records = self.steps = self.worst_ns = self.current_ns = 0
        self.worst_records = self.current_records = 0
        self.worst = self.current = ""

    def begin(self, event: Event) -> None:
        """A new event: the one before is complete."""
        if self.current_ns > self.worst_ns:
            self.worst_ns, self.worst, self.worst_records = self.current_ns, self.current, self.current_records
        self.current, self.current_ns, self.current_records = type(event).__name__, 0, 0
        self.steps += 1


class TimedMachine:
    def __init__(self, machine: Machine, clock: Clock) -> None:
        self.machine = machine
        self.clock = clock

    def step(self, event: Event, now: float) -> list[Command]:
        start = perf_counter_ns()
        commands = self.machine.step(event, now)
        spent = perf_counter_ns() - start
        self.clock.step_ns += spent
        self.clock.current_ns += spent
        return commands

    def waits(self, now: float) -> Any:
        return self.machine.waits(now)


class TimedRules:
    def __init__(self, rules: Rules, clock: Clock) -> None:
        self.rules = rules
        self.clock = clock

    def feed(self, record: Event | Command, now: float) -> None:
        if isinstance(record, Event):
            self.clock.begin(record)
        start = perf_counter_ns()
        self.rules.feed(record, now)
        spent = perf_counter_ns() - start
        self.clock.rules_ns += spent
        self.clock.current_ns += spent
        self.clock.records += 1
        self.clock.current_records += 1

    def close(self) -> None:
        self.rules.close()


def schedule(preset: Preset, trajectories: int) -> Schedule:
    """As many groups as make `trajectories` alive at a time, in 4 updates a publish; 3 publishes."""
    groups = trajectories // GROUP
    flow = preset in ("streaming", "multiversion")
    # There, bound + 1 = 2 publish periods are alive together.
    period = groups // 2 if flow else groups
    u = max(1, period // 4)
    return Schedule(
        preset=preset,
        group_size=GROUP,
        groups_per_round=4 * u,
        groups_per_update=u,
        groups_per_dispatch=max(1, u // 4),
        updates_per_publish=4,
        start_when="all" if preset == "serial" else "dispatch",
        total_updates=12,
        staleness=1 if preset == "streaming" else 0,
        at_publish="keep" if preset == "streaming" else "drain",
        buffer_groups=4 * u if preset == "streaming" else 0,
        version_window=2 if preset == "multiversion" else 1,
        on_failure="drop_group",
        deadlines=(("admit", 1e4), ("load", 1e4)),
    )


def cost(preset: Preset, trajectories: int, instances: int) -> dict[str, Any]:
    """One simulated run, timed."""
    slots = max(1, -(-trajectories // instances))
    fleet = tuple(FakeInstance(f"i{i}", slots=slots, speed=50.0 if i % 20 else 5.0) for i in range(instances))
    plan = schedule(preset, trajectories)
    world = World(fleet, lengths=Lengths("long_tail", 200, 2000), failure=0.01, no_signal=0.1, group_seconds=100.0 / plan.groups_per_round)
    simulation, clock = Simulation(plan, world, keep=False), Clock()
    simulation.machine = TimedMachine(simulation.machine, clock)  # type: ignore[assignment]
    simulation.rules = TimedRules(simulation.rules, clock)  # type: ignore[assignment]
    gc.collect()
    gc.disable()
    trace = simulation.run()
    gc.enable()
    assert not trace.violations, trace.violations[0]
    assert not trace.stalled, trace.stalled
    row = {
        "trajectories": trajectories,
        "instances": instances,
        "events": clock.steps,
        "records": clock.records,
        "us_per_record": round((clock.step_ns + clock.rules_ns) / clock.records / 1e3, 2),
        "machine_us": round(clock.step_ns / clock.records / 1e3, 2),
        "rules_us": round(clock.rules_ns / clock.records / 1e3, 2),
        "worst_step_ms": round(clock.worst_ns / 1e6, 2),
        "worst_step_event": clock.worst,
        "worst_step_records": clock.worst_records,
    }
    print(preset, row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--instances", type=int, nargs="+", default=[10, 1_000])
    parser.add_argument("--preset", choices=get_args(Preset), action="append")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with measured("core-cost", repeats=args.repeats) as figures:
        figures["target_us_per_record"] = TARGET_US
        for preset in args.preset or get_args(Preset):
            rows = []
            for size in args.sizes:
                for instances in args.instances:
                    runs = [cost(preset, size, instances) for _ in range(args.repeats)]
                    middle = sorted(runs, key=lambda r: float(r["us_per_record"]))[len(runs) // 2]
                    rows.append(middle | {"us_per_record_all": [r["us_per_record"] for r in runs]})
            figures[preset] = rows
        worst = max(r["us_per_record"] for p in get_args(Preset) for r in figures.get(p, []))
        figures["largest_us_per_record"] = worst
        print(f"largest cost {worst} us per record, target {TARGET_US}")


if __name__ == "__main__":
    main()
