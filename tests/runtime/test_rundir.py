import fcntl
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from paceline.core.schedule import Resume
from paceline.durable import sealed
from paceline.runtime.ledger import Ledger
from paceline.runtime.notices import Notices
from paceline.runtime.rundir import FOLLOWS, Origin, ResumeInfo, RunDir, check_identity, read_origin, read_resume
from paceline.types.errors import CheckpointDamaged, CheckpointError, ConfigError

INFO = ResumeInfo(update=4, version=2, pending=(5, 7), next_index=9, lineage=1, identity={"task": "abc", "model.path": "m"})


def opened(root: Path, *, resume: bool = False) -> RunDir:
    rundir = RunDir(root)
    rundir.open(resume=resume)
    return rundir


def seal(rundir: RunDir, update: int, content: str = "state", keep_last: int = 2) -> Path:
    aside = rundir.begin_checkpoint(update)
    (aside / "trainer.bin").write_text(content)
    return rundir.seal_checkpoint(aside, INFO, keep_last)


def test_a_second_controller_is_refused_while_the_first_holds_the_lock(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match="another paceline process"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_lock_that_is_given_back_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    """As by a controller that was just killed, or a doctor that looked whether one is there."""
    opened(tmp_path).close()
    with (tmp_path / "lock").open() as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        leaving = threading.Timer(0.1, fcntl.flock, (looked, fcntl.LOCK_UN))
        leaving.start()
        opened(tmp_path).close()
        leaving.join()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_directory_that_cannot_be_made_is_a_fault_of_the_key_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"run.dir = {tmp_path}/{name}: cannot be made: "):
        opened(tmp_path / name)


def test_a_directory_with_a_run_is_refused_without_resume_and_an_empty_one_with_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        opened(tmp_path / "empty", resume=True)
    assert not (tmp_path / "empty").exists(), "a misspelt name leaves nothing behind"
    (tmp_path / "ledger.sqlite").touch()
    with pytest.raises(ConfigError, match="continue it from its beginning, it has no checkpoint yet: paceline train"):
        opened(tmp_path)
    rundir = opened(tmp_path, resume=True)
    seal(rundir, 8)
    rundir.close()
    with pytest.raises(ConfigError, match=f"continue it from step-8: paceline train {tmp_path}/config.toml --resume; or choose"):
        opened(tmp_path)


def test_checkpoints_without_their_ledger_are_not_mixed_with_a_new_run(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    seal(rundir, 50)
    rundir.close()
    with pytest.raises(ConfigError, match="holds the checkpoints of a run whose ledger is gone"):
        opened(tmp_path)


def test_a_checkpoint_counts_only_when_it_is_sealed(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    (rundir.begin_checkpoint(1) / "trainer.bin").write_text("half")
    assert rundir.latest_checkpoint() is None
    final = seal(rundir, 2)
    assert rundir.latest_checkpoint() == final == tmp_path / "checkpoints" / "step-2"
    assert read_resume(final) == INFO
    assert read_resume(final).resume() == Resume(4, 2, (5, 7), 9)


def test_only_the_last_checkpoints_are_kept_counted_by_number(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    for update in (2, 9, 10, 11):
        seal(rundir, update)
    assert sorted(path.name for path in rundir.checkpoints.iterdir()) == ["step-10", "step-11"]


def test_what_a_crash_left_of_a_checkpoint_is_cleared_and_a_replaced_one_is_restored(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    seal(rundir, 3)
    (rundir.checkpoints / "step-3").rename(rundir.checkpoints / ".replaced-step-3")
    (rundir.checkpoints / ".step-3").mkdir()
    (rundir.checkpoints / ".old-step-1").mkdir()
    (tmp_path / "..model.7.tmp").mkdir()
    (rundir.trajectories / ".001-update-000001-9.parquet.7.tmp").touch()
    (tmp_path / ".replaced-model").mkdir()
    rundir.ledger.touch()
    rundir.close()
    again = opened(tmp_path, resume=True)
    assert again.model.is_dir()
    assert [path.name for path in again.checkpoints.iterdir()] == ["step-3"]
    assert read_resume(again.checkpoints / "step-3") == INFO
    assert list(tmp_path.rglob("*.tmp")) == []


SAVES = """
import sys
from pathlib import Path
from paceline.runtime.rundir import ResumeInfo, RunDir

rundir = RunDir(Path(sys.argv[1]))
rundir.open(resume=rundir.ledger.exists())
rundir.ledger.touch()
number = int(sys.argv[2])
while True:
    for number in (number, number + 1):  # the first takes the place of the last one before
        aside = rundir.begin_checkpoint(number)
        for name in "abc":
            (aside / name).write_bytes(bytes([number % 251]) * 200_000)
        rundir.seal_checkpoint(aside, ResumeInfo(number, number, (), number, 1, {}), keep_last=1)
        print(number, flush=True)
"""


def test_a_process_killed_at_any_moment_of_saving_leaves_a_whole_checkpoint_that_is_no_older_than_the_last_it_sealed(
    tmp_path: Path,
) -> None:
    dice, number = random.Random(11), 1
    for _ in range(10):
        words = [sys.executable, "-c", SAVES, str(tmp_path), str(number)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}) as saving:
            assert saving.stdout is not None
            sealed = int(saving.stdout.readline())
            time.sleep(dice.uniform(0.0, 0.05))
            saving.kill()
            sealed = max([sealed, *(int(line) for line in saving.stdout if line.endswith("\n"))])
        rundir = opened(tmp_path, resume=True)
        newest = rundir.latest_checkpoint()
        assert newest is not None
        number = read_resume(newest).update
        assert number >= sealed
        assert newest.name == f"step-{number}"
        assert {(newest / name).read_bytes() for name in "abc"} == {bytes([number % 251]) * 200_000}
        rundir.close()


def test_sealing_the_same_update_again_replaces_the_checkpoint(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    seal(rundir, 3, "old")
    final = seal(rundir, 3, "new")
    assert (final / "trainer.bin").read_text() == "new"
    assert [path.name for path in rundir.checkpoints.iterdir()] == ["step-3"]


def test_an_exported_model_takes_the_place_of_an_older_one_and_says_where_it_comes_from(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    for lineage, update in ((1, 4), (2, 8)):
        aside = tmp_path / ".model"
        aside.mkdir()
        (aside / f"weights-{update}").touch()
        rundir.seal_model(aside, Origin(lineage, update))
        assert read_origin(rundir.model) == Origin(lineage, update)
        assert sorted(path.name for path in rundir.model.iterdir()) == ["paceline.json", f"weights-{update}"]
    with pytest.raises(CheckpointError, match=r"paceline\.json: cannot be read"):
        read_origin(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: json.dumps({"update": 1}),
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"next_index": 9', '"next_index": 8'),
    ],
    ids=["of another kind", "cut", "a list", "a changed number"],
)
def test_a_damaged_resume_file_is_an_error_that_names_it(tmp_path: Path, damage: Callable[[str], str]) -> None:
    final = seal(opened(tmp_path), 1)
    file = final / "resume.json"
    assert damage(file.read_text()) != file.read_text()
    file.write_text(damage(file.read_text()))
    with pytest.raises(CheckpointDamaged, match=r"resume\.json: (missing or )?damaged"):
        read_resume(final)


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open no file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_record_that_cannot_be_read_now_or_that_another_version_wrote_is_not_called_damaged(tmp_path: Path) -> None:
    final = seal(opened(tmp_path), 1)
    with pytest.raises(OSError, match="Too many open files"), no_more_files():
        read_resume(final)
    assert read_resume(final) == INFO
    (final / "resume.json").write_bytes(sealed({**asdict(INFO), "more": 1}))
    with pytest.raises(CheckpointError, match=r"resume\.json: whole, but another version of paceline wrote it") as caught:
        read_resume(final)
    assert not isinstance(caught.value, CheckpointDamaged)


def test_a_damaged_checkpoint_is_put_aside_while_there_is_another_one_and_the_last_one_never_goes(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    older, newer = seal(rundir, 3), seal(rundir, 4)
    said = rundir.put_aside(newer, CheckpointDamaged("step-4/trainer.bin: damaged"))
    assert said == "step-4/trainer.bin: damaged; that checkpoint is kept as damaged-step-4, and the run goes on from step-3"
    assert rundir.latest_checkpoint() == older
    with pytest.raises(
        CheckpointError, match=r"step-3/trainer\.bin: damaged; no other checkpoint is whole \(damaged-step-4 was damaged before"
    ):
        rundir.put_aside(older, CheckpointDamaged("step-3/trainer.bin: damaged"))
    assert rundir.latest_checkpoint() == older
    seal(rundir, 5, keep_last=1)
    assert sorted(path.name for path in rundir.checkpoints.iterdir()) == ["damaged-step-4", "step-5"]


def test_a_changed_identity_is_refused_with_what_changed(tmp_path: Path) -> None:
    check_identity(INFO.identity, dict(INFO.identity), tmp_path)
    with pytest.raises(CheckpointError, match="task: abc -> def") as caught:
        check_identity(INFO.identity, {**INFO.identity, "task": "def"}, tmp_path)
    assert "model.path" not in str(caught.value)


def test_what_a_fingerprint_cannot_say_is_explained_and_what_follows_from_it_is_left_out(tmp_path: Path) -> None:
    saved = {FOLLOWS: "a", "contents of task t": "b", "task.t.path": "old.jsonl"}
    words = {FOLLOWS: lambda: "in another way", "contents of task t": lambda: "row 4 changed"}
    check_identity(saved, {**saved, "task.t.path": "new.jsonl"}, tmp_path, words)
    with pytest.raises(CheckpointError) as caught:
        check_identity(saved, {FOLLOWS: "A", "contents of task t": "B", "task.t.path": "new.jsonl"}, tmp_path, words)
    assert str(caught.value).splitlines()[1:-1] == ["  contents of task t: row 4 changed", "  task.t.path: old.jsonl -> new.jsonl"]
    with pytest.raises(CheckpointError) as caught:
        check_identity(saved, {FOLLOWS: "A", "contents of task u": "b", "task.u.path": "u.jsonl"}, tmp_path, words)
    assert str(caught.value).splitlines()[2:-1] == ["  contents of task u: None -> b"], "and not each key of either task"
    with pytest.raises(CheckpointError, match=f"  {FOLLOWS}: in another way"):
        check_identity(saved, {**saved, FOLLOWS: "A"}, tmp_path, words)
    with pytest.raises(CheckpointError, match="  contents of task t: b -> B"):
        check_identity(saved, {**saved, "contents of task t": "B"}, tmp_path, {"contents of task t": lambda: ""})


def test_a_run_that_failed_while_it_started_leaves_the_directory_free_and_its_error_is_not_the_next_ones(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "run")
    first.open(resume=False)
    Ledger(first.ledger).close()
    Notices(first.notices, 1).add("a reward that does not fit the rows", fatal=True)
    first.close()
    again = RunDir(tmp_path / "run")
    again.open(resume=False)
    assert not again.ledger.exists()
    assert not again.notices.exists(), "the next run has lineage 1, too"
    again.close()


def test_a_run_whose_directory_was_deleted_takes_nothing_from_the_run_that_was_begun_in_its_place(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    first.close()
    first = opened(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    second = opened(tmp_path / "run")
    (second.weights / "version-1.safetensors").touch()
    first.close()
    assert (second.weights / "version-1.safetensors").exists()
    second.close()
    assert not second.weights.exists()


def test_weights_that_engines_were_sent_go_with_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.open(resume=False)
    (run.weights / "version-3.safetensors").write_bytes(b"x")
    run.close()
    assert not run.weights.exists()
