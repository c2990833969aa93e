"""Files and directories appear whole, replace what was there, and leave nothing beside them."""

from pathlib import Path

import pytest

from paceline.durable import put_in_place, whole


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
