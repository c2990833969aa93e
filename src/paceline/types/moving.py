"""What travels with a trajectory from one engine to another, apart from its KV cache: the plain part of every state file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.types.records import Request, Sampling


@dataclass(frozen=True, slots=True)
class Carried:
    """A trajectory on its way. The columns have one value per token sampled so far."""

    request: Request
    version: int
    """Policy version that samples its next token."""
    tokens: list[int]
    logprobs: list[float]
    kept: list[float]
    versions: list[int]
    """Policy version that sampled each token."""
    seconds: float | None
    """Seconds since it first ran; None = it never did."""

    @property
    def key(self) -> tuple[int, int]:
        """(group, sample)."""
        return self.request.group, self.request.sample

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `of_json` makes it again exactly."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "request"}
        request = asdict(self.request) | {"prompt_ids": self.request.prompt_ids.tolist()}
        return plain | {"request": request}

    @staticmethod
    def of_json(plain: Mapping[str, Any]) -> Carried:
        """The trajectory; KeyError or TypeError for anything but what `as_json` gives."""
        request = dict(plain["request"])
        sampling = dict(request["sampling"])
        sampling |= {name: tuple(sampling[name]) for name in ("stop", "stop_ids")}
        request |= {"sampling": Sampling(**sampling), "prompt_ids": np.array(request["prompt_ids"], dtype=np.int32)}
        return Carried(**{**plain, "request": Request(**request)})
