"""A fake instance that decodes: one counter of tokens and a heap of the counts at which its trajectories end.

All trajectories on an instance take their steps together. One that joins at count k with t tokens to go ends at count k + t, whatever
joins or leaves in between; only how fast the counter runs depends on how many there are. So nothing happens per step of decoding, and a
change costs one heap operation.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from paceline.core.commands import Admit
from paceline.sim.world import FakeInstance

Attempt = tuple[int, int, int]
"""(group, sample, attempt)."""


class Run:
    """A trajectory: `left` tokens to go while it decodes nowhere."""

    __slots__ = ("admit", "end", "ended", "high", "instance", "left", "lost", "low", "tokens")

    def __init__(self, admit: Admit, instance: Instance, tokens: int) -> None:
        self.admit = admit
        self.instance = instance
        self.low = self.high = admit.version
        self.tokens = tokens
        self.left = float(tokens)
        self.end = 0.0
        """Count of its instance at which it ends."""
        self.ended = False
        self.lost = False
        """It ended with its instance."""

    @property
    def key(self) -> Attempt:
        """(group, sample, attempt)."""
        return self.admit.group, self.admit.sample, self.admit.attempt


class Instance:
    """A fake instance while it is up. `now` never falls; times in seconds, counts in tokens per trajectory."""

    __slots__ = ("_ends", "_order", "busy", "count", "now", "reported", "runs", "sampled", "spec", "turn", "up", "version")

    def __init__(self, spec: FakeInstance, now: float) -> None:
        self.spec = spec
        self.up = True
        self.version = -1
        self.runs: dict[Attempt, Run] = {}
        self.now = now
        self.count = 0.0
        """Decode steps so far."""
        self.sampled = self.busy = 0.0
        """Tokens of all trajectories so far, and seconds spent on them."""
        self.reported = (0.0, 0.0, 0.0)
        """`count`, `sampled` and `busy` at the report before."""
        self.turn = 0
        """Counts changes: a finishing time computed before one is void."""
        self._ends: list[tuple[float, int, Run]] = []
        self._order = count()

    def progress(self, now: float) -> None:
        """Decode until `now`."""
        if self.runs:
            seconds, running = now - self.now, len(self.runs)
            steps = seconds / self.spec.decode.step(running, 0.0)
            self.count += steps
            self.sampled += steps * running
            self.busy += seconds
        self.now = now

    def join(self, run: Run, now: float) -> None:
        """A trajectory starts, or goes on here."""
        self.progress(now)
        self.turn += 1
        run.instance = self
        run.end = self.count + run.left
        self.runs[run.key] = run
        heappush(self._ends, (run.end, next(self._order), run))

    def leave(self, run: Run, now: float) -> None:
        """A trajectory ends, or goes elsewhere."""
        self.progress(now)
        self.turn += 1
        run.left = self.left(run)
        del self.runs[run.key]

    def left(self, run: Run) -> float:
        """Tokens that a trajectory here has to go."""
        return max(0.0, run.end - self.count)

    def next(self) -> tuple[float, Run] | None:
        """When a trajectory ends if nothing changes before, and which."""
        ends = self._ends
        while ends:
            end, _, run = ends[0]
            if self.runs.get(run.key) is run and run.end == end:
                return self.now + self.left(run) * self.spec.decode.step(len(self.runs), 0.0), run
            heappop(ends)
        return None

    def load(self) -> tuple[float, float]:
        """(tokens per second, trajectories together on average over the steps) since the report before; zeros when it did not decode."""
        present = (self.count, self.sampled, self.busy)
        steps, tokens, seconds = (new - old for new, old in zip(present, self.reported, strict=True))
        self.reported = present
        return (tokens / seconds, tokens / steps) if seconds > 0 else (0.0, 0.0)
