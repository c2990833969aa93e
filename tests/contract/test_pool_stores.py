"""What every weight store promises."""

from pathlib import Path

import pytest

from paceline.ports.fakes.weights import MemoryStore
from paceline.transports.files import FileStore
from paceline.types.weights import WeightsRef


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | FileStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path)


def test_a_version_is_found_from_commit_until_it_is_retired(store: MemoryStore | FileStore) -> None:
    prepared = store.prepare(3)
    with pytest.raises(KeyError, match="version 3"):
        store.location(3)
    committed = store.commit(WeightsRef(3, fingerprint="x"))
    assert committed == store.location(3) == prepared
    store.retire(3)
    with pytest.raises(KeyError, match=r"holds \[\]"):
        store.location(3)


def test_versions_live_side_by_side(store: MemoryStore | FileStore) -> None:
    for version in (0, 1):
        store.commit(WeightsRef(version))
    assert store.location(0) != store.location(1)
    store.retire(0)
    assert store.location(1)


def test_retiring_deletes_the_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    Path(store.prepare(1)).write_bytes(b"tensors")
    store.commit(WeightsRef(1))
    store.retire(1)
    assert list(tmp_path.iterdir()) == []
