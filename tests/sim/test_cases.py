"""What the searches choose from reaches every corner."""

import random

import pytest

from paceline.core.presets import check, check_fleet
from paceline.sim import cases

EVERY = {
    "U = R": lambda s, w: s.groups_per_update == s.groups_per_round,
    "one group": lambda s, w: s.groups_per_round == 1,
    "group_size = 1": lambda s, w: s.group_size == 1,
    "D = 1 < U": lambda s, w: s.groups_per_dispatch == 1 < s.groups_per_update,
    "D = U > 1": lambda s, w: s.groups_per_dispatch == s.groups_per_update > 1,
    "one update": lambda s, w: s.total_updates == 1,
    "an evaluation at each publish": lambda s, w: s.evaluate_every == 1,
    "no evaluation": lambda s, w: s.evaluate_every == 0,
    "an evaluation and a checkpoint within a round": lambda s, w: 0 < s.evaluate_every < s.updates_per_publish > s.checkpoint_every > 0,
    "no checkpoint but the last": lambda s, w: s.checkpoint_every == 0,
    "no refill": lambda s, w: s.no_signal == "refill" and s.refill_limit == 0,
    "one attempt": lambda s, w: s.attempts == 1,
    "empty rounds for ever": lambda s, w: s.empty_limit == 0,
    "one instance with one slot": lambda s, w: len(w.instances) == 1 and w.instances[0].slots == 1,
    "a group larger than an instance": lambda s, w: any(i.slots < s.group_size for i in w.instances),
    "an instance that holds two versions": lambda s, w: any(i.versions_held == 2 for i in w.instances),
    "an instance that says how full it is": lambda s, w: w.report and any(i.kv_tokens for i in w.instances),
    "one prompt": lambda s, w: w.prompts == 1,
}
ROUNDS = {"R no multiple of U": lambda s, w: s.groups_per_round % s.groups_per_update > 0, "in order": lambda s, w: s.in_order}
STARTS = {"training starts with all": lambda s, w: s.start_when == "all" and s.updates_per_publish > 1}
FLOWS = {**STARTS, "I = U": lambda s, w: s.in_flight_groups == s.groups_per_update, "no cap": lambda s, w: s.in_flight_groups == 0}
OWN = {
    "serial": ROUNDS,
    "pipelined": {
        **ROUNDS,
        **STARTS,
        "F = 1": lambda s, w: s.frontier == 1,
        "F strict": lambda s, w: s.frontier and s.refill == "group",
        "F auto": lambda s, w: s.frontier == "auto",
        "fifo": lambda s, w: s.frontier is None,
    },
    "streaming": {
        **FLOWS,
        "S = 0": lambda s, w: s.staleness == 0,
        "a buffer of U": lambda s, w: s.buffer_groups == s.groups_per_update,
        **{f"{how} with {late}": lambda s, w, h=how, o=late: s.at_publish == h and s.overstale == o
           for how in ("keep", "recompute", "drain") for late in ("pace", "retry", "drop")},
    },
    "multiversion": {
        **FLOWS,
        "W = 1": lambda s, w: s.version_window == 1,
        "W = 3 with one instance": lambda s, w: s.version_window == 3 and len(w.instances) == 1,
        "a timer": lambda s, w: s.rebalance_seconds and w.timer,
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", OWN)
def test_the_chooser_reaches_every_corner_and_chooses_only_what_is_allowed(preset):
    corners = {**EVERY, **OWN[preset]}
    for seed in range(2000):
        pick = cases.Chooser(random.Random(f"{preset} {seed}").choice)
        schedule = cases.schedule(preset, pick)
        world = cases.world(pick, schedule)
        check(schedule)
        check_fleet(schedule, [i.info() for i in world.instances])
        corners = {name: holds for name, holds in corners.items() if not holds(schedule, world)}
        if not corners and seed > 100:
            break
    assert list(corners) == []
