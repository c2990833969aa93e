"""Which versions an engine holds, and which place the next one takes."""

import pytest

from paceline.core.places import Places
from paceline.types.errors import ConfigError, EngineError
from paceline.types.weights import WeightsRef


def nothing(version: int | None) -> int:
    return 0


def two(version: int | None) -> int:
    """Two trajectories under every version."""
    return 0 if version is None else 2


def loaded(*versions: int, count: int = 2) -> Places:
    """Places into which these versions were loaded, one after the other, beside each other."""
    places = Places("a", count)
    for version in versions:
        place, _ = places.make_way(WeightsRef(version), "none", None, nothing)
        places.arrived(version, place)
    return places


def test_an_engine_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="versions_held = 0"):
        Places("a", 0)


def test_the_weights_that_an_engine_starts_with_are_version_0_and_hold_no_place() -> None:
    places = Places("a", 1)
    assert (places.held, places.find(None), places.find(0)) == ((0,), (0, 0), (0, 0))
    assert places.make_way(WeightsRef(5), "none", None, nothing) == (0, 0)
    assert (places.held, places.named()) == ((), "none"), "between a load and its end nothing is held"
    places.arrived(5, 0)
    assert (places.held, places.find(None)) == ((5,), (5, 0))


@pytest.mark.parametrize("unfinished", ["none", "keep", "recompute"])
def test_nothing_goes_on_from_the_weights_that_an_engine_starts_with(unfinished: str) -> None:
    with pytest.raises(EngineError, match="2 trajectories are unfinished under version 0"):
        Places("a", 1).make_way(WeightsRef(1), unfinished, None, two)  # type: ignore[arg-type]


def test_versions_take_the_empty_places_and_the_one_replaced_gives_its_own() -> None:
    places = loaded(3, 4)
    assert (places.held, places.find(3), places.find(None)) == ((3, 4), (3, 0), (4, 1))
    assert places.make_way(WeightsRef(5), "none", 3, nothing) == (0, 3)
    assert places.held == (4,)
    places.arrived(5, 0)
    assert (places.held, places.find(None), places.named()) == ((4, 5), (5, 0), "4, 5")


def test_a_version_may_be_loaded_over_itself() -> None:
    assert loaded(3).make_way(WeightsRef(3), "none", 3, nothing) == (0, 3)


@pytest.mark.parametrize(
    ("version", "replaces", "says"),
    [
        (5, None, "no place is empty (places hold: 3, 4; versions_held = 2)"),
        (5, 7, "version 7, which it replaces, holds no place (places hold: 3, 4)"),
        (4, 3, "it is held already (places hold: 3, 4)"),
    ],
)
def test_a_load_without_a_place_is_refused_and_changes_nothing(version: int, replaces: int | None, says: str) -> None:
    places = loaded(3, 4)
    with pytest.raises(EngineError) as caught:
        places.make_way(WeightsRef(version), "none", replaces, nothing)
    assert str(caught.value) == f"a: cannot load version {version}: {says}"
    assert places.held == (3, 4)


def test_work_keeps_its_version_unless_it_goes_on_under_the_next_one() -> None:
    with pytest.raises(EngineError, match="2 trajectories are unfinished under version 3"):
        loaded(3, 4).make_way(WeightsRef(5), "none", 3, two)
    assert loaded(3, 4).make_way(WeightsRef(5), "keep", 3, two) == (0, 3)
    assert loaded(3).make_way(WeightsRef(4), "none", None, two) == (1, None), "work under other versions stands in no way"


def test_a_version_that_is_not_held_is_named_beside_those_that_are() -> None:
    with pytest.raises(EngineError, match="a holds version 3, 4, not 9"):
        loaded(3, 4).find(9)
