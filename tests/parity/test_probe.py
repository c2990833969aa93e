"""The probe between a real trainer and a real engine in bfloat16: what it finds, and what it lets pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.engines.torch_engine import TorchEngine
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.native.calls import Choice, kernels
from paceline.native.machine import compiler, panels
from paceline.runtime.weights import BOUNDS, ROUNDINGS, Difference, Probes, compare
from paceline.trainers.torch_trainer import TorchTrainer

torch.set_num_threads(1)
IDS = [5 + (7 * i * i + 3 * i) % 190 for i in range(64)]
STALE = "model.layers.1.mlp.down_proj.weight"


class Pair:
    """A trainer and an engine on the tiny model in bfloat16; the engine may keep one old matrix whatever it is sent."""

    def __init__(
        self, root: Path, stale: bool, choice: Choice, deterministic: bool = False, trainer: TrainerConfig | None = None, **model: Any
    ) -> None:
        config = ModelConfig(path=str(write_tiny(root / "model", width=64, **model)), dtype="bfloat16")
        trained, served = load(config, train=True), load(config)
        self.root, self.stale, self.version = root, stale, -1
        self.master = dict(trained.model.named_parameters())
        self.served = dict(served.model.named_parameters())
        self.trainer = TorchTrainer(
            trained, algorithm=AlgorithmConfig(), trainer=trainer or TrainerConfig(), rollout=RolloutConfig(), model=config,
            total_updates=1, kernels=kernels(choice),
        )  # fmt: skip
        self.engine = TorchEngine(
            served, instance="e0", slots=1, kv_tokens=512, decode=str, clock=lambda: 0.0, kernels=kernels(choice), deterministic=deterministic
        )  # fmt: skip
        self.before: Probes | None = None
        self.generator = torch.Generator().manual_seed(1)

    def change(self, size: float, *names: str) -> None:
        """Move these matrices (all of them without names) by random numbers of this deviation."""
        with torch.no_grad():
            for name in names or self.master:
                weight = self.master[name]
                weight.add_(size * torch.randn(weight.shape, generator=self.generator))

    def publish(self) -> Difference:
        """Publish, load, and compare as a run does. The stale matrix comes back after the checksum was taken."""
        self.version += 1
        file = self.root / "version.safetensors"
        ref = self.trainer.publish(self.version, str(file))
        old = self.served[STALE].detach().clone()
        assert self.engine.load(ref, str(file), replaces=self.version - 1 if self.version else None) == ref.fingerprint
        if self.stale:
            self.served[STALE].data.copy_(old)
        now = Probes(self.trainer.probe(IDS), self.engine.probe(IDS))
        found = compare(now, self.before, BOUNDS["bfloat16"])
        self.before = now
        return found


native = kernels()
needs_products = pytest.mark.skipif(not panels("bfloat16", 16, 128), reason="compiled kernels do not multiply bfloat16 on this machine")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(params=["torch", pytest.param("native", marks=needs_compiler)])
def choice(request: pytest.FixtureRequest) -> Choice:
    found: Choice = request.param
    return found


@pytest.fixture(params=[False, True], ids=["fresh", "stale"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, choice: Choice) -> Pair:
    return Pair(tmp_path, request.param, choice)


def test_a_stale_matrix_is_found_when_a_small_change_of_it_is_all_that_is_new(pair: Pair) -> None:
    assert pair.publish().fits
    pair.change(1e-2, STALE)
    found = pair.publish()
    assert found.fits == (not pair.stale), found
    assert not pair.stale or "by the same kernels" in found.what or (found.value, "misses" in found.what) == (1.0, True)


def test_a_stale_matrix_among_fresh_ones_is_found_once_what_it_misses_adds_up(pair: Pair) -> None:
    fits = []
    for _ in range(60):
        fits.append(pair.publish().fits)
        pair.change(1e-2)
    assert fits[0]
    assert all(fits) == (not pair.stale)


@needs_products
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("stale", [False, True])
def test_by_the_same_kernels_a_stale_matrix_among_fresh_ones_is_found_at_once(tmp_path: Path, family: str, stale: bool) -> None:
    pair = Pair(tmp_path, stale, "native", family=family, tied=False)
    assert pair.publish().fits
    pair.change(1e-3)
    found = pair.publish()
    assert pair.before is not None
    trainer, engine = pair.before.trainer, pair.before.engine
    assert trainer.by == engine.by == native.name
    assert found.fits == (not stale)
    if stale:
        assert "by the same kernels" in found.what
    else:
        gaps = np.abs(np.asarray(trainer.logprobs) - np.asarray(engine.logprobs))
        assert gaps[: engine.prefilled].max() < 1e-5, "the same bits, but for the softmax"


@needs_products
def test_a_trainer_whose_body_is_compiled_by_torch_does_not_pass_for_one_with_the_same_kernels(tmp_path: Path) -> None:
    pair = Pair(tmp_path, False, "native", trainer=TrainerConfig(compile=True))
    assert pair.publish().fits
    assert pair.before is not None
    assert (pair.before.trainer.by, pair.before.engine.by) == ("", native.name)


@pytest.mark.parametrize("layers", [2, 12])
def test_a_deterministic_engine_is_near_the_trainer_though_it_attends_in_its_own_way(tmp_path: Path, choice: Choice, layers: int) -> None:
    pair = Pair(tmp_path, False, choice, deterministic=True, layers=layers)
    for _ in range(3):
        found = pair.publish()
        assert found.fits, found
        pair.change(1e-3)


@pytest.mark.parametrize("louder", [1.0, 4.0])
def test_what_bfloat16_loses_grows_with_the_logits_and_the_bound_with_it(louder: float, tmp_path: Path, choice: Choice) -> None:
    pair = Pair(tmp_path, False, choice)
    with torch.no_grad():
        pair.master["model.norm.weight"].mul_(louder)
    assert pair.publish().fits
    assert pair.before is not None
    trainer, engine = (np.asarray(report.logprobs) for report in (pair.before.trainer, pair.before.engine))
    assert 0 < np.abs(trainer - engine).mean() / pair.before.trainer.rounding < ROUNDINGS
    assert louder == 1.0 or pair.before.trainer.rounding > BOUNDS["bfloat16"].mean
