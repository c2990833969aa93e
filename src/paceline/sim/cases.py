"""Arbitrary schedules and worlds, corner values included, for property tests: what is chosen from is here, who chooses is not.

`choose(options)` returns one of them: `random.Random.choice`, or a draw of hypothesis, which can then shrink a failing case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from paceline.core.schedule import Preset, Schedule
from paceline.sim.world import FakeInstance, Lengths, World

T = TypeVar("T")


class Chooser:
    """Gives the functions below one typed way to choose."""

    def __init__(self, choose: Callable[[Sequence[object]], object]) -> None:
        self._choose = choose

    def of(self, *options: T) -> T:
        """One of the options."""
        return self._choose(options)  # type: ignore[return-value]

    def upto(self, low: int, high: int) -> int:
        """A whole number in low..high."""
        number: int = self.of(*range(low, high + 1))
        return number


DEADLINES = (
    *(("admit", 3.0), ("materialize", 2.0), ("load", 0.05), ("dispatch", 1.0), ("prompts", 0.005)),
    *(("migrate", 0.02), ("abort", 0.001), ("instances", 0.5), ("groups", 1.0)),
)
"""Seconds that some waits of a simulated run exceed."""


def schedule(preset: Preset, pick: Chooser) -> Schedule:
    """A legal schedule of the preset, small, with every corner value in reach: U = R, D = 1, F = 1, W = 1, S = 0, group_size = 1, I = U."""
    u = pick.upto(1, 4)
    upp = pick.upto(1, 3)
    base = Schedule(
        preset=preset,
        group_size=pick.upto(1, 4),
        groups_per_round=u * upp,
        groups_per_update=u,
        groups_per_dispatch=pick.upto(1, u),
        updates_per_publish=upp,
        start_when="dispatch",
        total_updates=pick.of(1, 2, 3, 5, 8, 13),
        no_signal=pick.of("keep", "drop", "refill"),
        refill_limit=pick.upto(0, 2),
        empty_limit=pick.of(10, 10, 1, 0),
        attempts=pick.upto(1, 3),
        on_failure=pick.of("drop_group", "drop_sample", "stop"),
        evaluate_every=pick.of(0, 1, 3),
        checkpoint_every=pick.of(0, 1, 2),
        deadlines=pick.of((), DEADLINES),
    )
    return {"serial": _serial, "pipelined": _pipelined, "streaming": _streaming, "multiversion": _multiversion}[preset](base, pick)


def _rounds(base: Schedule, pick: Chooser) -> Schedule:
    """R need not be a multiple of U: the round's last update is short."""
    r = max(base.groups_per_update, base.groups_per_round - pick.of(0, 0, 1, 2))
    return replace(base, groups_per_round=r, updates_per_publish=math.ceil(r / base.groups_per_update), in_order=pick.of(False, True))


def _serial(base: Schedule, pick: Chooser) -> Schedule:
    return replace(_rounds(base, pick), start_when="all")


def _pipelined(base: Schedule, pick: Chooser) -> Schedule:
    start = _start(pick)
    frontier: int | Literal["auto"] | None = None if start == "all" else pick.of(None, 1, 2, 5, "auto")
    return replace(_rounds(base, pick), start_when=start, frontier=frontier, refill=pick.of("sample", "group"))


def _start(pick: Chooser) -> Literal["dispatch", "all"]:
    return "all" if pick.of(False, False, True) else "dispatch"


def _streaming(base: Schedule, pick: Chooser) -> Schedule:
    u, period = base.groups_per_update, base.groups_per_publish
    s, start = pick.upto(0, 3), _start(pick)
    least = u if start == "dispatch" else period
    return replace(
        base,
        start_when=start,
        staleness=s,
        overstale=pick.of("pace", "pace", "retry", "drop"),
        at_publish=pick.of("keep", "recompute", "drain"),
        buffer_groups=pick.of(least, least + 1, 4 * least),
        granularity=pick.of("sample", "group"),
        in_flight_groups=pick.of(0, least, (s + 1) * period),
    )


def _multiversion(base: Schedule, pick: Chooser) -> Schedule:
    w, u, period = pick.upto(1, 3), base.groups_per_update, base.groups_per_publish
    start = _start(pick)
    return replace(
        base,
        start_when=start,
        version_window=w,
        in_flight_groups=pick.of(0, 0, u if start == "dispatch" else period, w * period),
        rebalance_seconds=pick.of(0.0, 0.5),
        high_kv_use=pick.of(0.5, 0.9),
    )


def may_fail(schedule: Schedule, world: World) -> bool:
    """Whether the world can give a run of this schedule a reason to stop with an error."""
    fails = world.failure or world.lost_rewards or world.reward_failure
    empties = world.dropped or (world.no_signal and schedule.no_signal != "keep") or fails
    return bool((fails and schedule.on_failure == "stop") or (empties and schedule.empty_limit))


def world(pick: Chooser, schedule: Schedule) -> World:
    """A world in which every run of the schedule must end: what is lost comes back, and nothing fails for ever."""
    least = schedule.group_size if schedule.granularity == "group" else 1
    instances = tuple(_instance(i, pick, least) for i in range(pick.of(1, 2, 3, 5)))
    return World(
        instances=instances,
        seed=pick.upto(0, 999),
        prompts=pick.of(None, None, None, None, 1, 5, 23, 60),
        end_early=pick.of(False, True),
        lengths=Lengths(pick.of("fixed", "uniform", "long_tail"), 100, 2000),
        failure=pick.of(0.0, 0.0, 0.0, 0.1, 0.4),
        late=pick.of(0.0, 0.5),
        no_signal=pick.of(0.0, 0.0, 0.3, 0.7),
        dropped=pick.of(0.0, 0.0, 0.0, 0.2),
        lost_rewards=pick.of(0.0, 0.0, 0.3),
        reward_failure=pick.of(0.0, 0.0, 0.0, 0.1),
        load_failure=pick.of(0.0, 0.1),
        migrate_failure=pick.of(0.0, 0.5),
        migrate_seconds=pick.of(0.05, 3.0),
        slow_reward=pick.of(0.0, 0.1),
        prompt_seconds=pick.of(0.0, 0.01, 2.0),
        group_seconds=pick.of(0.0, 0.2, 5.0),
        publish_seconds=pick.of(0.0, 0.1, 5.0),
        load_seconds=pick.of(0.0, 0.1, 5.0),
        evaluate_seconds=pick.of(0.0, 3.0),
        timer=pick.of(0.0, 0.7),
        report=pick.of(0.0, 0.9),
        stop=_stop(pick),
    )


def _stop(pick: Chooser) -> tuple[float, Literal["checkpoint", "now"]] | None:
    if pick.of(True, True, True, True, True, False):
        return None
    how: Literal["checkpoint", "now"] = "now" if pick.of(False, False, True) else "checkpoint"
    return pick.upto(0, 80) / 2, how


def _instance(number: int, pick: Chooser, least: int) -> FakeInstance:
    slow = pick.of(False, False, True)
    once = ((pick.upto(0, 10) / 2, pick.upto(11, 20) / 2),)
    often = tuple((t + number / 3, t + number / 3 + 2.0) for t in range(pick.upto(2, 6), 90, pick.of(5, 11)))
    lost = pick.of((), (), once, often)
    return FakeInstance(
        name=f"i{number}",
        slots=max(least, pick.of(1, 2, 8)),
        speed=5.0 if slow else 100.0,
        comes=pick.of(0.0, 0.0, 3.0),
        outages=lost,
        versions_held=pick.of(1, 1, 2),
        exports_kv=pick.of(True, True, False),
        kv_tokens=pick.of(0, 500),
    )
