"""The automatic frontier: how many groups to have in flight, by going through the rounds before again (docs/design/frontier.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from paceline.core.costs import DecodeCost
from paceline.core.schedule import Schedule

KEPT = 2
"""Rounds remembered."""
NEAR = 1.01
"""Of the frontiers whose time is within this factor of the best, the largest is chosen."""
FINER = 1.25
"""Ratio of one frontier that is tried to the next."""
MOST = 1024
"""Trajectories that are gone through: of a larger round every so many groups stand for all."""
SPREAD = 0.05
"""A step's cost is fitted once the observed numbers of sequences deviate by this share of their mean."""
LEAST = 0.05
"""Share of the mean step that is taken to be its base at least: without one, a few sequences would look as fast as many."""

Lengths = tuple[tuple[int, ...], ...]
"""Sampled tokens of every trajectory of a round, by group, in order of submission."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the rounds before say of the next one. Lengths in tokens, times in seconds."""

    group_size: int
    groups_per_round: int
    groups_per_update: int
    groups_per_dispatch: int
    by_group: bool
    """`refill = group`."""
    slots: int
    """Of all instances together."""
    instances: int
    decode: DecodeCost
    """A step; what contexts cost lies in its share per sequence."""
    group_seconds: float
    """Trainer time per group."""
    rounds: tuple[Lengths, ...]


def round_seconds(load: Load, lengths: Lengths, frontier: int) -> float:
    """From the start of a round with these lengths to the end of its training, F = `frontier`."""
    thin = max(1, -(-len(lengths) * load.group_size // MOST))
    ready = list(_served(load, lengths[::thin], frontier, thin))
    dispatch = max(1, load.groups_per_dispatch // thin)
    end = 0.0
    for first in range(0, len(ready), dispatch):
        batch = ready[first : first + dispatch]
        end = max(end, batch[-1]) + len(batch) * thin * load.group_seconds
    return end


def _served(load: Load, groups: Lengths, frontier: int, thin: int) -> Iterator[float]:
    """When each group is serving-complete, in that order. `thin`: groups that each of these stands for."""
    together = max(1, frontier // thin) if load.by_group else len(groups)
    most = max(1, min(frontier * load.group_size, load.slots) // thin)
    before, now = 0, 0.0
    for step, running, complete in ends(groups, most, together):
        now += (step - before) * load.decode.step(running * thin / load.instances, 0.0)
        before = step
        if complete:
            yield now


def ends(groups: Sequence[Sequence[int]], slots: int, together: int) -> Iterator[tuple[int, int, bool]]:
    """Of every trajectory, in order: the step after which it ends, how many decoded until then, and whether its group is complete then.

    They start in order, `slots` at a time, of `together` groups at a time. All that decode take their steps together: one that joins at
    step k with t tokens to go ends at step k + t, whatever the others do.
    """
    waiting = deque((index, tokens) for index, group in enumerate(groups) for tokens in group)
    left = [len(group) for group in groups]
    running: list[tuple[int, int]] = []
    step, done = 0, 0
    while waiting or running:
        _fill(waiting, running, step, slots, done + together)
        many = len(running)
        step, index = heappop(running)
        left[index] -= 1
        done += not left[index]
        yield step, many, not left[index]


def _fill(waiting: deque[tuple[int, int]], running: list[tuple[int, int]], step: int, most: int, before: int) -> None:
    """Start what waits, up to `most` trajectories and of groups `before` that one only."""
    while waiting and len(running) < most and waiting[0][0] < before:
        index, tokens = waiting.popleft()
        heappush(running, (step + tokens, index))


def candidates(load: Load) -> list[int]:
    """The frontiers that are tried: U, then each about a quarter larger, up to R."""
    tried = [load.groups_per_update]
    while tried[-1] < load.groups_per_round:
        tried.append(min(load.groups_per_round, max(tried[-1] + 1, round(tried[-1] * FINER))))
    return tried


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a choice was made by, in seconds: rounds are means over those gone through."""

    seconds: float
    """A round with the frontier chosen, from its start to the end of its training."""
    fifo_seconds: float
    """The same round without a frontier."""
    rounds: int
    """Rounds gone through."""
    step_seconds: float
    """A decode step without sequences."""
    sequence_seconds: float
    """What each sequence adds to it."""
    group_seconds: float
    """Training, per group."""

    def __str__(self) -> str:
        rounds = "round" if self.rounds == 1 else f"{self.rounds} rounds"
        spent = f"{self.seconds:.3g} s by the lengths of the last {rounds} (fifo {self.fifo_seconds:.3g} s)"
        steps = f"steps {self.step_seconds:.3g} s + {self.sequence_seconds:.3g} s per sequence"
        return f"{spent}, {steps}, training {self.group_seconds:.3g} s per group"


def choose(load: Load) -> tuple[int, Forecast]:
    """F for a round like those before, and what it is chosen by.

    The largest F whose time is near the best: too small a frontier costs more than too large a one.
    """
    seconds = {f: sum(round_seconds(load, lengths, f) for lengths in load.rounds) / len(load.rounds) for f in candidates(load)}
    enough = NEAR * min(seconds.values())
    chosen = max(f for f, spent in seconds.items() if spent <= enough)
    costs = load.decode.base, load.decode.per_sequence, load.group_seconds
    return chosen, Forecast(seconds[chosen], seconds[load.groups_per_round], len(load.rounds), *costs)


class Meter:
    """What `Load` needs: lengths of the last rounds, and running sums in which older rounds count less."""

    __slots__ = ("_decode", "_groups", "_lengths", "_rounds", "_seconds", "_steps")

    def __init__(self) -> None:
        self._lengths: dict[int, list[int]] = {}
        self._rounds: tuple[Lengths, ...] = ()
        self._steps = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._decode: DecodeCost | None = None
        self._groups = self._seconds = 0.0

    def step(self, running: float, seconds: float) -> None:
        """One observation of decode steps: `running` sequences on average, seconds per step."""
        n, x, y, xx, xy = self._steps
        self._steps = (n + 1, x + running, y + seconds, xx + running * running, xy + running * seconds)

    def trajectory(self, order: int, tokens: int) -> None:
        """A trajectory of so many sampled tokens finished; its group was submitted as number `order`."""
        self._lengths.setdefault(order, []).append(tokens)

    def dispatch(self, groups: int, seconds: float) -> None:
        """The trainer took so long for so many groups."""
        self._groups += groups
        self._seconds += seconds

    def new_round(self) -> None:
        """The round before joins those that are remembered; in the sums every round halves the weight of older ones."""
        if self._lengths:
            lengths = tuple(tuple(tokens) for _, tokens in sorted(self._lengths.items()))
            self._rounds = (lengths, *self._rounds[: KEPT - 1])
        self._lengths = {}
        self._decode = self._fit() or self._decode
        self._steps = tuple(value / 2 for value in self._steps)  # type: ignore[assignment]
        self._groups, self._seconds = self._groups / 2, self._seconds / 2

    def load(self, schedule: Schedule, slots: int, instances: int) -> Load | None:
        """What was measured until the last `new_round`; None while too little is known."""
        if self._decode is None or not (self._rounds and self._groups and instances):
            return None
        s = schedule
        sizes = s.group_size, s.groups_per_round, s.groups_per_update, s.groups_per_dispatch
        return Load(*sizes, s.refill == "group", slots, instances, self._decode, self._seconds / self._groups, self._rounds)

    def _fit(self) -> DecodeCost | None:
        """Least squares of seconds per step over sequences, neither share below what is plausible; None where all numbers are alike."""
        n, x, y, xx, xy = self._steps
        spread = n * xx - x * x
        if spread <= SPREAD**2 * x * x:
            return None
        slope = max(0.0, (n * xy - x * y) / spread)
        base = max(LEAST * y, y - slope * x) / n
        return DecodeCost(base, (y - n * base) / x)
