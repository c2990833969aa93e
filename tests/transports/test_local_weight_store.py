import os
from pathlib import Path

import pytest
import torch

from paceline.models.store import read, write_tensors
from paceline.transports.local import LocalWeightStore
from paceline.types.errors import ModelError
from paceline.types.weights import WeightsRef


def publish(store: LocalWeightStore, version: int, value: float, lineage: int = 0) -> WeightsRef:
    found = write_tensors([("x", torch.full((3,), value))], Path(store.prepare(version)), torch.float32)
    ref = WeightsRef(version=version, lineage=lineage, fingerprint=found)
    store.commit(ref)
    return ref


def value_at(location: str) -> float:
    return float(dict(read(Path(location)))["x"][0])


def test_a_committed_version_is_found_by_another_process_until_it_is_retired(tmp_path):
    store = LocalWeightStore(tmp_path / "w")
    ref = publish(store, 3, 0.5)
    other = LocalWeightStore(tmp_path / "w")
    assert value_at(other.location(3)) == 0.5
    assert other.reference(3) == ref
    assert other.versions() == [3]
    store.retire(3)
    store.retire(3)
    assert os.listdir(tmp_path / "w") == []
    with pytest.raises(KeyError, match=r"version 3 .*held: "):
        other.location(3)


def test_a_version_that_was_prepared_but_not_committed_is_not_there(tmp_path):
    store = LocalWeightStore(tmp_path)
    publish(store, 1, 1.0)
    write_tensors([("x", torch.zeros(3))], Path(store.prepare(2)), torch.float32)
    with pytest.raises(KeyError, match=r"version 2 .*held: \[1\]"):
        store.location(2)


def test_committing_what_was_never_written_is_an_error(tmp_path):
    store = LocalWeightStore(tmp_path)
    store.prepare(4)
    with pytest.raises(ModelError, match="version 4 cannot be committed"):
        store.commit(WeightsRef(version=4))


def test_a_version_made_anew_replaces_the_old_one_and_other_versions_stay(tmp_path):
    store = LocalWeightStore(tmp_path)
    publish(store, 1, 1.0)
    publish(store, 2, 2.0)
    publish(store, 2, 3.0, lineage=1)
    assert value_at(store.location(2)) == 3.0
    assert store.reference(2).lineage == 1
    assert value_at(store.location(1)) == 1.0
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_version_is_named(tmp_path, damage):
    store = LocalWeightStore(tmp_path)
    publish(store, 1, 1.0)
    path = Path(store.location(1))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"version 1 is damaged: .*(missing|bytes long)"):
        store.location(1)
