"""References to weights and descriptions of instances: small, torch-free, what the core and the wire carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unfinished = Literal["none", "keep", "recompute"]
"""What becomes of work in flight when its weights make way: there is none; it keeps its KV cache; its KV cache is rebuilt."""


@dataclass(frozen=True, slots=True)
class WeightsRef:
    """Names one set of weights. `fingerprint` is a checksum of the tensors as stored; two lineages may differ under one version."""

    version: int
    lineage: int = 0
    fingerprint: str = ""
    kind: Literal["full", "delta", "adapter"] = "full"
    base: str | None = None
    """Fingerprint that a delta or an adapter applies to; None for `full`."""


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One rollout instance and what it can do; a schedule that the instances cannot carry is refused at start."""

    instance: str
    slots: int
    """Trajectories it decodes at the same time."""
    kv_tokens: int = 0
    """Capacity of its KV cache in tokens; 0 = unknown."""
    versions_held: int = 1
    """How many policy versions it can serve side by side."""
    exports_kv: bool = False
    """Can hand over a trajectory with its KV cache, and take one in."""
    speculates: bool = False
    logprobs: Literal["exact", "reported", "none"] = "exact"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One micro-batch: which sequences (position in the dispatch) go to which rank, together. Pure data."""

    rank: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """sequences -> (rank, micro-batch). The result of an update never depends on it (gradients are raw sums)."""

    batches: tuple[PlannedBatch, ...]
