"""What a backward pass keeps, counted: the estimate of a run's memory is made of it."""

from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from paceline.config.schema import ModelConfig
from paceline.models.load import load
from paceline.models.packed import PackedModel
from paceline.models.slim import SlimDecoder
from paceline.models.tiny import write_tiny
from paceline.native.calls import Choice, Kernels, kernels
from paceline.native.machine import compiler
from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block

torch.set_num_threads(1)


def kept(model: PackedModel, rows: int, native: Kernels | None = None) -> int:
    """Bytes of the storages, weights apart, that the graph of `rows` rows refers to."""
    found: dict[int, int] = {}
    weights = {tensor.untyped_storage().data_ptr() for _, tensor in model.named_parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        attend = block_attend([Block(rows, ())], model.shape.scale, torch.device("cpu"), kernels=native)
        hidden = model.hidden(torch.arange(rows) + 5, torch.arange(rows), attend)
    assert hidden.requires_grad
    return sum(found.values())


@pytest.mark.parametrize(
    "choice", ["torch", pytest.param("native", marks=pytest.mark.skipif(compiler() is None, reason="no C++ compiler"))]
)
@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4), ("float64", 8)])
def test_a_row_keeps_in_each_layer_what_the_memory_estimate_says_and_nothing_else(
    tmp_path: Path, dtype: str, size: int, choice: Choice
) -> None:
    model = load(ModelConfig(path=str(write_tiny(tmp_path / "m", layers=3, width=64)), dtype=dtype), train=True).model
    assert isinstance(model, SlimDecoder)
    native = kernels(choice)
    model.tune(layers_again=False, compiled=False, kernels=native)
    s, inner = model.shape, model.spec.intermediate
    layer = 2 * s.width + 2 * (s.heads + s.kv_heads) * s.head_dim + 2 * inner
    angles = 2 * s.head_dim * max(4, size)
    last = s.width * size
    index = 8
    assert kept(model, 96, native) - kept(model, 32, native) == 64 * (s.layers * layer * size + angles + last + index)


def test_with_layers_computed_again_a_row_keeps_one_number_per_width_and_layer(tmp_path: Path) -> None:
    """Inputs of layers are held by the graph's own frames, not among the saved tensors: hardly anything is left there."""
    model = load(ModelConfig(path=str(write_tiny(tmp_path / "m", layers=3)), dtype="float32"), train=True).model
    assert isinstance(model, SlimDecoder)
    model.tune(layers_again=True, compiled=False, kernels=None)
    s = model.shape
    assert kept(model, 96) - kept(model, 32) <= 64 * (s.layers * s.width * 4 + s.width * 4 + 2 * s.head_dim * 4 + 8)
