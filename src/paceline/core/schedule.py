"""A schedule as data: the fields that a preset fills in and the machine reads. Groups, updates and versions are counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Preset = Literal["serial", "pipelined", "streaming", "multiversion"]
AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that the machine needs to know of a run. Validated by `check`, built from the configuration by `config.plan`."""

    preset: Preset
    group_size: int
    groups_per_round: int
    """R: groups generated under one version (serial, pipelined). Elsewhere U x updates_per_publish."""
    groups_per_update: int
    """U."""
    groups_per_dispatch: int
    """D <= U."""
    updates_per_publish: int
    """Serial, pipelined: ceil(R / U)."""
    start_when: Literal["dispatch", "all"]
    """`dispatch`: D trainable groups start the trainer; `all`: U x updates_per_publish of them (serial: the whole round)."""
    total_updates: int
    """The run ends after this many updates."""
    frontier: int | Literal["auto"] | None = None
    """F: at most F x group_size trajectories in flight, in order of submission; None = unlimited (fifo)."""
    refill: Literal["group", "sample"] = "sample"
    staleness: int = 0
    """S of streaming, in versions."""
    overstale: Literal["pace", "retry", "drop"] = "pace"
    at_publish: Literal["keep", "recompute", "drain"] = "drain"
    """Streaming: what happens to unfinished trajectories when a new version goes live."""
    buffer_groups: int = 0
    """Streaming: capacity of the buffer of trainable groups, >= U; 0 elsewhere."""
    granularity: Literal["sample", "group"] = "sample"
    """Streaming: whether single samples or whole groups are submitted when a slot is free."""
    version_window: int = 1
    """W of multiversion."""
    in_flight_groups: int = 0
    """I of multiversion and the cap of streaming, in groups; 0 = whatever the bound allows."""
    no_signal: Literal["keep", "drop", "refill"] = "keep"
    """What happens to a group whose raw outcomes are all equal."""
    refill_limit: int = 3
    """`refill`: at most this many replacements per place in a round. Without rounds prompts are asked for anyway, and it is `drop`."""
    empty_limit: int = 10
    """This many rounds in a row (elsewhere: groups of so many publish periods) without a group to train end the run with an error,
    after a checkpoint; 0 = go on for ever."""
    attempts: int = 3
    """Attempts per trajectory before the failure policy decides."""
    on_failure: Literal["drop_sample", "drop_group", "stop"] = "stop"
    """After the last attempt: train the survivors (at least two), give the group up, or stop the run."""
    in_order: bool = False
    """Consume groups in order of submission (deterministic mode)."""
    evaluate_every: int = 0
    """Updates between evaluations, 0 = never; evaluated at the first publish at or after it."""
    checkpoint_every: int = 0
    """Updates between checkpoints, 0 = only the last."""
    rebalance_seconds: float = 0.0
    """Multiversion: period of the rebalancing timer, 0 = only on events."""
    high_kv_use: float = 0.9
    """Multiversion: share of KV capacity above which an instance is relieved."""
    deadlines: tuple[tuple[str, float], ...] = ()
    """(kind, seconds): a wait of this kind (`presets.DEADLINES`) that lasts longer is named in a Warn; 600 s for kinds not given."""

    @property
    def bound(self) -> int:
        """Largest staleness at consumption, in versions: 0, S or W - 1."""
        return {"serial": 0, "pipelined": 0, "streaming": self.staleness, "multiversion": self.version_window - 1}[self.preset]

    @property
    def groups_per_publish(self) -> int:
        """Groups that one publish period consumes when nothing is filtered: U x updates_per_publish."""
        return self.groups_per_update * self.updates_per_publish


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a restored run continues: exactly what `Checkpoint` carried."""

    update: int = 0
    version: int = 0
    pending: tuple[int, ...] = ()
    next_index: int = 0


def next_due(every: int, updates: int) -> int:
    """When something that comes every so many updates is due after this many: the next multiple of `every`; 0 when it never comes."""
    return (updates // every + 1) * every if every else 0
