"""What a trainer worker runs. Synchronous; one thread calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from paceline.types.progress import ProbeReport, UpdateReport
from paceline.types.records import ScoredGroup
from paceline.types.weights import WeightsRef


class Trainer(Protocol):
    """Gradients are raw sums until `step` scales them once by the true denominator of everything accumulated."""

    def accumulate(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Forward and backward of whole groups; returns metrics of this dispatch."""

    def step(self) -> UpdateReport:
        """Scale, clip, optimizer step, zero gradients. A non-finite value skips the step (`applied` False)."""


class Publishes(Protocol):
    """A trainer that makes its weights available."""

    def publish(self, version: int, location: str) -> WeightsRef:
        """Write the weights in serving dtype as a safetensors file, atomically; return their reference."""

    def probe(self, ids: Sequence[int]) -> ProbeReport:
        """Score fixed tokens with the weights last published, in serving dtype."""

    def export(self, directory: str) -> None:
        """Write a Hugging Face directory (config, tokenizer, safetensors) that AutoModelForCausalLM loads."""


class Checkpoints(Protocol):
    """A trainer whose state can be saved and restored."""

    def save(self, directory: str) -> None:
        """Write master weights, optimizer and scheduler state into an existing directory, fsynced."""

    def restore(self, directory: str) -> None:
        """Read what `save` wrote; raises CheckpointError with the file when something is missing or damaged."""
