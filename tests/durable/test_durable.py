"""Files and directories appear whole, replace what was there, and leave nothing beside them; what is not whole is noticed."""

import errno
from pathlib import Path

import pytest

from paceline.durable import put_back, put_in_place, sealed, undamaged, unsealed, whole
from paceline.types.errors import CheckpointDamaged


def listed(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


@pytest.mark.parametrize("synced", [True, False])
def test_a_file_appears_when_the_block_ends_and_replaces_an_older_one(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / "a.json"
    for content in ("old", "new"):
        with whole(path, synced=synced) as aside:
            aside.write_text(content)
            assert not path.exists() or path.read_text() == "old"
    assert path.read_text() == "new"
    assert listed(tmp_path) == ["a.json"]


def write_half(path: Path) -> None:
    with whole(path) as aside:
        aside.write_text("ne")
        raise RuntimeError("half way")


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half"):
        write_half(path)
    assert path.read_text() == "old"
    assert listed(tmp_path) == ["a.json"]


def test_a_directory_replaces_an_older_one_as_a_whole_even_where_a_crash_left_one_aside(tmp_path: Path) -> None:
    for name in ("step-1/old", ".replaced-step-1/older", ".step-1/sub/new"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    put_in_place(tmp_path / ".step-1", tmp_path / "step-1")
    assert listed(tmp_path) == ["step-1", "step-1/sub", "step-1/sub/new"]


def test_what_a_crash_left_without_its_name_gets_it_back_unless_its_successor_has_it(tmp_path: Path) -> None:
    for name in (".replaced-model/old", ".replaced-step-1/old", "step-1/new"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    put_back(tmp_path)
    assert listed(tmp_path) == ["model", "model/old", "step-1", "step-1/new"]


def test_any_flipped_bit_and_any_cut_of_a_sealed_record_is_noticed() -> None:
    fields = {"update": 12, "names": ["a", "b"], "inner": {"version": None, "share": 0.1}}
    written = sealed(fields)
    assert unsealed(written) == fields
    flipped = [bytes([*written[:i], written[i] ^ (1 << bit), *written[i + 1 :]]) for i in range(len(written)) for bit in range(8)]
    for other in (*flipped, *(written[:length] for length in range(len(written))), b"[]", b"{}", b"null"):
        with pytest.raises(CheckpointDamaged, match="damaged"), undamaged(Path("record"), ValueError):
            unsealed(other)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EIO])
def test_what_is_missing_or_lies_on_a_failing_disk_is_damaged(number: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamaged, match=r"a\.json: (missing or )?damaged"), undamaged(tmp_path / "a.json", ValueError):
        raise OSError(number, "no")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_read_now_may_be_whole(number: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not now"), undamaged(tmp_path / "a.json", ValueError):
        raise OSError(number, "not now")
