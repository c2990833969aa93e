"""The trainer on a GPU: the same code, compared with the CPU in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.ports.fakes.training import scored_group
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB_KEPT, ScoredGroup

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def groups() -> list[ScoredGroup]:
    columns = [{LOGPROB_KEPT: np.full(n, -1.0)} for n in (3, 2, 1)]
    return [scored_group(g, [5, 6, 7 + g], [[20, 21, 22], [30, 31], [9]], [1.0, 0.0, 0.5], columns=columns) for g in range(3)]


def trainer(directory: Path, device: str, dtype: str, **rollout: Any) -> TorchTrainer:
    config = ModelConfig(path=str(directory), dtype=dtype)
    return TorchTrainer(
        load(config, train=True, device=device),
        algorithm=AlgorithmConfig(gap_stop=1e9),
        trainer=TrainerConfig(learning_rate=1e-3, warmup_updates=0, micro_batch_tokens=12, head_chunk=4),
        rollout=RolloutConfig(max_tokens=8, **rollout),
        model=config,
        total_updates=10,
    )


@pytest.mark.parametrize("rollout", [{}, {"top_p": 0.8, "train_on_filtered": True}], ids=["all tokens", "top-p"])
def test_updates_checkpoints_and_probes_are_those_of_the_cpu(tmp_path: Path, rollout: dict[str, Any]) -> None:
    directory = write_tiny(tmp_path / "model")
    cpu, gpu = (trainer(directory, device, "float64", **rollout) for device in ("cpu", "cuda"))
    for one in (cpu, gpu):
        one.accumulate(groups())
        one.step()
        one.save(str(tmp_path / "saved"))
        one.restore(str(tmp_path / "saved"))
        one.accumulate(groups())
    mine, right = gpu.step().metrics, cpu.step().metrics
    for name in ("loss", "grad_norm", "entropy", "ratio/max"):
        assert mine[name] == pytest.approx(right[name], rel=1e-9), name
    for number, one in enumerate((cpu, gpu)):
        one.publish(1, str(tmp_path / f"v{number}"))
    ids = [5, 9, 30, 31, 77]
    assert gpu.probe(ids).logprobs == pytest.approx(cpu.probe(ids).logprobs, abs=1e-9)


def test_bfloat16_over_float32_weights_takes_a_step_near_that_of_the_cpu(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "model")
    norms = []
    for device in ("cpu", "cuda"):
        one = trainer(directory, device, "bfloat16")
        one.accumulate(groups())
        norms.append(one.step().metrics["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
