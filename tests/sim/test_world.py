"""What a simulated world draws."""

from statistics import mean

import pytest

from paceline.sim.world import Lengths, World, draw


def test_a_draw_depends_on_its_key_alone_and_is_uniform():
    numbers = [draw(3, 1, i) for i in range(4000)]
    assert numbers == [draw(3, 1, i) for i in range(4000)]
    assert len(set(numbers)) == 4000
    assert all(0.0 <= n < 1.0 for n in numbers)
    assert abs(mean(numbers) - 0.5) < 0.02
    assert abs(mean(n < 0.1 for n in numbers) - 0.1) < 0.02
    assert draw(3, 1, 5) != draw(3, 5, 1)


@pytest.mark.parametrize(("kind", "low", "high"), [("fixed", 100, 100), ("uniform", 95, 106), ("long_tail", 90, 110)])
def test_lengths_have_the_mean_that_they_are_asked_for(kind, low, high):
    lengths = Lengths(kind, 100, 5000)
    drawn = [lengths.at(draw(7, i)) for i in range(4000)]
    assert low <= mean(drawn) <= high
    assert min(drawn) >= 1


def test_a_long_tail_is_long_and_cut():
    lengths = Lengths("long_tail", 100, 600)
    drawn = [lengths.at(draw(7, i)) for i in range(4000)]
    assert max(drawn) == 600
    assert sum(n > 300 for n in drawn) > 100


def test_a_trajectory_has_the_same_length_in_every_attempt():
    world = World(seed=5)
    assert world.tokens(3, 1) == world.tokens(3, 1)
    assert len({world.tokens(g, s) for g in range(5) for s in range(4)}) > 10
