"""Files and directories that are whole or absent at every moment, a crash included, and on disk when a call returns."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write a file to: it becomes `path` when the block ends, and vanishes when the block raises."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


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
    sync_tree(aside)
    old = target.with_name(f".replaced-{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    aside.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
