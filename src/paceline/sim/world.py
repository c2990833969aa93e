"""What a simulated run meets: instances, lengths, durations and everything that goes wrong, as data.

Chance is a hash of (seed, what, who): a trajectory has the same length, and fails alike, under every schedule and in every order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from paceline.core.costs import DecodeCost
from paceline.types.weights import InstanceInfo

_MASK = (1 << 64) - 1
LENGTH, FAILURE, FAIL_WHEN, LATE, SIGNAL, DROP, REWARD, REWARD_FAILURE, SURVIVORS, LOAD, MOVE = range(11)
"""What a number is drawn for."""


def draw(*key: int) -> float:
    """A number in [0, 1) that depends on the key alone (splitmix64 over its parts)."""
    x = 0
    for part in key:
        x = (x + part + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distribution of the tokens of a trajectory. `long_tail`: lognormal of the given mean, cut at `most`."""

    kind: Literal["fixed", "uniform", "long_tail"] = "uniform"
    mean: int = 100
    most: int = 1000
    sigma: float = 1.0
    """Deviation of the logarithm of a `long_tail`."""

    def at(self, u: float) -> int:
        """Tokens (1..most) at the quantile u in [0, 1); `uniform` is over 1..2 x mean."""
        if self.kind == "fixed":
            return min(self.mean, self.most)
        if self.kind == "uniform":
            return min(1 + int(u * 2 * self.mean), self.most)
        # Box-Muller needs two numbers; the second comes from the low digits of the first.
        u, v = max(u, 1e-12), (u * 1e6) % 1.0
        normal = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)
        return max(1, min(self.most, round(self.mean * math.exp(self.sigma * normal - self.sigma**2 / 2))))


@dataclass(frozen=True, slots=True)
class FakeInstance:
    """An instance with `slots` trajectories that decode side by side, a token each per step."""

    name: str
    slots: int = 8
    speed: float = 100.0
    """Steps per second, but for what each trajectory adds."""
    per_sequence: float = 0.0
    """Seconds that each trajectory adds to a step."""
    comes: float = 0.0
    """When it first comes up, seconds."""
    outages: tuple[tuple[float, float], ...] = ()
    """(lost at, back at), ascending."""
    versions_held: int = 1
    exports_kv: bool = True
    kv_tokens: int = 0

    @property
    def decode(self) -> DecodeCost:
        """What a step takes."""
        return DecodeCost(1.0 / self.speed, self.per_sequence)

    def info(self) -> InstanceInfo:
        """What the machine learns of it."""
        return InstanceInfo(self.name, self.slots, self.kv_tokens, self.versions_held, self.exports_kv)


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the machine. Durations in seconds, chances in 0..1; 0 turns a kind of trouble off."""

    instances: tuple[FakeInstance, ...] = (FakeInstance("i0"),)
    seed: int = 0
    prompts: int | None = None
    """Length of the data order; None = endless."""
    end_early: bool = False
    """DataEnded comes with the last prompts instead of at the next request."""
    lengths: Lengths = Lengths()
    failure: float = 0.0
    """An attempt ends in TrajectoryFailed."""
    late: float = 0.0
    """A trajectory of a lost instance answers all the same, after the loss; an answer comes twice."""
    no_signal: float = 0.0
    dropped: float = 0.0
    """A group comes back with `drop`."""
    lost_rewards: float = 0.0
    """A group comes back without its first sample (and with `drop` when fewer than two remain)."""
    reward_failure: float = 0.0
    """Materialize fails."""
    load_failure: float = 0.0
    migrate_failure: float = 0.0
    prompt_seconds: float = 0.01
    reward_seconds: float = 0.1
    slow_reward: float = 0.0
    """Chance of a reward that takes 50 times as long."""
    group_seconds: float = 0.2
    """Forward and backward of one group."""
    update_seconds: float = 0.05
    publish_seconds: float = 0.1
    load_seconds: float = 0.1
    migrate_seconds: float = 0.05
    evaluate_seconds: float = 1.0
    checkpoint_seconds: float = 0.5
    timer: float = 0.0
    """Period of Timer, 0 = none."""
    report: float = 0.0
    """Period of every instance's InstanceReport, 0 = none."""
    stop: tuple[float, Literal["checkpoint", "now"]] | None = None
    """A user asks to stop at this time."""
    kill_at: float = math.inf
    """The controller is killed at this time: the trace just ends."""

    def chance(self, probability: float, what: int, *who: int) -> bool:
        """Whether something of this probability happens to `who`."""
        return probability > 0 and draw(self.seed, what, *who) < probability

    def tokens(self, group: int, sample: int) -> int:
        """Length of a trajectory, the same in every attempt."""
        return self.lengths.at(draw(self.seed, LENGTH, group, sample))
