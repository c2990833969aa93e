import json
import subprocess
import sys

import pytest
import torch

from paceline.config.schema import ModelConfig
from paceline.models.load import load, load_tokenizer, resolve
from paceline.models.slim import SlimDecoder
from paceline.models.tiny import SPECIAL, write_tiny
from paceline.types.errors import ModelError


def test_an_unknown_name_is_refused_with_the_three_ways_to_name_a_model():
    with pytest.raises(ModelError, match=r"nobody/such-model.*local directory.*smollm2-135m.*hub id"):
        resolve("nobody/such-model")


@pytest.mark.parametrize("device", ["nonsense", "cuda:97"])
def test_a_device_that_torch_cannot_use_here_is_refused_by_name(tiny, device):
    with pytest.raises(ModelError, match=f"device '{device}': torch cannot use it here"):
        load(ModelConfig(path=str(tiny)), device=device)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(str(tmp_path))


def test_a_config_that_transformers_does_not_know_is_refused_with_its_directory(tiny):
    (tiny / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ModelError, match=r"cannot read its config\.json"):
        load(ModelConfig(path=str(tiny)))


def test_every_end_of_sequence_id_is_collected(tiny):
    settings = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**settings, "eos_token_id": [2, 77]}))
    (tiny / "generation_config.json").write_text(json.dumps({"eos_token_id": [99]}))
    loaded = load(ModelConfig(path=str(tiny), dtype="float32"))
    assert loaded.eos_ids == (2, SPECIAL.index("<|im_end|>"), 77, 99)
    assert loaded.pad_id == 0


def test_auto_takes_the_slim_decoder_where_it_fits(tiny):
    assert isinstance(load(ModelConfig(path=str(tiny), dtype="float32")).model, SlimDecoder)


def test_a_model_that_fits_the_slim_decoder_brings_neither_the_model_code_of_transformers_nor_the_compiler_of_torch(tiny):
    code = (
        "import sys\nfrom paceline.config.schema import ModelConfig\nfrom paceline.models.load import load\n"
        f"load(ModelConfig(path={str(tiny)!r}, dtype='float32'))\n"
        "print([m for m in ('transformers.modeling_utils', 'torch._dynamo', 'gguf', 'paceline.models.hf') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_slim_asked_for_by_name_is_refused_where_it_does_not_fit(tmp_path):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    directory = write_tiny(tmp_path / "m")
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**settings, "rope_parameters": rope}))
    with pytest.raises(ModelError, match="dynamic"):
        load(ModelConfig(path=str(directory), dtype="float32", implementation="slim"))


@pytest.mark.parametrize(
    ("dtype", "train", "stored"),
    [
        ("bfloat16", False, torch.bfloat16),
        ("bfloat16", True, torch.float32),
        ("float32", True, torch.float32),
        ("float64", False, torch.float64),
        ("float64", True, torch.float64),
    ],
)
def test_training_stores_master_weights_and_serving_the_compute_dtype(tiny, dtype, train, stored):
    model = load(ModelConfig(path=str(tiny), dtype=dtype), train=train).model
    assert {tensor.dtype for _, tensor in model.named_parameters()} == {stored}
    assert {tensor.requires_grad for _, tensor in model.named_parameters()} == {train}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_tiny_tokenizer_round_trips_text_and_renders_chats(tmp_path, family):
    tokenizer = load_tokenizer(write_tiny(tmp_path / "m", family=family))
    text = 'hello the  10 cats\n\tün "日本"'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3, 4]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(rendered)[0] == 3
    assert tokenizer.decode([2, *tokenizer.encode("hello"), 4], skip_special_tokens=True) == "hello"


def test_a_directory_without_a_tokenizer_is_named_with_the_files_that_it_lacks(tmp_path):
    directory = write_tiny(tmp_path / "m")
    for file in directory.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"m: holds no tokenizer \(tokenizer\*, .*\); copy the files of the model's tokenizer there"):
        load_tokenizer(directory)


def test_a_tiny_model_is_a_function_of_its_arguments(tmp_path):
    first, again, other = (write_tiny(tmp_path / name, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
