"""What decodes together in an emulated instance: a counter of steps, a heap of the counts at which trajectories end, and running sums."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.types.records import Purpose, Request

Key = tuple[Purpose, int, int, int]
"""(purpose, group, sample, attempt)."""


@dataclass(slots=True, eq=False)
class Counted:
    """A trajectory, by counts alone."""

    request: Request
    length: int
    """Tokens that it will have."""
    cut: bool
    """It ends because of its limit."""
    versions: list[tuple[int, int]]
    """(index of the first token, version that samples from there on)."""
    numbers: tuple[float, ...]
    """The request's own uniform numbers."""
    done: int = 0
    """Tokens sampled when it joined what runs here; all of them while it waits."""
    kv: bool = False
    """Whether it waits with its KV cache, its prompt's included."""
    started: float | None = None
    joined: int = 0
    """Count at which it joined."""
    ticket: int = -1
    """Order of its admission, -1 while it waits."""

    @property
    def version(self) -> int:
        """Of its next token."""
        return self.versions[-1][1]

    @property
    def key(self) -> Key:
        """Who it is."""
        return self.request.purpose, self.request.group, self.request.sample, self.request.attempt

    @property
    def prompt(self) -> tuple[Purpose, int]:
        """Whose prompt it continues: shared by the samples of its group."""
        return self.request.purpose, self.request.group

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""
        return len(self.request.prompt_ids)


@dataclass(slots=True)
class Batch:
    """One token for each per step. Every sum is kept up to date, so no method looks at all trajectories."""

    capacity: int
    """KV tokens."""
    jobs: dict[Key, Counted] = field(default_factory=dict)
    """In order of admission."""
    versions: Counter[int] = field(default_factory=Counter)
    """Trajectories by version."""
    count: int = 0
    """Steps taken."""
    context: int = 0
    """Tokens that the next step attends to."""
    own: int = 0
    """KV tokens of trajectories."""
    shared: int = 0
    """KV tokens of prompts, once per group."""
    _users: Counter[tuple[Purpose, int]] = field(default_factory=Counter)
    _ends: list[tuple[int, int, Counted]] = field(default_factory=list)
    _tickets: itertools.count[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        """Trajectories."""
        return len(self.jobs)

    @property
    def free(self) -> int:
        """KV tokens left."""
        return self.capacity - self.own - self.shared

    def fresh(self, job: Counted) -> int:
        """KV tokens of its prompt, 0 where it lies in memory for another sample."""
        return 0 if self._users[job.prompt] else job.prompt_tokens

    def fits(self, job: Counted) -> bool:
        """Whether it may join: room for its prompt, its tokens, and one more of everyone."""
        return self.fresh(job) + job.done + len(self) + 1 <= self.free

    def join(self, job: Counted) -> None:
        """Let it run."""
        self.shared += self.fresh(job)
        self._users[job.prompt] += 1
        self.own += job.done
        self.context += job.prompt_tokens + job.done
        self.versions[job.version] += 1
        self.jobs[job.key] = job
        job.joined, job.ticket, job.kv = self.count, next(self._tickets), False
        heapq.heappush(self._ends, (self.count + job.length - job.done, job.ticket, job))

    def part(self, job: Counted) -> None:
        """Take it out, with what it has sampled so far in `done` and without KV cache."""
        job.done, job.ticket = self.sampled(job), -1
        del self.jobs[job.key]
        self.own -= job.done
        self.context -= job.prompt_tokens + job.done
        _one_less(self.versions, job.version)
        _one_less(self._users, job.prompt)
        self.shared -= self.fresh(job)

    def state(self, job: Counted) -> Counted:
        """A copy as it would wait elsewhere, with its KV cache if it has one."""
        runs = job.ticket >= 0
        return replace(job, done=self.sampled(job), kv=runs or job.kv, ticket=-1, versions=list(job.versions))

    def change(self, job: Counted, version: int) -> None:
        """Its next token is of another version."""
        if job.ticket >= 0:
            _one_less(self.versions, job.version)
            self.versions[version] += 1
        job.versions.append((self.sampled(job), version))

    def sampled(self, job: Counted) -> int:
        """Tokens that it has."""
        return job.done + (self.count - job.joined if job.ticket >= 0 else 0)

    def advance(self, steps: int) -> int:
        """Take so many steps; tokens sampled."""
        tokens = len(self) * steps
        self.count += steps
        self.context += tokens
        self.own += tokens
        return tokens

    def until_end(self) -> int:
        """Steps until the next one ends; there must be one."""
        while self._ends[0][2].ticket != self._ends[0][1]:  # it left, and may be back under another ticket
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.count

    def ended(self) -> Counted | None:
        """Take out one that has reached its length, the first admitted first; None when there is none."""
        if not self.jobs or self.until_end() > 0:
            return None
        job = heapq.heappop(self._ends)[2]
        self.part(job)
        return job

    def crowded_out(self) -> Counted | None:
        """Take out the youngest when memory has no room for a token of everyone; None when it has."""
        if self.free >= len(self) or len(self) < 2:
            return None
        job = self.jobs[next(reversed(self.jobs))]
        self.part(job)
        return job


def _one_less(counter: Counter[Any], name: Any) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
