"""The rule that bounds staleness: its numbers, and its invariant under arbitrary play."""

import random

import pytest

from paceline.core.bound import Pace


def test_seats_count_the_updates_until_a_version_gets_over_stale() -> None:
    pace = Pace(bound=1, groups_per_update=4, updates_per_publish=2)
    assert pace.seats(5, newest=5, issued=0, accumulated=0) == 16
    assert pace.seats(5, newest=5, issued=1, accumulated=3) == 9
    assert pace.seats(4, newest=5, issued=1, accumulated=3) == 1
    assert pace.seats(3, newest=5, issued=0, accumulated=0) == 0


def test_a_publish_changes_no_number_of_seats() -> None:
    pace = Pace(2, 3, 4)
    assert [pace.seats(x, 7, 4, 0) for x in range(5, 8)] == [pace.seats(x, 8, 0, 0) for x in range(5, 8)]


def test_room_is_what_the_newest_version_has_left() -> None:
    pace = Pace(1, 2, 1)
    assert pace.room(0, issued=0, accumulated=0) == 4
    assert pace.room(3, issued=0, accumulated=1) == 0
    assert pace.room(9, issued=0, accumulated=0) == 0


def test_a_batch_is_refused_while_older_groups_would_miss_their_last_seat() -> None:
    pace = Pace(1, 2, 1)
    counts = {0: 2, 1: 2}
    assert pace.blocked(counts, [1, 1], 2, newest=1, issued=0, accumulated=0) == 0
    assert pace.blocked(counts, [0, 1], 2, newest=1, issued=0, accumulated=0) == 0
    assert pace.blocked(counts, [0, 0], 2, newest=1, issued=0, accumulated=0) is None
    assert pace.blocked({0: 1, 1: 2}, [0, 1], 2, newest=1, issued=0, accumulated=0) is None


def test_a_group_starts_under_older_weights_only_where_a_seat_is_left() -> None:
    pace = Pace(1, 2, 1)
    assert pace.fits({0: 1}, range(0, 1), newest=1, issued=0, accumulated=0)
    assert not pace.fits({0: 2}, range(0, 1), newest=1, issued=0, accumulated=0)
    assert pace.fits({0: 2}, range(1, 1), newest=1, issued=0, accumulated=0)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_finishing_breaks_the_bound_or_leaves_nothing_to_do(seed: int) -> None:
    rnd = random.Random(seed)
    pace = Pace(rnd.randint(0, 3), rnd.randint(1, 4), rnd.randint(1, 3))
    chunk = rnd.randint(1, pace.groups_per_update)
    newest = issued = given = 0
    waiting: list[int] = []  # versions of groups that are generated
    ready: list[int] = []
    for _ in range(600):
        counts = {v: waiting.count(v) + ready.count(v) for v in {*waiting, *ready}}
        room = pace.room(len(waiting) + len(ready), issued, given)
        batch = sorted(ready)[: min(chunk, pace.groups_per_update - given)]
        may_train = (
            len(batch) == min(chunk, pace.groups_per_update - given)
            and pace.blocked(counts, batch, len(batch), newest, issued, given) is None
        )
        assert room or may_train or waiting, "nothing to do"
        if room and rnd.random() < 0.6:
            waiting.append(newest)
        elif may_train and rnd.random() < 0.6:
            for version in batch:
                assert newest - version <= pace.bound
                ready.remove(version)
            given += len(batch)
            if given == pace.groups_per_update:
                given, issued = 0, issued + 1
            if issued == pace.updates_per_publish:
                newest, issued = newest + 1, 0
        elif waiting:
            version = waiting.pop(rnd.randrange(len(waiting)))
            if rnd.random() < 0.8:
                ready.append(version)
