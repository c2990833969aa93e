"""The automatic frontier: how many groups to have in flight, from what the rounds before measured (docs/design/frontier.md)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from paceline.core.costs import DecodeCost


@dataclass(frozen=True, slots=True)
class Load:
    """What one round looks like, measured. Lengths in tokens, times in seconds."""

    group_size: int
    groups_per_round: int
    groups_per_update: int
    slots: int
    """Of all instances together."""
    instances: int
    decode: DecodeCost
    context: float
    """Mean context of a decoding sequence; 0 when the cost already contains it."""
    mean_length: float
    """m: mean sampled tokens per trajectory."""
    mean_longest: float
    """M: mean of the groups' longest."""
    update_seconds: float
    """Trainer time per update of U groups."""


def rate(load: Load, frontier: int) -> float:
    """r(F): groups per second with F groups in flight. n = min(F x group_size x m / M, slots) sequences run on average."""
    running = min(frontier * load.group_size * load.mean_length / load.mean_longest, load.slots)
    step = load.decode.step(running / load.instances, load.context)
    return running / (load.group_size * load.mean_length * step)


def choose(load: Load) -> int:
    """The smallest F >= U with r(F) >= min(1.2 U / t_update, 0.95 r(R)), at most R: generation just outruns training."""
    least, most = load.groups_per_update, load.groups_per_round
    enough = 0.95 * rate(load, most)
    if load.update_seconds > 0:
        enough = min(enough, 1.2 * load.groups_per_update / load.update_seconds)
    # r grows with F: steps take a + n b, so n / step(n) rises.
    return least + bisect_left(range(least, most), enough, key=lambda frontier: rate(load, frontier))


class Meter:
    """Running sums of what `Load` needs. A new round halves the weight of those before; a fit needs two batch sizes."""

    __slots__ = ("_groups", "_lengths", "_longest", "_steps", "_trajectories", "_update_groups", "_update_seconds")

    def __init__(self) -> None:
        self._steps = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._trajectories = self._lengths = 0.0
        self._groups = self._longest = 0.0
        self._update_groups = self._update_seconds = 0.0

    def step(self, running: float, seconds: float) -> None:
        """One observation of decode steps: `running` sequences on average, seconds per step."""
        n, x, y, xx, xy = self._steps
        self._steps = (n + 1, x + running, y + seconds, xx + running * running, xy + running * seconds)

    def trajectory(self, tokens: int) -> None:
        """A trajectory of so many sampled tokens finished."""
        self._trajectories += 1
        self._lengths += tokens

    def group(self, longest: int) -> None:
        """A group is serving-complete; tokens of its longest trajectory."""
        self._groups += 1
        self._longest += longest

    def dispatch(self, groups: int, seconds: float) -> None:
        """The trainer took so long for so many groups."""
        self._update_groups += groups
        self._update_seconds += seconds

    def new_round(self) -> None:
        """Older rounds count half."""
        self._steps = tuple(value / 2 for value in self._steps)  # type: ignore[assignment]
        self._trajectories, self._lengths = self._trajectories / 2, self._lengths / 2
        self._groups, self._longest = self._groups / 2, self._longest / 2
        self._update_groups, self._update_seconds = self._update_groups / 2, self._update_seconds / 2

    def load(self, group_size: int, groups_per_round: int, groups_per_update: int, slots: int, instances: int) -> Load | None:
        """What was measured; None while too little is known."""
        decode = self._fit()
        if decode is None or not (self._lengths and self._longest and self._update_groups and slots and instances):
            return None
        seconds = self._update_seconds / self._update_groups * groups_per_update
        mean, longest = self._lengths / self._trajectories, self._longest / self._groups
        return Load(group_size, groups_per_round, groups_per_update, slots, instances, decode, 0.0, mean, longest, seconds)

    def _fit(self) -> DecodeCost | None:
        """Least squares of seconds per step over sequences, both coefficients kept positive."""
        n, x, y, xx, xy = self._steps
        spread = n * xx - x * x
        if n == 0 or spread <= 1e-9 * n * xx:
            return None
        slope = max(0.0, (n * xy - x * y) / spread)
        base = (y - slope * x) / n
        if base <= 0:
            base, slope = 0.0, xy / xx
        return DecodeCost(base, slope)
