"""What a schedule promises beside the rules is looked for in every trial, so it must be found where it is broken."""

import pytest

from paceline.core import commands as c
from paceline.core.schedule import Resume, Schedule
from paceline.sim.driver import Trace
from paceline.sim.trials import broken_promises


@pytest.mark.parametrize(
    ("frontier", "chosen", "most"),
    [(None, [], 3), (2, [], 2), ("auto", [None], 3), ("auto", [2], 2), ("auto", [1, 2], 2), ("auto", [2, None], 3)],
)
def test_more_in_flight_than_the_frontier_of_the_round_is_a_broken_promise(frontier, chosen, most):
    schedule = Schedule("pipelined", 1, 4, 1, 1, 4, "dispatch", 4, frontier=frontier)
    told = [c.SetFrontier(1 + i, 1 + i, groups, None) for i, groups in enumerate(chosen)]
    admits = [c.Admit(10 + group, group, 0, 0, "i0", 0) for group in range(3)]
    found = list(broken_promises(schedule, Trace([(0.0, record) for record in (*told, *admits)]), Resume()))
    assert found == [f"{n} trajectories in flight, F = {most} groups of 1" for n in range(1, 4) if n > most]
