import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from paceline.config.schema import ModelConfig
from paceline.models.attend import causal
from paceline.models.head import Head
from paceline.models.kernels import lookup
from paceline.models.load import load
from paceline.models.packed import PackedModel
from paceline.models.slim import SlimDecoder
from paceline.models.store import fingerprint, read, write_tensors
from paceline.models.tiny import write_tiny
from paceline.native.calls import kernels
from paceline.native.machine import compiler
from paceline.types.errors import ModelError

IDS = torch.tensor([11, 40, 7, 200, 90, 33])


def logits(model: PackedModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model.logits(model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], model.shape.scale)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_attention_passes_on_what_is_no_number_however_short_the_text(dtype: torch.dtype) -> None:
    for n in range(1, 40):
        q, k, v = (torch.ones(n, heads, 16, dtype=dtype) for heads in (2, 1, 1))
        q[n // 2 :, 0, 3] = torch.nan
        found = causal([n], 0.25)(0, q, k, v).isnan().all(-1)
        assert found[n // 2 :, 0].all(), n
        assert not found[: n // 2].any(), n
        assert not found[:, 1].any(), n


def config(directory: Path, dtype: str = "float32", implementation: str = "slim") -> ModelConfig:
    return ModelConfig(path=str(directory), dtype=dtype, implementation=implementation)


@pytest.mark.parametrize("implementation", ["slim", "transformers"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_loaded_in_place_compute_what_a_fresh_model_computes(tmp_path, family, dtype, implementation):
    old, new = (write_tiny(tmp_path / str(seed), family=family, seed=seed) for seed in (0, 1))
    model = load(config(old, dtype, implementation)).model
    fresh = load(config(new, dtype, implementation)).model
    with torch.no_grad():
        before = logits(model)
        found = model.load_tensors(new / "model.safetensors")
        assert torch.equal(logits(model), logits(fresh))
        assert not torch.equal(logits(model), before)
    assert found == fingerprint(fresh.named_parameters())


def test_every_single_parameter_changed_in_place_changes_the_outputs(tmp_path):
    model = load(config(write_tiny(tmp_path / "m", family="qwen3", attention_bias=True))).model
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            before = logits(model)
            tensor += 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
            assert not torch.equal(logits(model), before), name


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lone_row_has_the_bits_and_the_gradients_of_one_of_two(tiny, dtype, train):
    bits, gradients = [], []
    for count in (1, 2):
        model = load(config(tiny, dtype), train=train).model
        lone = model.hidden(IDS[:1].repeat(count), torch.zeros(count, dtype=torch.long), causal([1] * count, model.shape.scale))
        bits.append(lone[:1].detach())
        if train:
            lone[0].float().sum().backward()
            gradients.append(model.model.layers[0].mlp.down_proj.weight.grad)
    assert bits[0].shape == (1, model.shape.width)
    assert torch.equal(*bits)
    assert not train or (gradients[0].abs().max() > 0 and torch.equal(*gradients))


@pytest.mark.parametrize("implementation", ["slim", "transformers"])
def test_float32_weights_computed_in_bfloat16_give_the_bits_of_bfloat16_weights(tiny, implementation):
    served = load(config(tiny, "bfloat16", implementation)).model
    trained = load(config(tiny, "bfloat16", implementation), train=True).model
    assert {tensor.dtype for _, tensor in trained.named_parameters()} == {torch.float32}
    own = logits(trained)
    with torch.no_grad():
        assert torch.equal(logits(served), own)
        assert torch.equal(logits(trained), own)
    own.logsumexp(-1).sum().backward()
    assert {tensor.grad.dtype for _, tensor in trained.named_parameters()} == {torch.float32}


def test_bfloat16_gradients_are_those_of_float32_up_to_rounding(tiny):
    targets = torch.tensor([40, 7, 200, 90, 33, 2])
    grads = []
    for dtype in ("bfloat16", "float32"):
        model = load(config(tiny, dtype), train=True).model
        torch.nn.functional.cross_entropy(logits(model), targets).backward()
        grads.append(torch.cat([tensor.grad.flatten() for _, tensor in model.named_parameters()]))
    assert (grads[0] - grads[1]).norm() / grads[1].norm() < 0.02


def head_and_rows(rows: int, frozen: bool) -> tuple[Head, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16() for n in (rows, 300))
    owner = torch.nn.Linear(64, 300, bias=False, dtype=torch.bfloat16)
    owner.weight = torch.nn.Parameter(weight, requires_grad=not frozen)
    return Head(owner), hidden, weight


@pytest.mark.parametrize("frozen", [True, False])
def test_the_head_multiplies_bfloat16_exactly_and_adds_in_float32(frozen):
    head, hidden, weight = head_and_rows(5, frozen)
    found = head(hidden)
    assert found.dtype == torch.float32
    assert (found.double() - hidden.double() @ weight.double().t()).abs().max() < 1e-5
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_of_the_head_are_those_of_its_logits(frozen, keep, temperature):
    head, hidden, weight = head_and_rows(5, frozen)
    hidden.requires_grad_()
    ids, grad = torch.tensor([0, 299, 7, 7, 150]), torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    found, spread = head.scores(hidden, ids, temperature, entropy=True, keep=keep, kernels=kernels("native"))
    wide, matrix = hidden.detach().double().requires_grad_(), weight.double().requires_grad_()
    every = (wide @ matrix.t() / temperature).log_softmax(-1)
    torch.testing.assert_close(found.double(), every.gather(-1, ids[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(spread.double(), -(every.exp() * every).sum(-1), rtol=1e-4, atol=1e-5)
    found.backward(grad)
    every.gather(-1, ids[:, None])[:, 0].backward(grad.double())
    assert (hidden.grad.double() - wide.grad).norm() <= 0.01 * wide.grad.norm()
    owned = head._owner.weight.grad
    assert owned is None if frozen else (owned.double() - matrix.grad).norm() <= 0.01 * matrix.grad.norm()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("odd", [-1, 300])
def test_a_token_outside_the_vocabulary_has_no_score(odd):
    head, hidden, _ = head_and_rows(2, True)
    with pytest.raises(IndexError, match=f"token {odd} is none of a vocabulary of 300"):
        head.scores(hidden, torch.tensor([5, odd]), 1.0, entropy=False, keep=True, kernels=kernels("native"))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_ids_of_any_integer_dtype_and_at_any_distance_have_the_same_scores():
    head, hidden, _ = head_and_rows(4, True)
    pairs = torch.tensor([[5, 0], [7, 0], [299, 0], [0, 0]])
    right, _ = head.scores(hidden, pairs[:, 0].contiguous(), 1.0, entropy=False, keep=True, kernels=kernels("native"))
    for ids in (pairs[:, 0], pairs[:, 0].to(torch.int32)):
        found, _ = head.scores(hidden, ids, 1.0, entropy=False, keep=True, kernels=kernels("native"))
        assert torch.equal(found, right)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)])
def test_the_gradient_of_a_tied_matrix_adds_up_in_place_to_what_autograd_gives(dtype, within):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2100, 8, generator=generator, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    ids, targets = torch.tensor([7, 3, 7, 2099, 5]), torch.tensor([1, 7, 2, 2098, 3])
    plain, owner = start.clone().requires_grad_(), torch.nn.Linear(8, 2100, bias=False)
    owner.weight = torch.nn.Parameter(start.clone())
    head, places = Head(owner), set()
    for _ in range(2):
        rows = torch.nn.functional.embedding(ids, plain, padding_idx=3)
        torch.nn.functional.cross_entropy(rows @ plain.t(), targets).backward()
        rows = lookup(ids, owner.weight, 3, dtype)
        logits = torch.cat([head(part) for part in rows.split(2)])
        torch.nn.functional.cross_entropy(logits, targets).backward()
        places.add(owner.weight.grad.data_ptr())
    assert len(places) == 1
    assert owner.weight.grad.dtype == start.dtype
    assert (owner.weight.grad - plain.grad).norm() <= within * plain.grad.norm()
    before = owner.weight.grad.clone()
    lookup(torch.tensor([3]), owner.weight, 3, dtype).sum().backward()
    assert torch.equal(owner.weight.grad, before), "the row of the padding id gets nothing through the look-up"


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 130])
def test_the_serving_kernels_give_the_bits_of_the_training_kernels_whatever_the_number_of_rows(rows):
    serving, hidden, _ = head_and_rows(130, True)
    training, _, _ = head_and_rows(130, False)
    right = training(hidden)
    assert torch.equal(serving(hidden[:rows]), right[:rows])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_copies_follow_every_change_of_the_weights(tmp_path, dtype, stored):
    old, new = (write_tiny(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    model, fresh = (load(config(directory, dtype)).model for directory in (old, new))
    write_tensors(list(fresh.named_parameters()), path := tmp_path / "new.safetensors", stored)
    fresh.load_tensors(path)
    with torch.inference_mode():
        before = logits(model)
        model.load_tensors(path)
        right = logits(fresh)
        assert torch.equal(logits(model), right)
        assert not torch.equal(before, right)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            before = logits(model)
            tensor += 0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
            assert not torch.equal(logits(model), before), name


def test_tied_weights_have_one_name_and_one_gradient(tmp_path):
    tied = load(config(write_tiny(tmp_path / "tied")), train=True).model
    untied = load(config(write_tiny(tmp_path / "untied", tied=False)), train=True).model
    assert "lm_head.weight" not in dict(tied.named_parameters())
    assert "lm_head.weight" in dict(untied.named_parameters())
    assert tied.shape.parameters + tied.shape.vocabulary * tied.shape.width == untied.shape.parameters


@pytest.mark.parametrize("implementation", ["slim", "transformers"])
def test_a_deep_copy_is_independent_and_computes_the_same(tiny, implementation):
    model = load(config(tiny, implementation=implementation)).model
    twin = copy.deepcopy(model)
    with torch.no_grad():
        right = logits(model)
        assert torch.equal(logits(twin), right)
        for _, tensor in twin.named_parameters():
            tensor.zero_()
        assert torch.equal(logits(model), right)
        assert not torch.equal(logits(twin), right)


def test_the_projections_of_a_deep_copy_lie_next_to_each_other_as_the_models_own_do(tiny):
    model = load(config(tiny)).model
    for one in (model, copy.deepcopy(model)):
        attention = one.model.layers[1].self_attn
        q, k = attention.q_proj.weight, attention.k_proj.weight
        assert attention.qkv.layers[0] is attention.q_proj
        assert k.data_ptr() == q.data_ptr() + q.nbytes
        assert not q.requires_grad


def test_a_model_cast_after_loading_still_computes_with_all_of_its_weights(tiny):
    model = load(config(tiny, "float64")).model.to(torch.float32)
    with torch.no_grad():
        right = logits(load(config(tiny, "float64")).model)
        assert torch.allclose(logits(model), right, rtol=0, atol=1e-5)


def test_rows_depend_on_their_positions_only_relative_to_each_other(tiny):
    model = load(config(tiny, "float64")).model
    with torch.no_grad():
        shifted = model.hidden(IDS, torch.arange(len(IDS)) + 100, causal([len(IDS)], model.shape.scale))
        torch.testing.assert_close(model.logits(shifted), logits(model), rtol=0, atol=1e-4)
        torch.testing.assert_close(
            model.hidden(IDS, torch.arange(len(IDS)) * 2, causal([len(IDS)], model.shape.scale)).shape, shifted.shape
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, "rope_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_what_the_slim_decoder_cannot_compute_is_refused_by_name(change, says):
    described = AutoConfig.for_model("llama", hidden_size=32, num_attention_heads=4, num_hidden_layers=1, **change)
    with pytest.raises(ModelError, match=says):
        SlimDecoder(described, compute=torch.float32)


def test_sliding_layers_and_other_families_are_refused_by_name():
    sliding = AutoConfig.for_model("qwen2", num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelError, match="layer_types"):
        SlimDecoder(sliding, compute=torch.float32)
    with pytest.raises(ModelError, match="gpt2"):
        SlimDecoder(AutoConfig.for_model("gpt2"), compute=torch.float32)


@pytest.mark.parametrize("damage", ["missing", "unknown", "misshapen", "whole numbers", "cut short"])
def test_a_file_that_does_not_fit_changes_nothing_and_is_named(tiny, tmp_path, damage):
    from safetensors.torch import save_file

    tensors = {name: tensor + 1 for name, tensor in read(tiny)}
    if damage == "missing":
        del tensors["model.norm.weight"]
    elif damage == "unknown":
        tensors["model.extra.weight"] = torch.zeros(1)
    elif damage == "misshapen":
        tensors["model.norm.weight"] = torch.zeros(3)
    elif damage == "whole numbers":
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    path = tmp_path / "other.safetensors"
    save_file(tensors, path)
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-10])
    model = load(config(tiny)).model
    before = fingerprint(model.named_parameters())
    with pytest.raises(ModelError, match=r"other\.safetensors"):
        model.load_tensors(path)
    assert fingerprint(model.named_parameters()) == before
