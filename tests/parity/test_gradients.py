"""Gradients of the trainer against each other and against a plain padded implementation on the transformers class.

Relative L2 difference of the whole gradient: at most 1e-12 in float64, 1e-5 in float32.
"""

import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from reference import BOUND, distance, make_groups, our_gradient, plain_gradient, plain_model

from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.models.hf import KeepDouble
from paceline.models.load import load
from paceline.models.tiny import write_tiny
from paceline.native.calls import kernels
from paceline.native.machine import compiler
from paceline.ports.fakes.training import scored_group
from paceline.trainers.torch_trainer import TorchTrainer
from paceline.types.records import LOGPROB

torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model", family=request.param, tied=request.param != "qwen2")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("dtype", BOUND)
def test_packed_gradients_equal_a_plain_padded_implementation_on_the_transformers_class(directory: Path, dtype: str) -> None:
    groups = make_groups(plain_model(directory, "float64"))
    right = plain_gradient(directory, dtype, groups)
    for implementation in ("slim", "transformers"):
        assert distance(our_gradient(directory, dtype, [groups], implementation=implementation), right) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_the_same_at_other_temperatures(llama: Path, dtype: str, temperature: float) -> None:
    groups = make_groups(plain_model(llama, "float64"), temperature=temperature)
    ours = our_gradient(llama, dtype, [groups], rollout={"temperature": temperature})
    assert distance(ours, plain_gradient(llama, dtype, groups, temperature=temperature)) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND)
def test_neither_micro_batches_nor_prompt_sharing_nor_dispatches_nor_order_change_the_gradient(llama: Path, dtype: str) -> None:
    groups = make_groups(plain_model(llama, "float64"))
    whole = our_gradient(llama, dtype, [groups])
    single, about_three = 1, 60
    variants = {
        "one sequence each": our_gradient(llama, dtype, [groups], budget=single),
        "about three sequences each": our_gradient(llama, dtype, [groups], budget=about_three),
        "own prompts": our_gradient(llama, dtype, [groups], shared=False),
        "own prompts, three each": our_gradient(llama, dtype, [groups], shared=False, budget=about_three),
        "three dispatches": our_gradient(llama, dtype, [[group] for group in groups]),
        "the other way round": our_gradient(llama, dtype, [groups[::-1]]),
        "one row of logits at a time": our_gradient(llama, dtype, [groups], head_chunk=1),
    }
    for name, gradient in variants.items():
        assert distance(gradient, whole) <= BOUND[dtype], name


@pytest.mark.parametrize("dtype", [*BOUND, "bfloat16"])
def test_layers_computed_again_give_every_gradient_bit_for_bit(directory: Path, dtype: str) -> None:
    groups = make_groups(plain_model(directory, "float64"))
    for budget in (4096, 60):
        kept = our_gradient(directory, dtype, [groups], budget=budget)
        again = our_gradient(directory, dtype, [groups], budget=budget, checkpoint_activations=True)
        assert all(torch.equal(again[name], kept[name]) for name in kept)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_compiled_kernels_give_the_same_gradients_however_the_work_is_cut(tmp_path: Path, family: str) -> None:
    native = kernels("native")
    wide = write_tiny(tmp_path / "model", family=family, tied=family != "qwen2", width=64)
    groups = make_groups(plain_model(wide, "float64"), temperature=0.8)
    right = plain_gradient(wide, "float32", groups, temperature=0.8)
    ways: list[dict[str, Any]] = [{}, {"budget": 1}, {"budget": 60, "checkpoint_activations": True}, {"shared": False}, {"head_chunk": 1}]
    for way in ways:
        ours = our_gradient(wide, "float32", [groups], rollout={"temperature": 0.8}, kernels=native, **way)
        assert distance(ours, right) <= BOUND["float32"], way
    exact = plain_gradient(wide, "float64", groups, temperature=0.8)
    with_kernels, without = (
        distance(our_gradient(wide, "bfloat16", [groups], rollout={"temperature": 0.8}, kernels=which), exact) for which in (native, None)
    )
    assert with_kernels <= 1.1 * without, "they round no worse than the operators"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("options", [{"implementation": "transformers"}, {"rollout": {"top_p": 0.8, "train_on_filtered": True}}], ids=str)
def test_compiled_kernels_leave_what_they_cannot_to_the_operators(tmp_path: Path, options: dict[str, Any]) -> None:
    wide = write_tiny(tmp_path / "model", width=64)
    groups = make_groups(plain_model(wide, "float64"), **({"top_p": 0.8} if "rollout" in options else {}))
    with_kernels, without = (our_gradient(wide, "float32", [groups], kernels=which, **options) for which in (kernels("native"), None))
    assert 0 < distance(with_kernels, without) <= BOUND["float32"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="trainer.compile needs a C++ compiler")
def test_compiled_layers_give_the_same_gradients_also_when_computed_again(llama: Path) -> None:
    groups = make_groups(plain_model(llama, "float64"))
    for dtype, again in (("float64", False), ("float32", True)):
        ours = our_gradient(llama, dtype, [groups], budget=60, compile=True, checkpoint_activations=again, kernels=kernels())
        assert distance(ours, plain_gradient(llama, dtype, groups)) <= BOUND[dtype]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"aggregation": "sequence", "advantage": "group_mean"},
        {"aggregation": "constant"},
        {"ratio": "sequence"},
        {"kl": "k3", "kl_weight": 0.1},
        {"kl": "k1", "kl_weight": 0.1},
    ],
    ids=str,
)
def test_every_option_is_independent_of_the_split_too(llama: Path, algorithm: dict[str, Any]) -> None:
    groups = make_groups(plain_model(llama, "float64"))
    whole = our_gradient(llama, "float64", [groups], algorithm=algorithm)
    split = our_gradient(llama, "float64", [groups[2:], groups[:2]], algorithm=algorithm, budget=1)
    assert distance(split, whole) <= BOUND["float64"]


BOUNDS = {"token": (0.8, 1.25), "sequence": (0.5, 2.0), "geometric": (0.9, 1.1)}


@pytest.mark.parametrize(("kind", "level"), product(("truncate", "mask", "reject"), BOUNDS), ids=str)
def test_gradients_under_a_correction_equal_a_plain_padded_implementation_for_every_split(llama: Path, kind: str, level: str) -> None:
    groups = make_groups(plain_model(llama, "float64"))
    low, high = BOUNDS[level]
    correction = {"correction": kind, "correction_level": level, "correction_low": low, "correction_high": high}
    right = plain_gradient(llama, "float64", groups, correction=correction)
    for dispatches, budget in (([groups], 4096), ([groups[2:], groups[:2]], 1)):
        assert distance(our_gradient(llama, "float64", dispatches, algorithm=correction, budget=budget), right) <= BOUND["float64"]
    assert distance(right, plain_gradient(llama, "float64", groups)) > 0.01, "the bounds act"


@pytest.mark.parametrize("kind", ["truncate", "mask", "reject"])
def test_under_a_filter_weights_compare_kept_set_with_kept_set(llama: Path, kind: str) -> None:
    """On policy the weights are 1 only if both sides are over the same set; over the full vocabulary they would not be."""
    filters = {"top_p": 0.8, "top_k": 50}
    groups = make_groups(plain_model(llama, "float64"), noise=0.0, sampled=True, **filters)
    config = ModelConfig(path=str(llama), dtype="float64")
    trainer = TorchTrainer(
        load(config, train=True),
        algorithm=AlgorithmConfig(correction=kind),
        trainer=TrainerConfig(),
        rollout=RolloutConfig(max_tokens=32, train_on_filtered=True, **filters),
        model=config,
        total_updates=10,
    )
    metrics = trainer.accumulate(groups)
    assert abs(metrics["correction/log_weight/min"]) <= 1e-12
    assert abs(metrics["correction/log_weight/max"]) <= 1e-12
    assert metrics["correction/effective_share"] == pytest.approx(1.0)


@pytest.mark.parametrize("rollout", [{"top_p": 0.8}, {"top_k": 20}, {"top_p": 0.9, "top_k": 50, "temperature": 0.6}], ids=str)
def test_gradients_over_the_kept_set_are_independent_of_implementation_and_split(llama: Path, rollout: dict[str, Any]) -> None:
    groups = make_groups(plain_model(llama, "float64"), **rollout)
    settings = {**rollout, "train_on_filtered": True}
    whole = our_gradient(llama, "float64", [groups], rollout=settings)
    other = our_gradient(llama, "float64", [groups], rollout=settings, implementation="transformers", budget=1)
    assert distance(other, whole) <= BOUND["float64"]
    assert distance(whole, our_gradient(llama, "float64", [groups])) > 0.01, "the filter changes what is learned"


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 8}], ids=str)
@pytest.mark.parametrize("dtype", BOUND)
def test_on_the_first_update_every_ratio_is_one(llama: Path, dtype: str, temperature: float, filters: dict[str, Any]) -> None:
    groups = make_groups(plain_model(llama, "float64"), temperature=temperature, noise=0.0, sampled=True, **filters)
    config = ModelConfig(path=str(llama), dtype=dtype)
    trainer = TorchTrainer(
        load(config, train=True),
        algorithm=AlgorithmConfig(),
        trainer=TrainerConfig(),
        rollout=RolloutConfig(max_tokens=32, temperature=temperature, train_on_filtered=bool(filters), **filters),
        model=config,
        total_updates=10,
    )
    metrics = trainer.accumulate(groups)
    within = 1e-5 if dtype == "float32" else 1e-12
    assert abs(metrics["ratio/min"] - 1) <= within
    assert abs(metrics["ratio/max"] - 1) <= within
    assert metrics["logprob_gap/max"] <= within
    assert metrics["clip_ratio/region_mean"] == 0


def test_the_policy_gradient_of_one_token_is_the_one_worked_out_by_hand(llama: Path) -> None:
    """Two samples of one token each, rewards 1 and 0: the logits' gradient is -(A / 2 tokens) x (one-hot - softmax), summed."""
    config = ModelConfig(path=str(llama), dtype="float64")
    model = plain_model(llama, "float64")
    prompt, tokens = [7, 8, 9], [30, 40]
    with torch.no_grad(), KeepDouble():
        output = model(torch.tensor([prompt]), output_hidden_states=True)
    hidden, probabilities = output.hidden_states[-1][0, -1], output.logits[0, -1].softmax(0)
    logprobs = [[probabilities[token].log().item()] for token in tokens]
    loaded = load(config, train=True)
    trainer = TorchTrainer(
        loaded,
        algorithm=AlgorithmConfig(std="population", std_eps=0.0),
        trainer=TrainerConfig(),
        rollout=RolloutConfig(),
        model=config,
        total_updates=1,
    )
    columns = [{LOGPROB: np.array(values)} for values in logprobs]
    trainer.accumulate([scored_group(0, prompt, [[token] for token in tokens], [1.0, 0.0], columns=columns)])
    by_logit = torch.zeros_like(probabilities)
    by_logit[tokens[0]], by_logit[tokens[1]] = -1.0, 1.0  # the softmax parts cancel, the advantages are +1 and -1
    weight = dict(loaded.model.named_parameters())["model.embed_tokens.weight"]
    assert weight.grad is not None
    for token in tokens:
        # Rows of tokens outside the prompt have a gradient through the head only.
        torch.testing.assert_close(weight.grad[token], by_logit[token] * hidden, atol=1e-12, rtol=1e-12)
    assert weight.grad[200].abs().max() < 1e-12
