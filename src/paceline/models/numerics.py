"""What decides the bits of a computation beside the program: the build of torch, the processor, what the environment asks of libraries."""

from __future__ import annotations

import hashlib
import os

import torch

from paceline.native.machine import processor

_ORDERS = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
)
"""Variables of the environment by which torch, oneDNN and MKL choose other kernels."""


def numerics() -> dict[str, str]:
    """Name -> value of everything that must be equal for two computations to give the same bits, the number of threads excepted.

    Kernels choose their blocks by instruction set and size of the caches; the build of torch fixes the versions of oneDNN and MKL.
    """
    able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    name, flags = processor()
    features = sorted(feature for feature, value in able.items() if value is True) or sorted(flags)
    caches = ", ".join(f"{cache} {value}" for cache, value in sorted(able.items()) if "cache" in cache)
    orders = ", ".join(f"{name}={os.environ[name]}" for name in _ORDERS if name in os.environ)
    return {
        "torch": f"{torch.__version__}, build {_digest(torch.__config__.show())}",
        "instruction set": f"{torch.backends.cpu.get_cpu_capability()}, features {_digest(' '.join(features))}",
        "processor": f"{able.get('cpu_name', name)}, {caches or 'caches unknown'}",
        "kernels by environment": orders or "as the libraries choose",
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
