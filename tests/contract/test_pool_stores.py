"""What every weight store promises."""

from pathlib import Path

import pytest

from paceline.durable import spare
from paceline.ports.fakes.weights import MemoryStore
from paceline.transports.files import FileStore
from paceline.types.weights import WeightsRef


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | FileStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path)


def test_every_version_has_a_place_of_its_own_and_lies_there_when_committed(store: MemoryStore | FileStore) -> None:
    places = [store.prepare(version) for version in (0, 1, 10)]
    assert len(set(places)) == 3
    assert [store.commit(WeightsRef(version)) for version in (0, 1, 10)] == places


def test_a_version_that_is_retired_leaves_its_file_for_the_next_and_twice_does_no_harm(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for version in (0, 1, 2):
        Path(store.prepare(version)).write_bytes(b"tensors of %d" % version)
    kept = store.commit(WeightsRef(2))
    for version in (0, 0, 1, 1):
        store.retire(version)
    assert sorted(tmp_path.iterdir()) == sorted([Path(kept), spare(Path(kept))]), "one, however many were retired"
    assert Path(kept).read_bytes() == b"tensors of 2"
