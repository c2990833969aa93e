"""What this machine has for the kernels, told without loading torch."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from pathlib import Path

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
"""Sizes of heads that attention is compiled for."""
LONGEST_PAGE = 64
"""Tokens of a page, at most."""
MOST_INPUTS = 16384
"""Of a matrix; a panel of more does not stay in a core's cache."""
_NEEDED = {"bfloat16": "avx512_bf16", "float32": "avx512f"}
"""Feature of the processor with which products of a dtype are made by the kernels; elsewhere by torch's libraries."""
_PROCESSOR = Path("/proc/cpuinfo")


def compiler() -> list[str] | None:
    """The C++ compiler as the beginning of a command: $CXX, or the first one on the path. None, too, where $CXX is no command."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # a quotation without its end
        return None
    wanted = [named] if named else [["g++"], ["clang++"], ["c++"]]
    return next(([found, *arguments] for name, *arguments in wanted if (found := shutil.which(name))), None)


def processor(source: Path = _PROCESSOR) -> tuple[str, frozenset[str]]:
    """Its name and its features, as Linux tells them; elsewhere the kind of machine, and none."""
    if not source.is_file():
        return platform.machine(), frozenset()
    pairs = (line.partition(":") for line in source.read_text(errors="replace").splitlines())
    told = {name.strip(): value.strip() for name, _, value in reversed(list(pairs))}
    return told.get("model name", platform.machine()), frozenset(told.get("flags", told.get("Features", "")).split())


def panels(dtype: str, head_dim: int, inputs: int, source: Path = _PROCESSOR) -> bool:
    """Whether kernels that are compiled here hold the weights of such a model in panels. inputs: of its widest matrix."""
    fits = head_dim in HEAD_DIMS and inputs <= MOST_INPUTS and dtype in _NEEDED
    return fits and compiler() is not None and _NEEDED[dtype] in processor(source)[1]
