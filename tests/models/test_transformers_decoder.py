from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.config.schema import ModelConfig
from paceline.models.attend import causal
from paceline.models.hf import TransformersDecoder
from paceline.models.load import load
from paceline.models.store import export
from paceline.models.tiny import tiny_tokenizer
from paceline.types.errors import ModelError

COMMON = {
    "vocab_size": 271, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RUNS = {
    "mistral": {"sliding_window": None},
    "gemma": {"head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "phi": {},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.2},
    "cohere": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
}
REFUSED = {
    "mistral": ({"sliding_window": 8}, "sliding_window"),
    "gemma2": ({"head_dim": 8}, "softcap"),
    "bloom": ({"n_layer": 2, "n_head": 4}, "does not let its attention be replaced"),
    "mamba": ({}, "never called the replaced attention"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "only layers"),
}


def write(directory: Path, kind: str, options: dict) -> Path:
    torch.manual_seed(0)
    described = AutoConfig.for_model(kind, **{**COMMON, **options})
    described.initializer_range = 0.3
    AutoModelForCausalLM.from_config(described).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def logits(model, ids: torch.Tensor) -> torch.Tensor:
    return model.logits(model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], model.shape.scale)))


@pytest.mark.parametrize("kind", RUNS)
def test_other_architectures_run_through_their_class_and_export_what_transformers_loads(tmp_path, kind):
    directory = write(tmp_path / "m", kind, RUNS[kind])
    loaded = load(ModelConfig(path=str(directory), dtype="float32"))
    assert isinstance(loaded.model, TransformersDecoder)
    ids = torch.tensor([5, 9, 70, 33, 2, 101])
    with torch.no_grad():
        right = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids[None]).logits[0]
        torch.testing.assert_close(logits(loaded.model, ids), right, rtol=0, atol=1e-4)
        for _, tensor in loaded.model.named_parameters():
            tensor *= 1.01
        export(loaded, loaded.model.named_parameters(), tmp_path / "out", torch.float32)
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids[None]).logits[0]
        torch.testing.assert_close(found, logits(loaded.model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", REFUSED)
def test_architectures_that_packed_attention_cannot_run_are_refused_with_the_reason(tmp_path, kind):
    options, says = REFUSED[kind]
    with pytest.raises(ModelError, match=says):
        TransformersDecoder(write(tmp_path / "m", kind, options), compute=torch.float32)


def test_training_mode_never_switches_dropout_on(tmp_path):
    directory = write(tmp_path / "m", "gpt2", RUNS["gpt2"])
    model = TransformersDecoder(directory, compute=torch.float32)
    model.train()
    ids = torch.arange(5, 25)
    assert torch.equal(logits(model, ids), logits(model, ids))


def test_a_directory_that_transformers_cannot_load_is_a_model_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="cannot load"):
        TransformersDecoder(tmp_path, compute=torch.float32)
