"""Weights on disk and their fingerprints: safetensors files under Hugging Face names, written aside and renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from paceline.durable import named as writing
from paceline.durable import put_in_place, whole
from paceline.models.packed import LoadedModel
from paceline.types.errors import ModelError, StorageError

Named = Iterable[tuple[str, torch.Tensor]]
_INDEX = "model.safetensors.index.json"
_BESIDE = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a model directory that are not weights: config, tokenizer, templates."""
_NOT_BESIDE = (_INDEX, "manifest.json", "pytorch_model.bin.index.json")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Dtypes of weights, by the names that safetensors files have for them."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BUFFERS, _BYTES = 512, 2**30
"""Of one call that reads into several or writes them; systems allow 1,024, and 2 GiB."""
_DERIVED = ("lm_head.weight", ".rotary_emb.inv_freq")
"""Stored by some checkpoints though they follow from the rest: a tied head, frequencies."""


@runtime_checkable
class SavesItself(Protocol):
    """A model whose checkpoint files need more than its parameters under their names."""

    def save_checkpoint(self, named: Mapping[str, torch.Tensor], directory: Path) -> None:
        """Write config and weight files of `named` into an existing directory."""


def fingerprint(named: Named) -> str:
    """sha256 over the XXH3-128 of (name, dtype, shape, bytes) of every tensor, in the order of names; 64 hexadecimal digits.

    XXH3 reads as fast as memory gives, of which a publish has much to read; nobody makes weights up to fool it. As many tensors at a time
    as torch has threads.
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        digests = threads.map(_digest, sorted(named, key=itemgetter(0)))
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest(named: tuple[str, torch.Tensor]) -> bytes:
    name, tensor = named
    data = tensor.detach().cpu().contiguous()
    digest = xxhash.xxh3_128(f"{name}|{data.dtype}|{tuple(data.shape)}|".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def write_tensors(named: Named, path: Path, dtype: torch.dtype, *, synced: bool = True, over: Path | None = None) -> str:
    """Write the tensors in `dtype` as one safetensors file, complete or absent; on disk when this returns, if `synced`.

    over: a file beside it that is written over, if it is there. Returns their fingerprint.
    """
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in named}
    with whole(path, synced=synced, over=over) as aside:
        _write(tensors, aside)
        aside.chmod(0o644)
    return fingerprint(tensors.items())


def _write(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """A safetensors file, over the bytes of the one that may lie there: the library's writer would first give their memory back."""
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        described[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end := end + tensor.nbytes]}
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    pieces = [memoryview(len(header).to_bytes(8, "little") + header)]
    pieces += [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in tensors.values() if tensor.numel()]
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        if not _transfer(os.pwritev, descriptor, pieces, 0):
            raise StorageError(f"{path}: the system takes no more bytes and does not say why")
        os.ftruncate(descriptor, 8 + len(header) + end)
    finally:
        os.close(descriptor)


def _transfer(call: Callable[[int, list[memoryview], int], int], descriptor: int, pieces: list[memoryview], offset: int) -> bool:
    """Read into or write from buffers that follow each other in a file, in few calls; whether all bytes were transferred."""
    while pieces:
        count = call(descriptor, _fitting(pieces), offset)
        if not count:
            return False
        offset += count
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            pieces[0] = pieces[0][count:]
    return True


def _fitting(pieces: Sequence[memoryview]) -> list[memoryview]:
    """The first of them, as many as systems take at a time."""
    first, room = [], _BYTES
    for piece in pieces[:_BUFFERS]:
        if not room:
            break
        first.append(piece[:room])
        room -= len(first[-1])
    return first


def files_of(path: Path) -> list[Path]:
    """The safetensors files of a file or Hugging Face directory, shards included; ModelError when there are none."""
    if path.is_file():
        return [path]
    if (path / _INDEX).is_file():
        return sorted(path / name for name in _shards(path / _INDEX))
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    raise ModelError(f"{path}: no such safetensors file, and no directory with model.safetensors or {_INDEX}")


def _shards(index: Path) -> set[str]:
    """Names of files in an index."""
    try:
        names = {*json.loads(index.read_text())["weight_map"].values()}
        if all(isinstance(name, str) for name in names):
            return names
        why = "weight_map names no files"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = repr(error)
    raise ModelError(f"{index}: damaged or unreadable index of shards ({why})")


@contextmanager
def _as_model_errors(file: Path) -> Iterator[None]:
    """ModelError instead of the errors of the library and the system."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: damaged or unreadable safetensors file ({error})") from error


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An open safetensors file, with such errors."""
    with _as_model_errors(file), safe_open(file, framework="pt") as opened:
        yield opened


def read(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a safetensors file or Hugging Face directory, one by one; ModelError when a file is missing or damaged."""
    for file in files_of(path):
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


def copy_into(own: Mapping[str, torch.Tensor], path: Path) -> str:
    """Copy a file's or directory's tensors into `own` in place; names and shapes must agree. Returns the fingerprint of `own`.

    Everything is checked before the first tensor changes: ModelError names what is missing, unknown, misshapen or damaged.
    """
    files = files_of(path)
    _check_fits(own, files, path)
    with torch.inference_mode(False), torch.no_grad():  # writes in inference mode would not show in version counters
        for file in files:
            _fill(own, file)
    return fingerprint(own.items())


def _fill(own: Mapping[str, torch.Tensor], file: Path) -> None:
    """Copy the tensors of one file into place. What has the same dtype is read there at once, by as many threads as torch has.

    Mapping the file instead would fault its pages in one by one, in threads that wait for each other, and keep all of them to the end.
    """
    with _as_model_errors(file), file.open("rb", buffering=0) as source:
        size = int.from_bytes(source.read(8), "little")
        stored = json.loads(source.read(size))
        dtypes = {name: _DTYPES[stored[name]["dtype"]] for name in stored.keys() & own.keys()}
        places = {name: 8 + size + stored[name]["data_offsets"][0] for name in dtypes}
        direct = [name for name in dtypes if _takes_bytes(own[name], dtypes[name])]
        for name in direct:
            torch.autograd.graph.increment_version(own[name])
        _read_into(source.fileno(), [(places[name], own[name]) for name in direct], file)
        for name in dtypes.keys() - set(direct):
            read = torch.empty(own[name].shape, dtype=dtypes[name])
            _read_into(source.fileno(), [(places[name], read)], file)
            own[name].copy_(read)


def _takes_bytes(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype can be read into a tensor as they lie in a file."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype == dtype


def _read_into(descriptor: int, targets: Sequence[tuple[int, torch.Tensor]], file: Path) -> None:
    """Fill contiguous tensors with the bytes of a file from their offsets on: each thread reads a stretch of the file, in few calls."""
    views = [(offset, tensor.detach().reshape(-1).view(torch.uint8).numpy().data) for offset, tensor in sorted(targets, key=itemgetter(0))]
    share = -(-sum(len(view) for _, view in views) // torch.get_num_threads())
    stretches: list[list[tuple[int, memoryview]]] = [[]]
    room = share
    for offset, view in views:
        while view:
            if not room:
                stretches.append([])
                room = share
            stretches[-1].append((offset, view[:room]))
            taken = min(room, len(view))
            offset, view, room = offset + taken, view[taken:], room - taken
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for _ in threads.map(lambda pieces: _read_stretch(descriptor, pieces, file), stretches):
            pass


def _read_stretch(descriptor: int, pieces: Sequence[tuple[int, memoryview]], file: Path) -> None:
    """Pieces of a file in the order of their offsets; those that touch each other are read together."""
    index = 0
    while index < len(pieces):
        offset = end = pieces[index][0]
        together: list[memoryview] = []
        while index < len(pieces) and pieces[index][0] == end:
            together.append(pieces[index][1])
            end += len(together[-1])
            index += 1
        if not _transfer(os.preadv, descriptor, together, offset):
            raise ModelError(f"{file}: ends within a tensor")


def _described(file: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype (as the file names it) of every tensor."""
    with _opened(file) as opened:
        for name in opened.keys():  # noqa: SIM118 - not a mapping
            part = opened.get_slice(name)
            yield name, tuple(part.get_shape()), part.get_dtype()


def _check_fits(own: Mapping[str, torch.Tensor], files: Iterable[Path], path: Path) -> None:
    missing = set(own)
    for name, shape, dtype in (described for file in files for described in _described(file)):
        if name not in own and not name.endswith(_DERIVED):
            raise ModelError(f"{path}: tensor {name!r} is not one of the model's")
        if name in own and shape != tuple(own[name].shape):
            raise ModelError(f"{path}: tensor {name!r} has shape {shape}, the model's has {tuple(own[name].shape)}")
        if name in own and dtype not in _DTYPES:
            raise ModelError(f"{path}: tensor {name!r} is stored as {dtype}; weights are read as {', '.join(_DTYPES)}")
        missing.discard(name)
    if missing:
        raise ModelError(f"{path}: {len(missing)} of the model's tensors are missing, e.g. {min(missing)!r}")


def export(loaded: LoadedModel, named: Named, directory: Path, dtype: torch.dtype) -> None:
    """Write a Hugging Face directory with the weights `named` in `dtype`, complete or absent; it replaces an older one.

    `named` are weights of `loaded.model`, under its names. Config, tokenizer and templates come from `loaded.directory`.
    """
    aside = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        with writing(directory):
            _export(loaded, named, aside, dtype)
        put_in_place(aside, directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _export(loaded: LoadedModel, named: Named, aside: Path, dtype: torch.dtype) -> None:
    aside.mkdir(parents=True)
    if isinstance(loaded.model, SavesItself):
        try:
            loaded.model.save_checkpoint({name: tensor.detach().to("cpu", dtype) for name, tensor in named}, aside)
        except SafetensorError as error:
            raise StorageError(f"{aside}: {error}") from error
    else:
        write_tensors(named, aside / "model.safetensors", dtype)
    for file in sorted({file for pattern in _BESIDE for file in loaded.directory.glob(pattern)}):
        if file.name not in _NOT_BESIDE:
            shutil.copyfile(file, aside / file.name)
    config = json.loads((aside / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (aside / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
