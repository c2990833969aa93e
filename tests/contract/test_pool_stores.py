"""What every weight store promises."""

from pathlib import Path

import pytest

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


def test_retiring_a_version_deletes_its_file_only_and_twice_does_no_harm(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for version in (0, 1):
        Path(store.prepare(version)).write_bytes(b"tensors")
    kept = store.commit(WeightsRef(1))
    store.retire(0)
    store.retire(0)
    assert list(tmp_path.iterdir()) == [Path(kept)]
