import errno
import json
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.config.schema import ModelConfig
from paceline.models import store
from paceline.models.attend import causal
from paceline.models.load import load
from paceline.models.store import copy_into, export, fingerprint, read, write_tensors
from paceline.models.tiny import write_tiny
from paceline.types.errors import ModelError, StorageError


def test_a_fingerprint_depends_on_name_dtype_shape_and_bytes_and_on_nothing_else():
    a, b = torch.arange(6.0), torch.arange(6.0, 12.0)
    right = fingerprint([("a", a), ("b", b)])
    assert fingerprint([("b", b.clone()), ("a", a)]) == right
    assert fingerprint([("a", torch.arange(12.0).view(2, 6).t()[:, 0]), ("b", b)]) == right
    others = [
        [("a", b), ("b", a)],
        [("a", a), ("c", b)],
        [("a", a.view(2, 3)), ("b", b)],
        [("a", a.view(torch.int32)), ("b", b)],
        [("a", a.nextafter(b)), ("b", b)],
        [("a", torch.cat([a, b]))],
    ]
    assert right not in {fingerprint(other) for other in others}


def test_written_tensors_read_back_with_the_fingerprint_that_was_returned(tmp_path):
    named = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "y": torch.zeros(2)}
    found = write_tensors(named.items(), tmp_path / "w.safetensors", torch.bfloat16)
    back = dict(read(tmp_path / "w.safetensors"))
    assert found == fingerprint(back.items())
    assert torch.equal(back["x"], named["x"].bfloat16())
    assert os.listdir(tmp_path) == ["w.safetensors"]


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_are_copied_into_place_from_any_dtype_by_any_number_of_threads(tmp_path, threads):
    torch.set_num_threads(threads)
    stored = {f"w{n}": torch.randn(n + 1, 5, generator=torch.Generator().manual_seed(n)) for n in range(9)} | {"empty": torch.zeros(0, 3)}
    for kind in (torch.float32, torch.bfloat16):
        write_tensors(stored.items(), path := tmp_path / "w.safetensors", kind)
        own = {name: torch.full_like(tensor, torch.nan) for name, tensor in stored.items()}
        before = {name: tensor._version for name, tensor in own.items()}
        assert copy_into(own, path) == fingerprint((name, tensor.to(kind).float()) for name, tensor in stored.items())
        assert all(tensor._version > before[name] for name, tensor in own.items())


@pytest.mark.parametrize("written", [0, 100], ids=["nothing more", "a part, then no space"])
def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, written):
    path, answers = tmp_path / "w.safetensors", iter([written])

    def pwritev(descriptor, pieces, offset):
        found = next(answers, None)
        if found is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return found

    write_tensors([("x", torch.ones(2))], path, torch.float32)
    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(StorageError, match=r"w\.safetensors.*: (the system takes no more bytes|No space left)"):
        write_tensors([("x", torch.zeros(400))], path, torch.float32)
    assert torch.equal(dict(read(path))["x"], torch.ones(2))
    assert os.listdir(tmp_path) == ["w.safetensors"]


@pytest.mark.parametrize("size", [3, 1000, 100_000], ids=["shorter", "as long", "longer"])
def test_a_file_written_over_another_holds_its_own_bytes_only(tmp_path, size):
    tensors = {"a": torch.randn(100, 10), "none": torch.empty(0, 4), "b": torch.randn(7)}
    fresh = write_tensors(tensors.items(), tmp_path / "fresh", torch.bfloat16)
    old = tmp_path / "old"
    old.write_bytes(b"\xff" * 2 * size)
    assert write_tensors(tensors.items(), tmp_path / "over", torch.bfloat16, over=old) == fresh
    assert (tmp_path / "over").read_bytes() == (tmp_path / "fresh").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "over"], "the old one has become the new one"
    assert write_tensors(tensors.items(), tmp_path / "again", torch.bfloat16, over=old) == fresh, "there is none any more"


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_that_has_another_name_is_not_written_over(tmp_path, link):
    kept, old = tmp_path / "backup", tmp_path / "old"
    kept.write_bytes(b"\xff" * 100)
    link(kept, old)
    write_tensors([("a", torch.ones(30))], tmp_path / "new", torch.float32, over=old)
    assert kept.read_bytes() == b"\xff" * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "new"]
    assert not (tmp_path / "new").is_symlink()
    assert torch.equal(dict(read(tmp_path / "new"))["a"], torch.ones(30))


def test_files_larger_than_one_call_takes_are_written_and_read_in_several(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_BYTES", 100)
    monkeypatch.setattr(store, "_BUFFERS", 3)
    tensors = {name: torch.randn(size) for name, size in zip("abcdefgh", (1, 7, 300, 25, 1, 1, 1, 40), strict=True)}
    fresh = write_tensors(tensors.items(), tmp_path / "weights", torch.float32)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(tmp_path / "weights").items())
    own = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert copy_into(own, tmp_path / "weights") == fresh


def test_the_file_is_one_of_safetensors(tmp_path):
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(2, 1, 4), "none": torch.empty(0), "one": torch.tensor(7.0)}
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        write_tensors(tensors.items(), tmp_path / "weights", dtype)
        found = load_file(tmp_path / "weights")
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor.to(dtype)) for name, tensor in tensors.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["slim", "transformers"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_export_loads_in_transformers_with_the_same_logits_and_tokenizer(tmp_path, tied, implementation, dtype):
    directory = write_tiny(tmp_path / "m", family="qwen2", tied=tied)
    loaded = load(ModelConfig(path=str(directory), dtype="float32", implementation=implementation))
    with torch.no_grad():
        for _, tensor in loaded.model.named_parameters():
            tensor.copy_((tensor * 1.1).to(dtype))
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()
    export(loaded, loaded.model.named_parameters(), target, dtype)
    assert not (target / "old").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out"]
    assert json.loads((target / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32), AutoTokenizer.from_pretrained(target)
    ids = torch.tensor(tokenizer.encode("hello, the 10 cats"))
    with torch.no_grad():
        own = loaded.model.logits(loaded.model.hidden(ids, torch.arange(len(ids)), causal([len(ids)], loaded.model.shape.scale)))
        torch.testing.assert_close(model(ids[None]).logits[0], own, rtol=0, atol=1e-5)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_shards_are_read_like_one_file(tmp_path):
    directory = write_tiny(tmp_path / "m")
    whole = dict(read(directory))
    AutoModelForCausalLM.from_pretrained(directory).save_pretrained(tmp_path / "s", max_shard_size="40KB")
    assert (tmp_path / "s" / "model.safetensors.index.json").is_file()
    shards = dict(read(tmp_path / "s"))
    assert fingerprint(shards.items()) == fingerprint(whole.items())


@pytest.mark.parametrize(
    "content", ["{", "{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": []}}', "\ud800"]
)
def test_a_damaged_index_of_shards_is_a_model_error_with_its_name(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: damaged or unreadable index of shards"):
        list(read(tmp_path))


def test_a_directory_without_weights_is_a_model_error_with_its_path(tmp_path):
    with pytest.raises(ModelError, match=str(tmp_path)):
        list(read(tmp_path))
