"""What a run says is kept for later, and keeping it never harms the run."""

from pathlib import Path

from paceline.runtime.notices import Notices, read
from paceline.runtime.rundir import RunDir, controller
from paceline.types.progress import Progress


def test_messages_are_kept_with_their_update_and_shown_as_before(tmp_path: Path) -> None:
    shown: list[Progress] = []
    notices = Notices(tmp_path / "notices.jsonl", 2)
    show = notices.beside(shown.append)
    show(Progress(3, 9, {"reward": 1.0}, "train"))
    show(Progress(3, 9, {}, "train", "update 3 was skipped; cause: group 1 sample 2"))
    notices.add("failed: no space", fatal=True)
    assert [progress.message for progress in shown] == ["", "update 3 was skipped; cause: group 1 sample 2"]
    kept = read(tmp_path / "notices.jsonl")
    assert [(one.lineage, one.update, one.message, one.fatal) for one in kept] == [
        (2, 3, "update 3 was skipped; cause: group 1 sample 2", False),
        (2, 3, "failed: no space", True),
    ]


def test_a_line_that_was_cut_short_is_skipped_and_no_file_means_no_notice(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    assert read(path) == []
    Notices(path, 1).add("one")
    with path.open("a") as file:
        file.write('{"lineage": 1, "mess')
    assert [one.message for one in read(path)] == ["one"]


def test_what_cannot_be_written_is_not_kept_and_raises_nothing(tmp_path: Path) -> None:
    Notices(tmp_path / "no" / "such" / "directory", 1).add("lost")
    assert not (tmp_path / "no").exists()


def test_a_controller_is_known_by_the_lock_that_it_holds(tmp_path: Path) -> None:
    import os

    assert controller(tmp_path) is None
    rundir = RunDir(tmp_path)
    rundir.open(resume=False)
    assert controller(tmp_path) == os.getpid()
    rundir.close()
    assert controller(tmp_path) is None, "the number of a process that has gone is not believed"
