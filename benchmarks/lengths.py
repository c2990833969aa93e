"""Workers whose trajectories have the lengths that a benchmark asks for: the real engine, with end-of-sequence ids switched off.

The length of a sample is a pure function of (group, sample), so every schedule generates exactly the same lengths.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from statistics import NormalDist
from time import monotonic
from typing import Any

from paceline.algo.counter import philox
from paceline.cli.wire import workers_of
from paceline.config.memory import kv_tokens_needed
from paceline.config.schema import Config
from paceline.runtime.bodies import RolloutBody
from paceline.runtime.session import Workers


@dataclass(frozen=True)
class Lengths:
    """Lognormal lengths in tokens, cut at both ends."""

    median: float
    sigma: float
    """Standard deviation of the logarithm: 1 is a long tail."""
    least: int
    most: int

    def of(self, group: int, sample: int) -> int:
        """Tokens of one sample."""
        word = int(philox([group, 0, sample, 0], [20, 26])[0])
        normal = NormalDist().inv_cdf((word + 0.5) / 2**32)
        return min(self.most, max(self.least, round(self.median * exp(self.sigma * normal))))


class FixedLengths(RolloutBody):
    """A rollout worker that gives every request the length it shall have."""

    def __init__(self, engine: Any, lengths: Lengths) -> None:
        super().__init__(engine)
        self._lengths = lengths

    def call(self, method: str, *arguments: Any) -> Any:
        """As a rollout worker does, but for the lengths."""
        if method == "submit":
            (requests,) = arguments
            arguments = ([self._fixed(request) for request in requests],)
        return super().call(method, *arguments)

    def _fixed(self, request: Any) -> Any:
        return replace(request, sampling=replace(request.sampling, max_tokens=self._lengths.of(request.group, request.sample)))


def rollout_body(config: Config, instance: str, lengths: Lengths) -> FixedLengths:
    """Factory of the worker: the real model, without an end-of-sequence id."""
    from paceline.engines.torch_engine import TorchEngine
    from paceline.models.load import load, load_tokenizer
    from paceline.native.calls import kernels

    loaded = load(config.model)
    tokenizer, rollout = load_tokenizer(loaded.directory), config.rollout
    engine = TorchEngine(
        replace(loaded, eos_ids=()),
        instance=instance,
        slots=rollout.slots,
        kv_tokens=rollout.slots * kv_tokens_needed(rollout.max_prompt_tokens, rollout.max_tokens),
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        clock=monotonic,
        kernels=kernels(rollout.kernels),
    )
    return FixedLengths(engine, lengths)


def workers(config: Config, lengths: Lengths) -> Workers:
    """The configuration's own workers, with such engines."""
    usual = workers_of(config)
    rollout = [replace(spec, factory="lengths:rollout_body", arguments={**spec.arguments, "lengths": lengths}) for spec in usual.rollout]
    return replace(usual, rollout=tuple(rollout))


def noise(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """A reward that differs within every group, so that every token is trained on, whatever the model says: noise from the ids."""
    return [zlib.crc32(repr(list(map(int, ids))).encode()) / 2**32 for ids in completion_ids]


REWARD: Mapping[str, Any] = {"kind": "function", "function": f"{Path(__file__)}:noise"}
"""`[[reward]]` of a configuration that trains on noise."""
