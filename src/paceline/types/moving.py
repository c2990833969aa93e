"""What travels with a trajectory from one engine to another, apart from its KV cache: the plain part of every state file, as JSON."""

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
        return plain | {"request": plain_request(self.request)}

    @staticmethod
    def of_json(plain: Mapping[str, Any]) -> Carried:
        """The trajectory; KeyError or TypeError for anything but what `as_json` gives."""
        return Carried(**{**plain, "request": request_of(plain["request"])})


def plain_request(request: Request) -> dict[str, Any]:
    """A request as plain values, from which `request_of` makes it again exactly."""
    return asdict(request) | {"prompt_ids": request.prompt_ids.tolist()}


def request_of(plain: Mapping[str, Any]) -> Request:
    """The request; KeyError or TypeError for anything but what `plain_request` gives."""
    sampling = dict(plain["sampling"])
    sampling |= {name: tuple(sampling[name]) for name in ("stop", "stop_ids")}
    return Request(**{**plain, "sampling": Sampling(**sampling), "prompt_ids": np.array(plain["prompt_ids"], dtype=np.int32)})
