"""What every trainer promises: the fake and the real one."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.core.costs import LinearCost
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.native.calls import Choice, kernels
from paceline.ports.fakes.training import FakeTrainer, scored_group
from paceline.trainers.emulated import EmulatedTrainer, TrainerCosts
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.errors import CheckpointError, TrainerError
from paceline.types.records import ScoredGroup

torch.set_num_threads(1)
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture(params=["fake", "torch", "compiled", "emulated"])
def make(request: pytest.FixtureRequest, tiny: Path) -> Make:
    """Makes equal new trainers."""

    def torch_trainer(choice: Choice = "torch") -> TorchTrainer:
        config = ModelConfig(path=str(tiny), dtype="float32")
        return TorchTrainer(
            load(config, train=True),
            algorithm=AlgorithmConfig(gap_stop=100.0),
            trainer=TrainerConfig(learning_rate=1e-2, nonfinite_limit=2),
            rollout=RolloutConfig(max_tokens=8),
            model=config,
            total_updates=10,
            kernels=kernels(choice),
        )

    free = TrainerCosts(LinearCost(0.0, 0.0), 0.0, 0.0)
    emulated = partial(EmulatedTrainer, free, sleep=lambda seconds: None, nonfinite_limit=2)
    makers: dict[str, Make] = {
        "fake": partial(FakeTrainer, nonfinite_limit=2),
        "torch": torch_trainer,
        "compiled": partial(torch_trainer, "auto"),
        "emulated": emulated,
    }
    return makers[request.param]


def group(index: int, *, broken: int | None = None) -> ScoredGroup:
    logprobs = [[-1.0, -2.0, -1.5], [-1.0, -0.5]]
    if broken is not None:
        logprobs[broken][0] = float("nan")
    return scored_group(index, [5, 6, 7 + index], [[20, 21, 22], [30, 31]], [1.0, 0.0], logprobs=logprobs)


def test_an_update_reports_its_groups_in_order_and_counts_what_it_trained_on(make: Make) -> None:
    trainer = make()
    assert trainer.accumulate([group(3), group(1)])["tokens"] == 10
    assert trainer.accumulate([group(2)])["sequences"] == 2
    report = trainer.step()
    assert (report.update, report.applied, report.groups, report.sequences, report.tokens) == (1, True, (3, 1, 2), 6, 15)
    assert report.culprits == ()
    assert {"loss", "grad_norm", "learning_rate"} <= report.metrics.keys()
    trainer.accumulate([group(3)])
    assert trainer.step().update == 2


def test_a_step_without_groups_is_refused_and_so_is_a_group_that_comes_twice(make: Make) -> None:
    trainer = make()
    with pytest.raises(TrainerError, match="without accumulated groups"):
        trainer.step()
    with pytest.raises(TrainerError, match="without groups"):
        trainer.accumulate([])
    trainer.accumulate([group(4)])
    with pytest.raises(TrainerError, match=r"\[4\] come twice in update 1"):
        trainer.accumulate([group(4)])
    assert trainer.step().groups == (4,)


def test_a_non_finite_update_is_skipped_counted_and_names_the_trajectory_that_caused_it(make: Make, tmp_path: Path) -> None:
    trainer = make()
    before = trainer.publish(1, str(tmp_path / "before")).fingerprint
    trainer.accumulate([group(0), group(1, broken=1)])
    report = trainer.step()
    assert not report.applied
    assert report.culprits == ((1, 1),)
    assert trainer.publish(2, str(tmp_path / "after")).fingerprint == before
    trainer.accumulate([group(2)])
    assert trainer.step().applied


def test_as_many_skipped_updates_in_a_row_as_the_limit_stop_the_trainer(make: Make) -> None:
    trainer = make()
    for index, broken in enumerate((0, None, 1)):
        trainer.accumulate([group(index, broken=broken)])
        assert trainer.step().applied == (broken is None)
    trainer.accumulate([group(9, broken=0)])
    with pytest.raises(TrainerError, match="in a row"):
        trainer.step()


def test_publishing_writes_one_whole_file_and_its_fingerprint_follows_the_weights(make: Make, tmp_path: Path) -> None:
    trainer = make()
    first = trainer.publish(1, str(tmp_path / "v1"))
    again = trainer.publish(2, str(tmp_path / "v2"))
    assert (first.version, first.kind, again.version) == (1, "full", 2)
    assert first.fingerprint == again.fingerprint != ""
    trainer.accumulate([group(0)])
    trainer.step()
    assert trainer.publish(3, str(tmp_path / "v3")).fingerprint != first.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2", "v3"], "nothing half-written is left beside"
    assert (tmp_path / "v1").read_bytes() == (tmp_path / "v2").read_bytes() != (tmp_path / "v3").read_bytes()


def test_a_probe_scores_the_version_last_published_and_refuses_once_the_weights_moved_on(make: Make, tmp_path: Path) -> None:
    trainer = make()
    ids = [5, 6, 7, 8, 9]
    assert trainer.probe(ids).version == 0, "the starting weights are version 0"
    ref = trainer.publish(1, str(tmp_path / "v1"))
    probe = trainer.probe(ids)
    assert (probe.version, probe.fingerprint, len(probe.logprobs)) == (1, ref.fingerprint, 4)
    assert all(value <= 0 for value in probe.logprobs)
    trainer.accumulate([group(0)])
    assert trainer.probe(ids).logprobs == probe.logprobs, "accumulating moves nothing"
    trainer.step()
    with pytest.raises(TrainerError, match="right after publish"):
        trainer.probe(ids)
    trainer.publish(2, str(tmp_path / "v2"))
    assert trainer.probe(ids).logprobs != probe.logprobs
    with pytest.raises(TrainerError, match="at least 2 tokens, got 1"):
        trainer.probe([5])


def test_a_restored_trainer_continues_exactly_where_it_was_saved(make: Make, tmp_path: Path) -> None:
    def run(trainer: Any, groups: range) -> list[Any]:
        reports = []
        for index in groups:
            trainer.accumulate([group(index)])
            reports.append(trainer.step())
        return reports

    def measured(reports: list[Any]) -> list[dict[str, float]]:
        return [{k: v for k, v in report.metrics.items() if not k.startswith("seconds/")} for report in reports]

    straight, interrupted, resumed = make(), make(), make()
    whole = run(straight, range(6))
    run(interrupted, range(3))
    (tmp_path / "checkpoint").mkdir()
    interrupted.save(str(tmp_path / "checkpoint"))
    resumed.accumulate([group(99)])
    resumed.restore(str(tmp_path / "checkpoint"))
    rest = run(resumed, range(3, 6))
    assert [report.update for report in rest] == [4, 5, 6]
    assert measured(rest) == measured(whole[3:])
    location = [tmp_path / name for name in ("straight", "resumed")]
    refs = [trainer.publish(6, str(path)) for trainer, path in zip((straight, resumed), location, strict=True)]
    assert refs[0] == refs[1]
    assert location[0].read_bytes() == location[1].read_bytes()


def test_a_checkpoint_in_the_middle_of_an_update_leaves_it_out_and_does_not_disturb_it(make: Make, tmp_path: Path) -> None:
    interrupted, resumed, plain = make(), make(), make()
    (tmp_path / "checkpoint").mkdir()
    interrupted.accumulate([group(0)])
    interrupted.save(str(tmp_path / "checkpoint"))
    interrupted.accumulate([group(1)])
    resumed.restore(str(tmp_path / "checkpoint"))
    for trainer in (resumed, plain):
        trainer.accumulate([group(0)])
        trainer.accumulate([group(1)])
    reports = [trainer.step() for trainer in (interrupted, resumed, plain)]
    assert [report.groups for report in reports] == [(0, 1)] * 3
    refs = [trainer.publish(1, str(tmp_path / "weights")) for trainer in (interrupted, resumed, plain)]
    assert refs[0] == refs[1] == refs[2]


def test_a_checkpoint_that_is_missing_or_damaged_is_refused_with_its_file(make: Make, tmp_path: Path) -> None:
    trainer = make()
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        trainer.restore(str(tmp_path))
    trainer.save(str(tmp_path))
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError, match=path.name):
            trainer.restore(str(tmp_path))
        path.write_bytes(content)
    trainer.restore(str(tmp_path))


def test_exporting_writes_into_the_directory_asked_for(make: Make, tmp_path: Path) -> None:
    make().export(str(tmp_path / "exported"))
    assert any((tmp_path / "exported").iterdir())


def test_empty_completions_are_fine(make: Make) -> None:
    trainer = make()
    some = scored_group(0, [5, 6], [[20, 21], [], [22]], [1.0, 0.0, 0.0], logprobs=[[-1.0, -1.0], [], [-2.0]])
    none = scored_group(1, [5, 6], [[], []], [1.0, 0.0], logprobs=[[], []])
    trainer.accumulate([some, none])
    report = trainer.step()
    assert (report.applied, report.tokens) == (True, 3)
    assert np.isfinite([value for value in report.metrics.values()]).all()
    trainer.accumulate([none])
    assert (report := trainer.step()).applied
    assert np.isfinite([value for value in report.metrics.values()]).all()


def test_the_fake_needs_no_torch() -> None:
    code = "import sys, paceline.ports.fakes.training; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
