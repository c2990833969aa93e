"""From C++ to a library for this machine: compiled once into the cache, found again by a digest of all that decides its code."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from paceline.durable import alone, cache_directory, sync
from paceline.native.machine import compiler, processor

SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.cpp", "gradients.cpp", "pages.cpp", "training.cpp"))
HEADERS = tuple(SOURCES[0].with_name(name) for name in ("common.h", "tiles.h", "products.h"))
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
    A file that is damaged or cannot be opened is made again.
    """
    try:
        found = compiler()
        if found is None:
            raise BuildError(f"no C++ compiler ({os.environ.get('CXX') or 'g++ or clang++'}) on the path")
        directory, code = cache_directory(), _digest(found)
        if (ready := _ready(directory, code)) is not None:
            return ready
        directory.mkdir(parents=True, exist_ok=True)
        with alone(directory / ".kernels.lock"):  # processes that start together wait for the one that compiles
            return _ready(directory, code) or _opened(_make(found, directory, code))
    except BuildError:
        raise
    except (OSError, RuntimeError) as error:
        raise BuildError(f"{type(error).__name__}: {error}") from error


def _ready(directory: Path, code: str) -> ctypes.CDLL | None:
    """The library of this code in the cache; None where there is none whose bytes are those its name tells, and that can be opened.

    To open a part of one would end the process: the system kills who reads behind the end of a mapped file.
    """
    for path in sorted(directory.glob(f"kernels-{code}-*.so")):
        with suppress(OSError):
            if path.stem.endswith(f"-{_short(path.read_bytes())}"):
                return _opened(path)
    return None


def _digest(by: Sequence[str]) -> str:
    """Of the source, the compiler and its flags, and the processor: a cache may be shared by several machines."""
    name, features = processor()
    system = (platform.machine(), platform.libc_ver(), name, sorted(features))
    parts = (
        [path.read_text() for path in (*HEADERS, *SOURCES)],
        tuple(by),
        _run([*by, "--version"]).stdout,
        _FLAGS,
        _HERE,
        _THREADS,
        system,
    )
    return _short(repr(parts).encode())


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _make(by: Sequence[str], cache: Path, code: str) -> Path:
    """Compile, with threads if what comes of it finds their runtime here; the library is in place when it is whole."""
    known = [flag for flag in (_HERE, _THREADS) if not _run([*by, flag, "-x", "c++", "-E", os.devnull]).returncode]
    with tempfile.TemporaryDirectory(dir=cache, prefix=".kernels-") as directory:
        linked = Path(directory, "kernels.so")
        _compile(by, known, linked)
        if _THREADS in known and not _opens(linked):
            _compile(by, [flag for flag in known if flag != _THREADS], linked)
        sync(linked)
        target = cache / f"kernels-{code}-{_short(linked.read_bytes())}.so"
        os.replace(linked, target)
        return target


def _compile(by: Sequence[str], flags: Sequence[str], linked: Path) -> None:
    objects = [str(linked.with_name(f"{source.stem}.o")) for source in SOURCES]
    commands = [[*by, *_FLAGS, *flags, "-c", str(source), "-o", made] for source, made in zip(SOURCES, objects, strict=True)]
    undefined = ["-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else []
    with ThreadPoolExecutor(len(SOURCES)) as side_by_side:
        done = [*side_by_side.map(_run, commands)]
    if not any(one.returncode for one in done):
        done = [_run([*by, "-shared", *undefined, *objects, "-o", str(linked)])]
    for one in done:
        if one.returncode:
            raise BuildError(f"{' '.join(by)} does not compile the kernels: {one.stderr.strip()[:400]}")


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
