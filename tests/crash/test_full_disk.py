"""A full disk ends a run with an error that names the file, and takes nothing that a resume needs."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_bodies import fill
from runtime_builders import schedule
from runtime_runs import Lived

from crash import repeated_or_lost
from paceline.durable import append_line, whole
from paceline.models.store import write_tensors
from paceline.runtime.audit import audit
from paceline.runtime.session import Lineage, Session
from paceline.trackers.jsonl import JsonlTracker
from paceline.trackers.jsonl import read as read_metrics
from paceline.types.errors import PacelineError, StorageError
from paceline.types.progress import Progress

RECIPE = Path(__file__).parents[2] / "recipes" / "emulated.toml"


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A real limit of this process: the system writes up to there and then refuses."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_a_file_that_finds_no_space_is_an_error_that_names_it_and_leaves_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    fill(path)
    with pytest.raises(StorageError, match=r"a\.json: No space left on device"), whole(path) as aside:
        aside.write_text("new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_line_that_finds_no_space_is_taken_back_and_one_that_was_cut_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, b"one")
    path.write_bytes(path.read_bytes() + b"cut")
    append_line(path, b"two")
    assert path.read_bytes() == b"one\ncut\ntwo\n"
    with no_file_larger_than(20), pytest.raises(StorageError, match=r"a\.jsonl: File too large"):
        append_line(path, b"three, of which the disk takes a part")
    assert path.read_bytes() == b"one\ncut\ntwo\n"


def test_weights_that_find_no_space_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    with no_file_larger_than(1000), pytest.raises(StorageError, match=r"version-3\.safetensors: .*File too large"):
        write_tensors([("w", torch.zeros(4096))], tmp_path / "version-3.safetensors", torch.float32)
    assert list(tmp_path.iterdir()) == []


def no_room(run: Lived) -> None:
    database = run.ledger._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")


FILLS: dict[str, tuple[Callable[[Lived], Any], str]] = {
    "ledger": (no_room, r"ledger\.sqlite: database or disk is full"),
    "segment": (
        lambda run: [fill(run.rundir.trajectories / f"001-update-000003-{number}.parquet") for number in range(200)],
        r"001-update-000003-\d+\.parquet: No space left on device",
    ),
    "weights": (lambda run: fill(run.rundir.weights / "version-3.safetensors"), r"Publish.*version-3\.safetensors: No space left"),
}
"""What to fill after the second update, and how the run's end is told."""


async def ended(run: Lived) -> str:
    """Why a run that fails ended."""
    try:
        stop = await run.go()
    except PacelineError as error:
        return str(error)
    assert not stop.ok
    return stop.reason


async def goes_on(root: Path, plan: Any, **options: Any) -> None:
    again = Lived(root, plan, resume=True, **options)
    assert (await again.go()).ok
    assert again.session.exported
    assert repeated_or_lost(root, plan.total_updates) == []
    assert audit(root / "ledger.sqlite").violations == ()


@pytest.mark.parametrize("what", FILLS)
async def test_a_run_that_finds_no_space_ends_by_the_name_of_the_file_and_goes_on_when_there_is_some(tmp_path: Path, what: str) -> None:
    plan = schedule(total_updates=5, checkpoint_every=1)
    run = Lived(tmp_path, plan)
    filled: list[bool] = []

    def watch(progress: Progress) -> None:
        if progress.update == 2 and not filled:
            filled.append(True)
            FILLS[what][0](run)

    run.watch = watch
    told = await ended(run)
    assert re.search(FILLS[what][1], told), told
    assert (tmp_path / "checkpoints" / "step-1").is_dir()
    await goes_on(tmp_path, plan)


@pytest.mark.parametrize("file", ["fake_trainer.json", "resume.json"])
async def test_a_checkpoint_that_finds_no_space_leaves_the_one_before_and_nothing_of_its_own(tmp_path: Path, file: str) -> None:
    plan = schedule(total_updates=4, checkpoint_every=2)
    assert (await Lived(tmp_path, schedule(total_updates=2, checkpoint_every=2)).go()).ok
    told = await ended(Lived(tmp_path, plan, resume=True, trainer={"no_space": [file]}))
    assert f"checkpoints/.step-4/{file}: No space left on device" in told
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]
    await goes_on(tmp_path, plan)


async def test_an_evaluation_that_finds_no_space_ends_the_run_by_name_and_is_not_left_out(tmp_path: Path) -> None:
    plan = schedule(evaluate_every=1)
    run = Lived(tmp_path, plan, evaluates=True)
    run.rundir.evaluations.symlink_to("/dev/full")
    assert "eval.jsonl: No space left on device" in await ended(run)
    run.rundir.evaluations.unlink()
    await goes_on(tmp_path, plan, evaluates=True)
    made = [json.loads(line)["update"] for line in run.rundir.evaluations.read_text().splitlines()]
    assert made == [0, 1, 2, 3]


class Recorded(Lived):
    """Its metrics go to their file."""

    def _begin(self, lineage: Lineage) -> Session:
        self.tracker = JsonlTracker(self.rundir.metrics, lineage.id)
        self.session = self._session_of(lineage)
        return self.session


async def test_metrics_that_find_no_space_end_the_run_by_name_and_have_every_update_in_the_end(tmp_path: Path) -> None:
    plan = schedule(total_updates=5, checkpoint_every=1)
    run = Recorded(tmp_path, plan)
    file = run.rundir.metrics
    before = file.with_suffix(".before")

    def watch(progress: Progress) -> None:
        if progress.update == 2 and not before.exists():  # in its place comes one that is always full
            file.rename(before)
            file.symlink_to("/dev/full")

    run.watch = watch
    assert "metrics.jsonl: No space left on device" in await ended(run)
    before.replace(file)
    assert (await Recorded(tmp_path, plan, resume=True).go()).ok
    assert [row["step"] for row in read_metrics(file) if row["axis"] == "update"] == [1, 2, 3, 4, 5]
    assert repeated_or_lost(tmp_path, 5) == []


def test_the_command_names_the_file_and_the_way_on_and_a_resume_takes_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        *(f"run.dir={run}", "run.updates=4", "run.checkpoint_every=1", "emulated.time_scale=200", "rollout.instances=1"),
        *("~schedule.version_window", "~schedule.updates_per_publish", "schedule.preset=serial", "rollout.slots=64"),
    ]
    command = [sys.executable, "-m", "paceline.cli.main", "train", str(RECIPE), *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def train(*more: str, largest: int) -> subprocess.CompletedProcess[str]:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1] if largest < 0 else largest
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, env=environment, timeout=60, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])),
        )  # fmt: skip

    full = train(largest=120_000)
    assert full.returncode == 1, full.stderr
    assert "ledger.sqlite: disk I/O error" in full.stderr
    assert f"stays usable; when the cause is mended: paceline train {run}/config.toml --resume" in full.stderr
    assert "Traceback" not in full.stderr
    assert train("--resume", largest=-1).returncode == 0
    assert repeated_or_lost(run, 4) == []
