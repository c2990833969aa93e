"""From `kernels.cpp` to a library for this machine: compiled once into the cache, found again by a digest of all that decides its code."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import torch

from paceline.native.machine import compiler

SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC")
_VARIANTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
"""Tried in turn: compilers differ in how they name this processor, and some come without OpenMP."""
_SECONDS = 300.0


class BuildError(RuntimeError):
    """No library could be made; the text says what is missing or what the compiler said."""


def library() -> ctypes.CDLL:
    """The compiled kernels, in $PACELINE_CACHE, by default ~/.cache/paceline. BuildError where they cannot be had.

    Threads are those of torch: the library is linked without a runtime of its own and takes the functions of the one in this process.
    """
    found = compiler()
    if found is None:
        raise BuildError(f"no C++ compiler ({os.environ.get('CXX') or 'g++ or clang++'}) on the path")
    cache = Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()
    target = cache / f"kernels-{_digest(found)}.so"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".kernels.lock").open("w") as handle:  # processes that start together wait for the one that compiles
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not target.exists():
                _make(found, target)
        return _opened(target)
    except OSError as error:
        raise BuildError(f"{target}: {error}") from error


def _digest(by: str) -> str:
    """Of the source, the compiler and its flags, and the processor: a cache may be shared by several machines."""
    version = _run([by, "--version"]).stdout
    able = sorted(f"{name} {value}" for name, value in torch.cpu.get_capabilities().items())
    parts = (SOURCE.read_text(), by, version, _FLAGS, _VARIANTS, platform.platform(), able)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _make(by: str, target: Path) -> None:
    """Compile with the first flags that the compiler knows; the library is in place when it is whole."""
    said = []
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kernels-") as directory:
        compiled, linked = Path(directory, "kernels.o"), Path(directory, "kernels.so")
        for variant in _VARIANTS:
            made = _run([by, *_FLAGS, *variant, "-c", str(SOURCE), "-o", str(compiled)])
            if not made.returncode:
                undefined = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
                made = _run([by, "-shared", *undefined, str(compiled), "-o", str(linked)])
            if not made.returncode:
                os.replace(linked, target)
                return
            said.append(f"{' '.join(variant) or 'without further flags'}: {made.stderr.strip()[:400]}")
    raise BuildError(f"{by} does not compile {SOURCE.name}: {said[-1]}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{' '.join(command)}: not done after {_SECONDS:g} s") from error


def _opened(path: Path) -> ctypes.CDLL:
    """torch's own OpenMP runtime comes first in the order of look-up."""
    for runtime in sorted(Path(torch.__file__).with_name("lib").glob("lib*omp*.so*")):
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))
