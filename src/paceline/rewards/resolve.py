"""From `module:name` or `path/to/file.py:name` to the callable it names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.types.errors import ConfigError


def resolve(reference: str) -> Callable[..., Any]:
    """The callable behind `module:name`, `module:object.method` or `file.py:name` (relative to the working directory). A file may import
    what lies beside it, a module may lie in the working directory.

    Raises ConfigError naming the reference and what is wrong with it, also where the module itself raises.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ConfigError(f"function = {reference!r}: expected `module:function` or `path/to/file.py:function`")
    target: Any = _from_file(Path(where), reference) if where.endswith(".py") else _from_module(where, reference)
    for part in name.split("."):
        if not hasattr(target, part):
            present = ", ".join(key for key in dir(target) if not key.startswith("_") and callable(getattr(target, key)))
            raise ConfigError(f"function = {reference!r}: {where} has no {part!r}; it has {present or 'nothing callable'}")
        target = getattr(target, part)
    if not callable(target):
        raise ConfigError(f"function = {reference!r}: {type(target).__name__} is not callable")
    function: Callable[..., Any] = target
    return function


def source(reference: str) -> Path | None:
    """The file that holds the function of a reference; None when there is no such file (`resolve` says why)."""
    where, _, _ = reference.rpartition(":")
    if where.endswith(".py"):
        return Path(where) if Path(where).is_file() else None
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin is not None else None


def _findable(directory: Path) -> None:
    """Let modules in a directory be imported, after all others: Python does so for a script, and for whatever `python -m` runs."""
    place = str(directory.resolve())
    if place not in sys.path:
        sys.path.append(place)


def _from_module(name: str, reference: str) -> ModuleType:
    _findable(Path())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module is the user's
        raise ConfigError(f"function = {reference!r}: cannot import {name}: {_how(error)}") from error


def _from_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"function = {reference!r}: no file {path.resolve()}")
    name = f"paceline_user_{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    _findable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that its own dataclasses and pickles find it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # as above
        del sys.modules[name]
        raise ConfigError(f"function = {reference!r}: cannot load {path}: {_how(error)}") from error
    return module


def _how(error: BaseException) -> str:
    """The error, its class where its text may not say enough, and the line that raised it."""
    if isinstance(error, (ImportError, SyntaxError)):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name} line {last.lineno})"
