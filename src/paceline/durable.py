"""Files and directories that are whole or absent at every moment, a crash included, and on disk when a call returns.

What the file system refuses (no space, no permission) is a StorageError that names the file; the system's own errors often do not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.types.errors import CheckpointDamaged, StorageError


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of the file system within the block are StorageError, with the name of what was to be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def cache_directory() -> Path:
    """Where what was made once for this user lies: $PACELINE_CACHE, by default ~/.cache/paceline."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time holds the lock file `path`; it is free when the process ends, however that ends."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(path: Path, *, synced: bool = True, over: Path | None = None) -> Iterator[Path]:
    """A place beside `path` to write a file to: it becomes `path` when the block ends, and vanishes when the block raises.

    synced = False: for what is made again after a crash of the machine. It is whole for every process that lives, and may be torn then.
    over: a file in the same directory that nobody needs any more; if there is one, it lies in that place to be written over.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with named(path):
        try:
            if over is not None:
                with suppress(FileNotFoundError):
                    _take(over, aside)
            yield aside
            if synced:
                sync(aside)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if synced:
            sync(path.parent)


def _take(over: Path, aside: Path) -> None:
    """Move a file that will be written over; one that has other names, or is a link to another, is given up instead."""
    found = over.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        over.unlink()
        return
    os.replace(over, aside)


def spare(path: Path) -> Path:
    """Where a file lies that was given up: the next one of its size is written over it, which needs no new memory from the system."""
    return path.with_name(".spare")


def append_line(path: Path, line: bytes) -> None:
    """Append one line (given without its end). One that a crash cut short is ended first; one that does not fit is taken back whole."""
    with named(path), path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        cut = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        left = memoryview((b"\n" if cut else b"") + line + b"\n")
        try:
            while left:  # a nearly full disk takes a part
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # the error to tell is the first
                file.truncate(size)
            raise


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, counted from 1; value) of every line of JSON; what a crash cut short, or a disk made of it, is passed over."""
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield number, value


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(directory: Path) -> None:
    """`sync` everything below a directory, then itself."""
    for path in sorted(directory.rglob("*"), reverse=True):
        sync(path)
    sync(directory)


def put_in_place(aside: Path, target: Path) -> None:
    """Move a finished directory to `target`. An older `target` is whole until then: a crash may leave it as `.replaced-NAME` beside it."""
    with named(target):
        sync_tree(aside)
        old = target.with_name(f".replaced-{target.name}")
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        aside.rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)


def put_back(directory: Path) -> None:
    """After a crash: what `put_in_place` had moved out of the way in a directory gets its name back, unless the new one has it."""
    for replaced in directory.glob(".replaced-*"):
        target = replaced.with_name(replaced.name.removeprefix(".replaced-"))
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(target)


def remove(directory: Path) -> None:
    """Delete a directory: from the first moment on it no longer has its name. A crash may leave it as `.old-NAME` beside it."""
    with named(directory):
        gone = directory.with_name(f".old-{directory.name}")
        shutil.rmtree(gone, ignore_errors=True)
        directory.rename(gone)
        shutil.rmtree(gone)


def sealed(fields: Mapping[str, Any]) -> bytes:
    """A JSON object that shows later whether it still holds what was written; `unsealed` reads it."""
    return json.dumps({_DIGEST: _digest(fields), **fields}, indent=1).encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """The fields of what `sealed` gave. Raises ValueError where that is cut, or any bit of a field has changed."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.pop(_DIGEST, None) != _digest(fields):
        raise ValueError("it does not hold what was written")
    return fields


@contextmanager
def undamaged(path: Path, fault: type[Exception]) -> Iterator[None]:
    """A `fault` within the block is CheckpointDamaged with the name of what is read, as a missing file and a failing disk are.

    No permission, no handles and no memory are not: the file may be whole, and its error stays what it is.
    """
    gone = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    try:
        yield
    except (OSError, fault) as error:
        if isinstance(error, OSError) and not isinstance(error, gone) and error.errno != errno.EIO:
            raise
        raise CheckpointDamaged(f"{path}: missing or damaged ({error})") from error


_DIGEST = "digest"


def _digest(fields: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
