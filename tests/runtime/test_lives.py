"""A run that goes on by itself: after a lost trainer, and past checkpoints that are not whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_builders import SCHEDULES, schedule, scheduled
from runtime_runs import Lived

from paceline.core.commands import Dispatch
from paceline.report.doctor import diagnose
from paceline.report.lives import lives_of
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader
from paceline.runtime.rundir import Origin, RunDir, read_origin
from paceline.types.errors import CheckpointError, ConfigError, TrainerLost, WorkerLost
from paceline.types.progress import Progress


def surviving(run: Path) -> list[int]:
    """Groups in the order in which the run, as it stands, consumed them."""
    reader = LedgerReader(run / "ledger.sqlite")
    found: list[int] = []
    for life in lives_of(reader):
        for record in reader.records(life.lineage.id):
            if isinstance(record.value, Dispatch) and record.value.update <= life.last:
                found += record.value.groups
    reader.close()
    return found


def clean(run: Path, lineages: int) -> None:
    report = audit(run / "ledger.sqlite")
    assert (report.violations, report.lineages) == ((), lineages)


async def test_a_lost_trainer_is_replaced_and_the_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = Lived(tmp_path / "run", schedule(total_updates=4, checkpoint_every=1), trainer={"dies_at": 3})
    assert (await run.go()).ok
    assert surviving(tmp_path / "run") == list(range(8))
    clean(tmp_path / "run", 2)
    (notice,) = run.notices()
    assert "trainer: exit code 11\nthe trainer is replaced and the run goes on from step-2" in notice
    assert [[step for axis, step, _ in tracker.rows if axis == "update"] for tracker in run.trackers] == [[1, 2], [3, 4]]
    assert all(tracker.closed for tracker in run.trackers)
    assert read_origin(tmp_path / "run" / "model") == Origin(2, 4)
    whole = Lived(tmp_path / "whole", schedule(total_updates=4))
    assert (await whole.go()).ok
    assert run.rows()[-1]["num_tokens"] == whole.rows()[-1]["num_tokens"]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("method", ["accumulate", "step", "publish", "save", "export"])
async def test_whatever_the_trainer_did_when_it_was_lost_every_group_trains_once(tmp_path: Path, name: str, method: str) -> None:
    dies = {"dies_in": {method: (1 if method == "export" else 3, str(tmp_path / "died"))}}
    run = Lived(tmp_path / "run", scheduled(name, total_updates=4, checkpoint_every=1), trainer=dies)
    assert (await run.go()).ok
    assert (tmp_path / "died").exists()
    trained = surviving(tmp_path / "run")
    assert len(trained) == len(set(trained)) == 8
    assert trained == list(range(8)) or not run.schedule.in_order
    clean(tmp_path / "run", 2)
    assert run.session.exported


async def test_a_trainer_that_is_lost_again_while_it_restores_counts_as_lost_again(tmp_path: Path) -> None:
    dies = {"dies_in": {"step": (3, str(tmp_path / "a")), "restore": (1, str(tmp_path / "b"))}}
    run = Lived(tmp_path / "run", schedule(total_updates=4, checkpoint_every=1), trainer=dies)
    assert (await run.go()).ok
    assert surviving(tmp_path / "run") == list(range(8))
    clean(tmp_path / "run", 3)
    assert len(run.notices()) == 2


async def test_another_worker_that_is_lost_while_a_later_life_starts_begins_one_more(tmp_path: Path) -> None:
    died = str(tmp_path / "died")
    trainer, judge = {"dies_in": {"step": (3, died)}}, {"after": died}
    run = Lived(tmp_path / "run", schedule(total_updates=4, checkpoint_every=1), trainer=trainer, judge=judge)
    assert (await run.go()).ok
    assert surviving(tmp_path / "run") == list(range(8))
    clean(tmp_path / "run", 3)
    assert "while it did check\nall workers are replaced and the run goes on from step-2" in run.notices()[-1]
    first = Lived(tmp_path / "first", schedule(), judge=judge | {"after": str(tmp_path)})
    with pytest.raises(WorkerLost, match="check"):
        await first.go()


async def test_without_a_checkpoint_the_run_begins_again_and_says_what_that_costs(tmp_path: Path) -> None:
    run = Lived(tmp_path / "run", schedule(), trainer={"dies_in": {"step": (3, str(tmp_path / "died"))}})
    assert (await run.go()).ok
    assert surviving(tmp_path / "run") == list(range(6))
    clean(tmp_path / "run", 2)
    (notice,) = run.notices()
    assert notice.endswith("the run goes on from its beginning: there is no checkpoint yet; 2 updates are made again")


async def test_a_trainer_that_is_lost_again_and_again_ends_the_run_and_a_new_checkpoint_begins_the_count_anew(tmp_path: Path) -> None:
    run = Lived(tmp_path / "stuck", schedule(), trainer={"dies_at": 2}, trainer_restarts=2)
    with pytest.raises(TrainerLost, match=r"lost 3 times in a row without a new checkpoint: (.|\n)*pool\.trainer_restarts = 2"):
        await run.go()
    clean(tmp_path / "stuck", 3)
    run = Lived(tmp_path / "on", schedule(total_updates=6, checkpoint_every=1), trainer={"dies_at": 2}, trainer_restarts=1)
    assert (await run.go()).ok
    assert surviving(tmp_path / "on") == list(range(12))
    clean(tmp_path / "on", 6)


async def test_no_restarts_mean_that_a_lost_trainer_ends_the_run_which_a_resume_continues(tmp_path: Path) -> None:
    plan = schedule(total_updates=4, checkpoint_every=1)
    with pytest.raises(TrainerLost, match=r"exit code 11\nthe run ends here: pool\.trainer_restarts = 0"):
        await Lived(tmp_path, plan, trainer={"dies_at": 3}, trainer_restarts=0).go()
    again = Lived(tmp_path, plan, resume=True, trainer_restarts=0)
    assert (await again.go()).ok
    assert surviving(tmp_path) == list(range(8))
    clean(tmp_path, 2)


async def test_a_trainer_that_is_lost_before_all_workers_were_up_ends_the_run_at_once(tmp_path: Path) -> None:
    await Lived(tmp_path, schedule(total_updates=1)).go()
    dies = {"dies_in": {"restore": (1, str(tmp_path / "died"))}}
    with pytest.raises(TrainerLost, match="restore"):
        await Lived(tmp_path, schedule(total_updates=2), resume=True, trainer=dies).go()


async def test_a_trainer_that_is_lost_while_the_run_is_left_is_not_replaced(tmp_path: Path) -> None:
    run = Lived(tmp_path / "run", schedule(total_updates=50), trainer={"dies_in": {"save": (1, str(tmp_path / "died"))}})

    def leave(progress: Progress) -> None:
        if progress.update == 2 and not run.session.interrupted:
            run.session._asked_to_stop("SIGINT")

    run.watch = leave
    with pytest.raises(TrainerLost):
        await run.go()


def cut(file: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / file).write_text((checkpoint / file).read_text()[:-5]) and None


def empty(checkpoint: Path) -> None:
    for file in checkpoint.iterdir():
        file.unlink()


def other_number(checkpoint: Path) -> None:
    fields = json.loads((checkpoint / "resume.json").read_text())
    (checkpoint / "resume.json").write_text(json.dumps({**fields, "next_index": fields["next_index"] + 1}))


DAMAGES: dict[str, Any] = {
    "trainer state cut": cut("fake_trainer.json"),
    "record cut": cut("resume.json"),
    "one number of the record": other_number,
    "nothing left": empty,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_checkpoint_before_a_damaged_one_is_taken_and_both_are_named(tmp_path: Path, damage: str) -> None:
    assert (await Lived(tmp_path, schedule(checkpoint_every=1)).go()).ok
    DAMAGES[damage](tmp_path / "checkpoints" / "step-3")
    run = Lived(tmp_path, schedule(total_updates=5, checkpoint_every=1), resume=True)
    assert (await run.go()).ok
    assert surviving(tmp_path) == list(range(10))
    (notice,) = run.notices()
    assert "step-3/" in notice
    assert "damaged" in notice
    assert notice.endswith("that checkpoint is kept as damaged-step-3, and the run goes on from step-2")
    report = audit(tmp_path / "ledger.sqlite")
    assert report.violations == ()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["damaged-step-3", "step-4", "step-5"]


async def test_a_run_whose_checkpoints_are_gone_is_refused_and_never_begins_again_by_itself(tmp_path: Path) -> None:
    plan = schedule(total_updates=4, checkpoint_every=2)
    assert (await Lived(tmp_path, schedule(total_updates=2, checkpoint_every=2)).go()).ok
    elsewhere = tmp_path.with_name("elsewhere")
    (tmp_path / "checkpoints").rename(elsewhere)
    gone = r"checkpoints: holds no checkpoint, and the ledger says that step-2 was written"
    for _ in range(2):
        with pytest.raises(CheckpointError, match=gone):
            await Lived(tmp_path, plan, resume=True).go()
    assert any("its last checkpoint, step-2, is gone" in fact for fact in diagnose(tmp_path).facts)
    with pytest.raises(ConfigError, match=r"continue it from step-2, once that is put back"):
        RunDir(tmp_path).open(resume=False)
    (tmp_path / "checkpoints").rmdir()
    elsewhere.rename(tmp_path / "checkpoints")
    assert (await Lived(tmp_path, plan, resume=True).go()).ok
    assert surviving(tmp_path) == list(range(8))


async def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_never_begins_again_by_itself(tmp_path: Path) -> None:
    assert (await Lived(tmp_path, schedule(checkpoint_every=1)).go()).ok
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        cut("fake_trainer.json")(checkpoint)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"step-2.*damaged.*; no other checkpoint is whole \(damaged-step-3 was damaged before\)"):
            await Lived(tmp_path, schedule(total_updates=5), resume=True).go()
    assert surviving(tmp_path) == list(range(6))
    assert RunDir(tmp_path).latest_checkpoint() == tmp_path / "checkpoints" / "step-2"
