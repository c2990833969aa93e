import math

import pytest
import torch

from paceline.config.schema import TrainerConfig
from paceline.trainers.optimizer import Optimizer, learning_rate
from paceline.types.errors import CheckpointError


def rates(total: int, **config: object) -> list[float]:
    return [learning_rate(TrainerConfig(learning_rate=1.0, **config), update, total) for update in range(1, total + 1)]  # type: ignore[arg-type]


def test_warm_up_starts_above_zero_and_reaches_the_full_rate_at_its_last_update() -> None:
    assert rates(6, warmup_updates=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(2, warmup_updates=0) == [1.0, 1.0]


def test_decay_falls_over_the_updates_after_warm_up_and_the_last_one_still_learns() -> None:
    assert rates(6, warmup_updates=2, decay="linear") == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])
    cosine = rates(6, warmup_updates=2, decay="cosine")
    assert cosine == pytest.approx([0.5, 1.0] + [(1 + math.cos(math.pi * part / 4)) / 2 for part in range(4)])
    assert learning_rate(TrainerConfig(learning_rate=1.0, warmup_updates=0, decay="linear"), 99, 10) == 0.0


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (4, 3), "vector": (3,)}
    return {name: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for name, shape in shapes.items()}


def set_gradients(weights: dict[str, torch.Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights.values():
        weight.grad = 100 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_scales_then_clips_then_does_what_adamw_does(dtype: torch.dtype) -> None:
    ours, plain = parameters(dtype), parameters(dtype)
    config = TrainerConfig(weight_decay=0.1, clip_norm=2.0)
    optimizer = Optimizer(ours, config)
    reference = torch.optim.AdamW(
        [{"params": [plain["matrix"]], "weight_decay": 0.1}, {"params": [plain["vector"]], "weight_decay": 0.0}],
        lr=0.01,
        betas=config.betas,
        eps=config.eps,
    )
    for seed, denominator in enumerate((7.0, 700.0, 3.0)):
        for weights in (ours, plain):
            set_gradients(weights, seed)
        norm = optimizer.norm(denominator)
        optimizer.step(0.01, denominator, norm)
        for weight in plain.values():
            assert weight.grad is not None
            weight.grad /= denominator
        right = torch.linalg.vector_norm(torch.cat([w.grad.flatten() for w in plain.values()]))  # type: ignore[union-attr]
        assert norm == pytest.approx(right.item(), rel=1e-6)
        for weight in plain.values():
            assert weight.grad is not None
            weight.grad *= min(1.0, 2.0 / right.item())
        reference.step()
    for name in ours:
        torch.testing.assert_close(ours[name], plain[name], atol=1e-6, rtol=1e-5)
        assert ours[name].grad is None


def test_the_norm_of_a_large_gradient_is_that_of_float64() -> None:
    weights = {"matrix": torch.zeros(4000, 300), "vector": torch.zeros(7), "unused": torch.zeros(2, 2)}
    optimizer = Optimizer({name: weight.requires_grad_() for name, weight in weights.items()}, TrainerConfig())
    assert optimizer.norm(3.0) == 0.0
    generator = torch.Generator().manual_seed(0)
    for name in ("matrix", "vector"):
        weights[name].grad = torch.randn(weights[name].shape, generator=generator)
    right = torch.cat([weight.grad.double().flatten() for weight in weights.values() if weight.grad is not None]).norm().item()
    assert optimizer.norm(3.0) == pytest.approx(right / 3.0, rel=1e-8)


def test_a_rate_of_zero_leaves_every_bit_of_weights_and_moments() -> None:
    weights = parameters()
    weights["vector"].data[0] = -0.0
    optimizer = Optimizer(weights, TrainerConfig(weight_decay=0.5))
    before = {name: weight.detach().clone().view(torch.int32) for name, weight in weights.items()}
    set_gradients(weights, 1)
    optimizer.step(0.0, 1.0, 1.0)
    assert all(torch.equal(weights[name].detach().view(torch.int32), bits) for name, bits in before.items())
    assert optimizer.moments() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_restored_moments_continue_bit_for_bit(dtype: torch.dtype) -> None:
    straight, resumed = parameters(dtype), parameters(dtype)
    first = Optimizer(straight, TrainerConfig())
    for seed in range(3):
        set_gradients(straight, seed)
        first.step(0.01, 10.0, first.norm(10.0))
    for name in resumed:
        resumed[name].data.copy_(straight[name].data)
    second = Optimizer(resumed, TrainerConfig())
    second.restore({name: tensor.clone() for name, tensor in first.moments().items()})
    for optimizer, weights in ((first, straight), (second, resumed)):
        set_gradients(weights, 9)
        optimizer.step(0.01, 10.0, optimizer.norm(10.0))
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_step_counts_a_new_version_of_every_weight_so_that_derived_copies_know_they_are_stale() -> None:
    weights = parameters()
    optimizer = Optimizer(weights, TrainerConfig())
    before = {name: weight._version for name, weight in weights.items()}
    set_gradients(weights, 0)
    optimizer.step(0.01, 1.0, 1.0)
    assert all(weight._version > before[name] for name, weight in weights.items())


def test_moments_of_other_weights_are_refused() -> None:
    weights = parameters()
    optimizer = Optimizer(weights, TrainerConfig())
    set_gradients(weights, 0)
    optimizer.step(0.01, 1.0, 1.0)
    moments = optimizer.moments()
    with pytest.raises(CheckpointError, match="vector/exp_avg"):
        optimizer.restore({name: tensor for name, tensor in moments.items() if name != "vector/exp_avg"})
    optimizer.restore({})
    assert optimizer.moments() == {}
