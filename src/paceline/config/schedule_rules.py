"""Rules about [schedule] alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from paceline.config.rules import Rule, only
from paceline.config.schema import DEFAULT_STALENESS, DEFAULT_WINDOW, ScheduleConfig


def _preset(*presets: str) -> Callable[[ScheduleConfig], bool]:
    return lambda s: s.preset in presets


def _dispatch(s: ScheduleConfig) -> int:
    return s.groups_per_dispatch or s.groups_per_update


def _round(s: ScheduleConfig) -> int:
    return s.groups_per_round or s.groups_per_update


def _least(s: ScheduleConfig) -> int:
    """Groups that training starts with, where generation never pauses."""
    return s.groups_per_update * (s.updates_per_publish or 1 if s.start_when == "all" else 1)


def _admitted(s: ScheduleConfig) -> int:
    """Groups that the bound lets in: (b + 1) x U x updates_per_publish."""
    versions = (
        1 + (DEFAULT_STALENESS if s.staleness is None else s.staleness) if s.preset == "streaming" else s.version_window or DEFAULT_WINDOW
    )
    return versions * s.groups_per_update * (s.updates_per_publish or 1)


_ROUNDS = ("serial", "pipelined")
_FLOWING = ("streaming", "multiversion")

SCHEDULE: list[Rule[ScheduleConfig]] = [
    *only("groups_per_round", _preset(*_ROUNDS), "rounds exist in the presets serial and pipelined"),
    *only("updates_per_publish", _preset(*_FLOWING), "serial and pipelined publish after every round, R / U updates"),
    *only("frontier", _preset("pipelined"), "a frontier belongs to the preset pipelined"),
    *only("refill", lambda s: s.frontier is not None, "without a frontier nothing waits to be refilled"),
    *only("staleness overstale at_publish buffer_groups granularity", _preset("streaming"), "it belongs to the preset streaming"),
    *only("version_window", _preset("multiversion"), "a window of versions belongs to the preset multiversion"),
    *only("rebalance_s high_kv_use", _preset("multiversion"), "work is moved between instances in the preset multiversion"),
    *only("in_flight_groups", _preset(*_FLOWING), "serial and pipelined generate exactly one round at a time"),
    *only(
        "refill_limit",
        lambda s: s.no_signal == "refill" and s.preset in _ROUNDS,
        "only no_signal = refill replaces prompts, and only a round has places; streaming and multiversion go on asking for prompts anyway",
    ),
    *only("in_order", _preset(*_ROUNDS), "streaming and multiversion consume by version; order of submission would stall them"),
    Rule(
        "refill_takes_another",
        ("no_signal", "refill_limit"),
        "refill with no replacement is drop; say so",
        lambda s: s.no_signal == "refill" and s.refill_limit == 0,
    ),
    Rule(
        "serial_starts_late",
        ("preset", "start_when"),
        "serial trains when the whole round is trainable; training from the first dispatch on is the preset pipelined",
        lambda s: s.preset == "serial" and s.start_when == "dispatch",
    ),
    Rule(
        "pipelined_starts_early",
        ("preset", "start_when"),
        "pipelined trains from the first dispatch on; waiting for the whole round is the preset serial",
        lambda s: s.preset == "pipelined" and s.start_when == "all",
    ),
    Rule(
        "whole_updates_per_round",
        ("groups_per_round", "groups_per_update"),
        "R must be a multiple of U, else the last update of every round is short",
        lambda s: s.preset in _ROUNDS and _round(s) % s.groups_per_update != 0,
    ),
    Rule(
        "whole_dispatches_per_update",
        ("groups_per_dispatch", "groups_per_update"),
        "D must be at most U and divide it, since an update consumes whole dispatches",
        lambda s: s.groups_per_update % _dispatch(s) != 0,
    ),
    Rule(
        "frontier_within_round",
        ("frontier", "groups_per_round"),
        "F above R limits nothing; leave the frontier out for fifo",
        lambda s: isinstance(s.frontier, int) and s.preset == "pipelined" and s.frontier > _round(s),
    ),
    Rule(
        "buffer_starts_training",
        ("buffer_groups", "groups_per_update", "updates_per_publish", "start_when"),
        "the buffer must hold what training starts with, U groups (start_when = all: U x updates_per_publish)",
        lambda s: s.preset == "streaming" and s.buffer_groups is not None and s.buffer_groups < _least(s),
    ),
    Rule(
        "buffer_can_fill",
        ("buffer_groups", "in_flight_groups", "groups_per_update", "updates_per_publish", "staleness"),
        "a buffer for more groups than can be in flight limits nothing: at most in_flight_groups, or (S + 1) x U x updates_per_publish",
        lambda s: s.preset == "streaming" and s.buffer_groups is not None and s.buffer_groups > (s.in_flight_groups or _admitted(s)),
    ),
    Rule(
        "all_is_more_than_a_dispatch",
        ("start_when", "groups_per_dispatch", "groups_per_update", "updates_per_publish"),
        "has no effect: training waits for D groups anyway, and all of a publish period are no more than that",
        lambda s: s.preset in _FLOWING and s.start_when == "all" and _dispatch(s) == _least(s),
    ),
    Rule(
        "in_flight_in_range",
        ("in_flight_groups", "groups_per_update", "updates_per_publish", "version_window", "staleness", "start_when", "overstale"),
        "I must be at least what training starts with, U groups (start_when = all: U x updates_per_publish), and with pacing at most "
        "what the bound admits, (bound + 1) x U x updates_per_publish (bound: W - 1 or S)",
        lambda s: (
            s.preset in _FLOWING
            and s.in_flight_groups is not None
            and not _least(s) <= s.in_flight_groups <= (_admitted(s) if s.overstale == "pace" else math.inf)
        ),
    ),
    Rule(
        "group_of_one",
        ("group_size",),
        "an advantage is a sample against its group's mean: in a group of one it is always 0 and nothing is learned",
        lambda s: s.group_size == 1,
    ),
    Rule(
        "survivors_make_a_group",
        ("on_failure", "group_size"),
        "drop_sample trains at least two survivors, which a group of two never has after a failure; use drop_group",
        lambda s: s.on_failure == "drop_sample" and s.group_size == 2,
    ),
]
"""Rules about [schedule] alone."""
