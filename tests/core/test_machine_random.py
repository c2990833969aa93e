"""Thousands of small random worlds: every run ends, in bound, with nothing left behind."""

import random
from collections import Counter
from typing import Any

import pytest
from tests.core.hand import Drive, World, schedule

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.schedule import Schedule

PRESETS = ["serial", "pipelined", "streaming", "multiversion"]


def draw_schedule(rnd: random.Random, preset: str) -> Schedule:
    u = rnd.randint(1, 4)
    upp = rnd.randint(1, 3)
    values: dict[str, Any] = {
        "u": u,
        "d": rnd.randint(1, u),
        "group_size": rnd.choice([1, 2, 3]),
        "total_updates": rnd.randint(1, 8),
        "no_signal": rnd.choice(["keep", "drop", "refill"]),
        "on_failure": rnd.choice(["drop_sample", "drop_group"]),
        "attempts": rnd.randint(1, 3),
        "evaluate_every": rnd.choice([0, 0, 1, 2, 3]),
        "checkpoint_every": rnd.choice([0, 1, 2, 3]),
        "refill_limit": rnd.randint(0, 2),
    }
    if preset in ("serial", "pipelined"):
        values |= {"r": rnd.randint(u, 3 * u), "in_order": rnd.random() < 0.3}
    else:
        values |= {"upp": upp, "start_when": rnd.choice(["dispatch", "all"])}
    if preset == "pipelined":
        values |= {"frontier": rnd.choice([None, 1, 2, "auto", u]), "refill": rnd.choice(["group", "sample"])}
    if preset == "streaming":
        values |= {
            "staleness": rnd.randint(0, 2),
            "overstale": rnd.choice(["pace", "pace", "retry", "drop"]),
            "at_publish": rnd.choice(["keep", "recompute", "drain"]),
            "granularity": rnd.choice(["sample", "group"]),
            "buffer_groups": rnd.choice([0, u * upp, u * upp + 3]),
            "in_flight_groups": rnd.choice([0, u * upp]),
        }
    if preset == "multiversion":
        window = rnd.randint(1, 3)
        values |= {
            "version_window": window,
            "rebalance_seconds": rnd.choice([0.0, 10.0]),
            "in_flight_groups": rnd.choice([0, u * upp, window * u * upp]),
        }
    return schedule(preset, **values)


def draw_world(rnd: random.Random) -> World:
    return World(
        instances=rnd.choice([1, 1, 2, 3, 5]),
        slots=rnd.choice([3, 4, 8]),
        versions_held=rnd.choice([1, 1, 2]),
        exports_kv=rnd.random() < 0.5,
        prompts=rnd.choice([0, 1, 5, 17, 10**9]),
        no_signal=rnd.choice([0, 0.3, 1]),
        drop=rnd.choice([0, 0, 0.2]),
        fail=rnd.choice([0, 0.2]),
        lose=rnd.choice([0, 0.3]),
        slow=rnd.choice([0, 0, 1]),
        move_fails=rnd.choice([0, 0.3]),
        update_seconds=rnd.choice([0.1, 5, 30]),
        reports=rnd.random() < 0.3,
        timer=rnd.choice([5.0, 50.0]),
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_every_run_ends_within_the_bound_and_leaves_no_group_behind(preset: str) -> None:
    for seed in range(150):
        rnd = random.Random(f"{seed}{preset}")
        drive = Drive(draw_schedule(rnd, preset), draw_world(rnd), seed).run()
        assert drive.stop is not None
        assert drive.stop.ok or "groups in a row" in drive.stop.reason
        assert drive.stale <= drive.schedule.bound
        if drive.stop.ok:
            assert drive.of(c.Checkpoint)[-1].pending == ()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_crash_after_any_checkpoint_consumes_every_prompt_exactly_once(preset: str) -> None:
    for seed in range(60):
        rnd = random.Random(f"crash {seed}{preset}")
        plan = draw_schedule(rnd, preset)
        world = World(instances=2, slots=4, exports_kv=True, fail=0.1, no_signal=0.2, prompts=rnd.choice([9, 30, 10**9]))
        resume, seen = None, Counter[int]()
        for life in range(20):
            stop = (rnd.randint(5, 120), "checkpoint") if rnd.random() < 0.7 else None
            drive = Drive(plan, world, seed * 100 + life, resume=resume, stop_at=stop).run()
            assert drive.stop is not None
            saved = drive.of(c.Checkpoint)
            if stop is None and drive.stop.ok:
                seen.update(x.group for x in drive.of(c.Terminal))
                assert sorted(seen) == list(range(len(seen))), "no prompt was lost on the way"
                break
            if saved:
                point = rnd.choice(saved)
                seen.update(x.group for x in drive.commands[: drive.commands.index(point)] if isinstance(x, c.Terminal))
                resume = point.resume
            if not drive.stop.ok:
                break
        assert set(seen.values()) <= {1}
        if drive.stop.ok:
            assert sorted(seen) == list(range(len(seen)))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_events_give_the_same_commands(preset: str) -> None:
    for seed in range(10):
        rnd = random.Random(f"replay {seed}{preset}")
        drive = Drive(draw_schedule(rnd, preset), draw_world(rnd), seed).run()
        machine = Machine(drive.schedule)
        assert [x for event, now in drive.events for x in machine.step(event, now)] == drive.commands


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trajectory_that_never_ends_is_named_and_holds_up_no_more_than_it_must(preset: str) -> None:
    plan = schedule(preset, u=1, group_size=1, total_updates=3, deadlines=(("admit", 100.0),), staleness=1 if preset == "streaming" else 0)
    drive = Drive(plan, World(slots=2, hang=frozenset({1}), timer=40.0))
    drive.world.hang = frozenset({1})
    with pytest.raises(AssertionError, match="stalled"):
        drive.run()
    drive.now += 200
    drive.feed(e.Timer())
    assert any("group 1 sample 0" in x.message for x in drive.of(c.Warn))
    assert any("group 1 sample 0" in w.what for w in drive.machine.waits(drive.now))
