"""What this machine has for the kernels, told without loading torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NEEDED = {"bfloat16": "avx512_bf16", "float32": "avx512f"}
"""Feature of the processor with which products of a dtype are made by the kernels; elsewhere by torch's libraries."""


def compiler() -> str | None:
    """$CXX, or the first C++ compiler on the path."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((found for name in wanted if (found := shutil.which(name))), None)


def panels(dtype: str, processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether kernels that are compiled here hold weights of this dtype in panels of their own."""
    if compiler() is None or not processor.is_file():
        return False
    flags = next((line for line in processor.read_text().splitlines() if line.startswith("flags")), "")
    return NEEDED.get(dtype, "no such feature") in flags.split()
