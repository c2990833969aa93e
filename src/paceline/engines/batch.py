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
class Track:
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
    tracks: dict[Key, Track] = field(default_factory=dict)
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
    _ends: list[tuple[int, int, Track]] = field(default_factory=list)
    _tickets: itertools.count[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        """Trajectories."""
        return len(self.tracks)

    @property
    def free(self) -> int:
        """KV tokens left."""
        return self.capacity - self.own - self.shared

    def fresh(self, track: Track) -> int:
        """KV tokens of its prompt, 0 where it lies in memory for another sample."""
        return 0 if self._users[track.prompt] else track.prompt_tokens

    def fits(self, track: Track) -> bool:
        """Whether it may join: room for its prompt, its tokens, and one more of everyone."""
        return self.fresh(track) + track.done + len(self) + 1 <= self.free

    def join(self, track: Track) -> None:
        """Let it run."""
        self.shared += self.fresh(track)
        self._users[track.prompt] += 1
        self.own += track.done
        self.context += track.prompt_tokens + track.done
        self.versions[track.version] += 1
        self.tracks[track.key] = track
        track.joined, track.ticket, track.kv = self.count, next(self._tickets), False
        heapq.heappush(self._ends, (self.count + track.length - track.done, track.ticket, track))

    def part(self, track: Track) -> None:
        """Take it out, with what it has sampled so far in `done` and without KV cache."""
        track.done, track.ticket = self.sampled(track), -1
        del self.tracks[track.key]
        self.own -= track.done
        self.context -= track.prompt_tokens + track.done
        _one_less(self.versions, track.version)
        _one_less(self._users, track.prompt)
        self.shared -= self.fresh(track)

    def state(self, track: Track) -> Track:
        """A copy as it would wait elsewhere, with its KV cache if it has one."""
        runs = track.ticket >= 0
        return replace(track, done=self.sampled(track), kv=runs or track.kv, ticket=-1, versions=list(track.versions))

    def change(self, track: Track, version: int) -> None:
        """Its next token is of another version."""
        if track.ticket >= 0:
            _one_less(self.versions, track.version)
            self.versions[version] += 1
        track.versions.append((self.sampled(track), version))

    def sampled(self, track: Track) -> int:
        """Tokens that it has."""
        return track.done + (self.count - track.joined if track.ticket >= 0 else 0)

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

    def ended(self) -> Track | None:
        """Take out one that has reached its length, the first admitted first; None when there is none."""
        if not self.tracks or self.until_end() > 0:
            return None
        track = heapq.heappop(self._ends)[2]
        self.part(track)
        return track

    def crowded_out(self) -> Track | None:
        """Take out the youngest when memory has no room for a token of everyone; None when it has."""
        if self.free >= len(self) or len(self) < 2:
            return None
        track = self.tracks[next(reversed(self.tracks))]
        self.part(track)
        return track


def _one_less(counter: Counter[Any], name: Any) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
