"""A machine against an adversary: answers in any legal order, twice, late; losses, restarts, stops, kills and resumes at any moment."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.loading import Loading
from paceline.core.placement import Placement
from paceline.core.serving import Serving
from paceline.core.training import Training
from paceline.sim import cases
from paceline.sim.adversary import play

PRESETS = ("serial", "pipelined", "streaming", "multiversion")
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_order_of_events_breaks_a_rule_or_stalls_the_run(preset):
    """benchmarks/core_orders.py plays thousands of such games; here hypothesis chooses, so that a game that is lost shrinks."""

    @SETTINGS
    @given(st.data())
    def go(data):
        pick = cases.Chooser(lambda options: data.draw(st.sampled_from(options)))
        assert play(preset, pick, moves=30).wrong == ""

    go()


FAULTS = {
    "the load of a lost instance is waited for": ("serial", Loading, "forget"),
    "trajectories of a lost instance are forgotten": ("pipelined", Serving, "displaced"),
    "nothing loads what waited for an evaluation": ("streaming", Loading, "load_all"),
    "over-stale groups stay in the buffer": ("streaming", Training, "drop_overstale"),
    "slots of a move are not given back": ("multiversion", Placement, "_end_move"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_adversary_finds_a_machine_that_forgets_something(fault, monkeypatch):
    preset, part, name = FAULTS[fault]
    monkeypatch.setattr(part, name, lambda self, *rest: None)
    for seed in range(300):
        try:
            if play(preset, cases.Chooser(random.Random(seed).choice), moves=40).wrong:
                return
        except (AssertionError, KeyError):  # the machine itself noticed
            return
    pytest.fail("it was not found")
