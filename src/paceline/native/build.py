"""From `kernels.cpp` to a library for this machine: compiled once into the cache, found again by a digest of all that decides its code."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from paceline.durable import alone, cache_directory, sync
from paceline.native.machine import compiler, processor

SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC")
_HERE = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
_THREADS = "-fopenmp"
_RUNTIMES = ("libgomp*", "libiomp5*", "libomp.*")
"""OpenMP runtimes that come with torch."""
_SECONDS = 60.0


class BuildError(RuntimeError):
    """No library could be made; the text says what is missing or what the compiler said."""


def library() -> ctypes.CDLL:
    """The compiled kernels, in $PACELINE_CACHE, by default ~/.cache/paceline. BuildError where they cannot be had.

    Threads are those of torch: the library is linked without a runtime of its own and takes the functions of the one in this process.
    A file that cannot be opened is made again.
    """
    try:
        found = compiler()
        if found is None:
            raise BuildError(f"no C++ compiler ({os.environ.get('CXX') or 'g++ or clang++'}) on the path")
        target = cache_directory() / f"kernels-{_digest(found)}.so"
        if target.exists():
            try:
                return _opened(target)
            except OSError:
                target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.parent / ".kernels.lock"):  # processes that start together wait for the one that compiles
            if not target.exists():
                _make(found, target)
            return _opened(target)
    except BuildError:
        raise
    except (OSError, RuntimeError) as error:
        raise BuildError(f"{type(error).__name__}: {error}") from error


def _digest(by: Sequence[str]) -> str:
    """Of the source, the compiler and its flags, and the processor: a cache may be shared by several machines."""
    name, features = processor()
    system = (platform.machine(), platform.libc_ver(), name, sorted(features))
    parts = (SOURCE.read_text(), tuple(by), _run([*by, "--version"]).stdout, _FLAGS, _HERE, _THREADS, system)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _make(by: Sequence[str], target: Path) -> None:
    """Compile, with threads if what comes of it finds their runtime here; the library is in place when it is whole."""
    known = [flag for flag in (_HERE, _THREADS) if not _run([*by, flag, "-x", "c++", "-E", os.devnull]).returncode]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kernels-") as directory:
        linked = Path(directory, "kernels.so")
        _compile(by, known, linked)
        if _THREADS in known and not _opens(linked):
            _compile(by, [flag for flag in known if flag != _THREADS], linked)
        sync(linked)
        os.replace(linked, target)


def _compile(by: Sequence[str], flags: Sequence[str], linked: Path) -> None:
    compiled = linked.with_suffix(".o")
    undefined = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    for command in ([*_FLAGS, *flags, "-c", str(SOURCE), "-o", str(compiled)], ["-shared", *undefined, str(compiled), "-o", str(linked)]):
        done = _run([*by, *command])
        if done.returncode:
            raise BuildError(f"{' '.join(by)} does not compile {SOURCE.name}: {done.stderr.strip()[:400]}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{' '.join(command)}: not done after {_SECONDS:g} s") from error


def _opens(path: Path) -> bool:
    try:
        _opened(path)
    except OSError:
        return False
    return True


def _opened(path: Path) -> ctypes.CDLL:
    """torch's own OpenMP runtime comes first in the order of look-up."""
    libraries = Path(torch.__file__).with_name("lib")
    for runtime in sorted(file for pattern in _RUNTIMES for file in libraries.glob(pattern)):
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))
