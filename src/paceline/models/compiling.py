"""torch.compile for the parts of a decoder that lie between attentions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

from paceline.types.errors import ModelError

_HOW: dict[str, Any] = {
    "dynamic": True,
    "fullgraph": True,
    "options": {
        "emulate_precision_casts": True,  # round to bfloat16 wherever the parts do: the engine computes them uncompiled
        "compile_threads": 1,  # helper processes would hold memory, and cores that are in use
    },
}


def compile_parts(device: torch.device, *parts: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The parts, each compiled at its first call for tensors of any first dimension.

    ModelError where this machine cannot compile: no C++ compiler, or what torch said of one line, tried now.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise ModelError(f"trainer.compile = true needs a C++ compiler: {compiler!r} is not on the PATH (the variable CXX names another)")
    try:
        torch.compile(_trial, **_HOW)(torch.ones(2, device=device))
    except RuntimeError as error:
        raise ModelError(f"trainer.compile = true: this machine cannot compile one line; {error}") from error
    return [torch.compile(part, **_HOW) for part in parts]


def _trial(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1
