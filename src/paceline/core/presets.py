"""What a preset means, in one place, and which schedules and fleets are refused. Everything else reads fields only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core.commands import ANSWERED, FLEET, GROUPS
from paceline.core.schedule import Schedule
from paceline.types.errors import ConfigError
from paceline.types.weights import InstanceInfo

DEADLINES = (*ANSWERED.values(), FLEET, GROUPS)
"""Kinds of waits that a schedule can give a deadline."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The four yes-or-no questions in which presets differ, and the cap that follows from the bound."""

    rounds: bool
    """Prompts come in rounds of R, and a publish follows the whole round."""
    pinned: bool
    """All tokens of a group carry one version."""
    paced: bool
    """Admission and training follow the rule of `bound`, so that no group gets over-stale."""
    balanced: bool
    """Versions live side by side, and instances are shared out among them."""
    cap: int
    """Groups requested and not yet consumed, at most."""


_QUESTIONS: dict[str, tuple[bool, bool, bool]] = {
    "serial": (True, True, False),
    "pipelined": (True, True, False),
    "streaming": (False, False, False),
    "multiversion": (False, True, True),
}


def traits(schedule: Schedule) -> Traits:
    """The traits of a schedule's preset."""
    rounds, pinned, balanced = _QUESTIONS[schedule.preset]
    most = (schedule.bound + 1) * schedule.groups_per_publish
    return Traits(rounds, pinned, schedule.overstale == "pace", balanced, schedule.in_flight_groups or most)


def check(schedule: Schedule) -> None:
    """Raise ConfigError, with the value and the rule, for a schedule that has no meaning or cannot make progress."""
    _check_counts(schedule)
    _check_sizes(schedule)
    if traits(schedule).rounds:
        _check_rounds(schedule)
    else:
        _check_flow(schedule)
    _check_unused(schedule)


def _require(good: bool, name: str, value: object, rule: str) -> None:
    if not good:
        raise ConfigError(f"schedule.{name} = {value!r}: {rule}")


def _check_counts(s: Schedule) -> None:
    for name in (
        "group_size",
        "groups_per_round",
        "groups_per_update",
        "groups_per_dispatch",
        "updates_per_publish",
        "total_updates",
        "version_window",
        "attempts",
    ):
        value = getattr(s, name)
        _require(value >= 1, name, value, "must be at least 1")
    for name in ("staleness", "buffer_groups", "in_flight_groups", "refill_limit", "empty_limit", "evaluate_every", "checkpoint_every"):
        value = getattr(s, name)
        _require(value >= 0, name, value, "must not be negative")
    _require(s.rebalance_seconds >= 0, "rebalance_seconds", s.rebalance_seconds, "must not be negative")
    _require(0 < s.high_kv_use <= 1, "high_kv_use", s.high_kv_use, "must lie in (0, 1]")
    for kind, seconds in s.deadlines:
        _require(kind in DEADLINES, "deadlines", kind, f"must be one of {', '.join(DEADLINES)}")
        _require(seconds > 0, f"deadlines[{kind}]", seconds, "must be positive seconds")


def _check_sizes(s: Schedule) -> None:
    _require(
        s.groups_per_dispatch <= s.groups_per_update,
        "groups_per_dispatch",
        s.groups_per_dispatch,
        f"must be at most groups_per_update = {s.groups_per_update}",
    )
    if isinstance(s.frontier, int):
        _require(s.frontier >= 1, "frontier", s.frontier, "must be at least 1 (None = unlimited)")


def _check_rounds(s: Schedule) -> None:
    updates = -(-s.groups_per_round // s.groups_per_update)
    _require(
        s.groups_per_round >= s.groups_per_update,
        "groups_per_round",
        s.groups_per_round,
        f"must be at least groups_per_update = {s.groups_per_update}",
    )
    _require(
        s.updates_per_publish == updates,
        "updates_per_publish",
        s.updates_per_publish,
        f"is ceil(groups_per_round / groups_per_update) = {updates} in a schedule of rounds",
    )


def _check_flow(s: Schedule) -> None:
    most = (s.bound + 1) * s.groups_per_publish
    least = s.groups_per_publish if s.start_when == "all" else s.groups_per_update
    if s.in_flight_groups:
        _require(
            s.in_flight_groups >= least, "in_flight_groups", s.in_flight_groups, f"must be at least {least}, what training starts with"
        )
    if s.overstale == "pace":
        rule = f"must be at most (bound + 1) x U x updates_per_publish = {most}: the bound admits no more"
        _require(s.in_flight_groups <= most, "in_flight_groups", s.in_flight_groups, rule)
    if s.buffer_groups:
        _require(s.buffer_groups >= least, "buffer_groups", s.buffer_groups, f"must be at least {least}, what training starts with")
    _require(not s.in_order, "in_order", s.in_order, "needs rounds: the order of other schedules depends on timing")
    _require(s.frontier is None, "frontier", s.frontier, "belongs to schedules of rounds; in_flight_groups is the cap here")


def _check_unused(s: Schedule) -> None:
    streams = not traits(s).rounds and not traits(s).pinned
    if not streams:
        _require(s.staleness == 0, "staleness", s.staleness, "has no effect outside streaming")
        _require(s.overstale == "pace", "overstale", s.overstale, "has no effect outside streaming: nothing gets over-stale")
        _require(s.buffer_groups == 0, "buffer_groups", s.buffer_groups, "has no effect outside streaming")
        _require(s.granularity == "sample", "granularity", s.granularity, "has no effect outside streaming")
    if not traits(s).balanced:
        _require(s.version_window == 1, "version_window", s.version_window, "has no effect outside multiversion")
    if traits(s).rounds:
        _require(s.in_flight_groups == 0, "in_flight_groups", s.in_flight_groups, "has no effect with rounds: frontier is the limit")
    if s.start_when == "all":
        _require(s.frontier is None, "frontier", s.frontier, "has no use when training starts with the whole round (start_when = all)")


def check_fleet(schedule: Schedule, instances: Iterable[InstanceInfo]) -> None:
    """Raise ConfigError for instances that cannot carry the schedule. No instance yet is no error: they may come later."""
    for info in instances:
        where = f"instance {info.instance!r}"
        if info.slots < 1:
            raise ConfigError(f"{where}: slots = {info.slots}: must be at least 1")
        if info.versions_held < 1:
            raise ConfigError(f"{where}: versions_held = {info.versions_held}: must be at least 1")
        if info.logprobs == "none":
            raise ConfigError(f"{where}: logprobs = 'none': every schedule trains on the log-probs recorded when tokens were sampled")
        if schedule.granularity == "group" and info.slots < schedule.group_size:
            raise ConfigError(f"{where}: slots = {info.slots}: granularity = 'group' needs group_size = {schedule.group_size} slots")
