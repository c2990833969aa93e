"""Both packed decoders against the transformers class itself: logits and the whole gradient."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.config.schema import ModelConfig
from paceline.models.attend import causal
from paceline.models.hf import KeepDouble
from paceline.models.load import load
from paceline.models.tiny import write_tiny

LENGTHS = (9, 1, 14)
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def texts() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    draw = lambda n: torch.randint(5, 271, (n,), generator=generator)  # noqa: E731
    return [draw(n) for n in LENGTHS], [draw(n) for n in LENGTHS]


def gradient(model) -> torch.Tensor:
    return torch.cat([tensor.grad.flatten() for _, tensor in sorted(model.named_parameters())])


def loss(logits: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, torch.cat(targets), reduction="sum")


def by_class(directory: Path, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each text alone through the transformers class."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    ids, targets = texts()
    with KeepDouble() if dtype == "float64" else nullcontext():
        logits = torch.cat([model(part[None], use_cache=False).logits[0] for part in ids])
        loss(logits, targets).backward()
    return logits.detach(), gradient(model)


def packed(directory: Path, dtype: str, implementation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All texts in one packed run."""
    model = load(ModelConfig(path=str(directory), dtype=dtype, implementation=implementation), train=True).model
    ids, targets = texts()
    positions = torch.cat([torch.arange(n) for n in LENGTHS])
    logits = model.logits(model.hidden(torch.cat(ids), positions, causal(LENGTHS, model.shape.scale)))
    loss(logits, targets).backward()
    return logits.detach(), gradient(model)


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found - right).norm() / right.norm())


@pytest.mark.parametrize("implementation", ["slim", "transformers"])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_and_the_whole_gradient_equal_those_of_the_transformers_class(tmp_path, family, dtype, bound, implementation):
    directory = write_tiny(tmp_path / "m", family=family, dtype=dtype)
    logits, whole = by_class(directory, dtype)
    own_logits, own_whole = packed(directory, dtype, implementation)
    assert relative(own_logits, logits) <= bound
    assert relative(own_whole, whole) <= bound


@pytest.mark.parametrize("rope", ROPES)
def test_every_rotary_scaling_that_slim_accepts_is_computed_as_transformers_does(tmp_path, rope):
    directory = write_tiny(tmp_path / "m", dtype="float64", rope_parameters=ROPES[rope])
    logits, whole = by_class(directory, "float64")
    own_logits, own_whole = packed(directory, "float64", "slim")
    assert relative(own_logits, logits) <= 1e-12
    assert relative(own_whole, whole) <= 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"tied": False},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 16},
        {"kv_heads": 1},
        {"kv_heads": 4},
        {"family": "qwen3", "attention_bias": True},
    ],
    ids=str,
)
def test_every_optional_part_of_the_family_is_computed_as_transformers_does(tmp_path, options):
    directory = write_tiny(tmp_path / "m", dtype="float64", **options)
    logits, whole = by_class(directory, "float64")
    own_logits, own_whole = packed(directory, "float64", "slim")
    assert relative(own_logits, logits) <= 1e-12
    assert relative(own_whole, whole) <= 1e-12
