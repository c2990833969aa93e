"""Who decodes in the next step: admission in order of submission under two limits, slots and KV pages.

1. A request is refused at once if it could not finish alone on an empty engine.
2. Before each step every running trajectory gets the page that its next token needs, oldest first. If none is free, prompts
   that nobody runs on leave first, then the youngest running trajectory is preempted: it loses its tokens and returns to
   the head of the queue. Its numbers are those of its positions, so it samples the same tokens again.
3. Requests are admitted strictly in order while a slot is free and pages remain for the prompt (unless it lies there
   already), for the trajectory as far as it had come, and one for each running trajectory that may still grow.

The oldest running trajectory is preempted only when it is alone, which by 1 cannot happen: it always finishes, so there is
neither deadlock nor livelock. A prompt stays in memory while a running or waiting request continues it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.engines.attention import PromptKV, Track
from paceline.engines.endings import Ending
from paceline.engines.pages import PagePool
from paceline.types.records import Purpose, Request

PromptKey = tuple[int, bytes]
"""(policy version, prompt ids)."""


@dataclass(slots=True, eq=False)
class Job:
    """A request, from its submission to its result."""

    request: Request
    key: PromptKey
    numbers: npt.NDArray[np.uint32]
    """Key of its uniform numbers, [2]."""
    admitted_at: float | None = None
    """When it first ran, on the engine's clock."""
    reached: int = 0
    """Tokens it had when it was preempted."""

    @property
    def growth(self) -> int:
        """Tokens that the KV memory holds at most: the last one sampled is never written."""
        return self.request.sampling.max_tokens - 1


@dataclass(slots=True, eq=False, kw_only=True)
class Row(Track):
    """A job that runs. A preempted job loses its row and gets a new one later."""

    job: Job
    ending: Ending
    logprobs: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """One packed forward and one token for each row."""

    decode: list[Row]
    """Rows whose last token runs through the model."""
    joins: list[Row]
    """Rows whose first token follows from their prompt."""
    fresh: list[PromptKV]
    """Prompts to prefill."""


class Scheduler:
    """Owns the queue, the running rows (oldest first) and the prompts in memory."""

    def __init__(self, pool: PagePool, slots: int, prefill_tokens: int, watch: Callable[[Request], Ending]) -> None:
        """prefill_tokens: a step takes no further fresh prompt once its fresh prompts hold this many tokens."""
        self._pool, self._slots, self._prefill_tokens, self._watch = pool, slots, prefill_tokens, watch
        self.waiting: deque[Job] = deque()
        self.running: list[Row] = []
        self.preempted = 0
        """Preemptions since the start."""
        self._prompts: dict[PromptKey, PromptKV] = {}
        self._wanted: Counter[PromptKey] = Counter()
        self._users: Counter[PromptKey] = Counter()

    def refusal(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Why a request of this size can never run, or None."""
        needed = self._pool.needed(prompt_tokens) + self._pool.needed(max_tokens - 1)
        if needed <= self._pool.pages:
            return None
        size = self._pool.size
        return (
            f"a prompt of {prompt_tokens} tokens and max_tokens {max_tokens} need {needed} KV pages of {size} tokens, "
            f"the engine has {self._pool.pages}"
        )

    def submit(self, job: Job) -> None:
        """Append to the queue; the caller has asked `refusal`."""
        self._wanted[job.key] += 1
        self.waiting.append(job)

    def plan(self) -> Step:
        """Make room for the running rows, admit what fits. The pages of everything in the step are held when this returns."""
        self._grow()
        decode = list(self.running)
        fresh = self._admit()
        return Step(decode, self.running[len(decode) :], fresh)

    def finish(self, row: Row) -> None:
        """A running row ended."""
        self.running.remove(row)
        self._leave(row)

    def abort(self, group: int, sample: int, purpose: Purpose = "train") -> bool:
        """Forget everything of (group, sample, purpose); False if there is nothing."""
        key = (group, sample, purpose)
        rows = [row for row in self.running if _key(row.job.request) == key]
        jobs = [job for job in self.waiting if _key(job.request) == key]
        for row in rows:
            self.finish(row)
        for job in jobs:
            self.waiting.remove(job)
            self._wanted[job.key] -= 1
            self._forget(job.key)
        return bool(rows or jobs)

    def _grow(self) -> None:
        """Rule 2. The running list may shrink at its end while it is walked."""
        index = 0
        while index < len(self.running):
            row = self.running[index]
            missing = self._pool.needed(len(row.tokens)) - len(row.own.places)
            if not self._free(missing):
                self._preempt()
                continue
            self._pool.extend(row.own, missing)
            index += 1

    def _admit(self) -> list[PromptKV]:
        """Rule 3. Returns the prompts that came into memory."""
        fresh: list[PromptKV] = []
        while self.waiting and len(self.running) < self._slots:
            job = self.waiting[0]
            prompt = self._prompts.get(job.key)
            tokens = 0 if prompt else len(job.request.prompt_ids)
            if tokens and fresh and sum(len(p.ids) for p in fresh) + tokens > self._prefill_tokens:
                break
            reserved = self._promised(job, 0) + sum(self._promised(row.job, len(row.own.places)) for row in self.running)
            if not self._free(self._pool.needed(tokens) + reserved, spare=job.key):
                break
            self.waiting.popleft()
            if prompt is None:
                prompt = self._prompts[job.key] = PromptKV(tuple(job.request.prompt_ids.tolist()))
                self._pool.extend(prompt.span, self._pool.needed(tokens))
                fresh.append(prompt)
            self._wanted[job.key] -= 1
            self._users[job.key] += 1
            self.running.append(Row(prompt, job=job, ending=self._watch(job.request)))
        return fresh

    def _promised(self, job: Job, held: int) -> int:
        """Pages to leave free for a job that holds some: one while it may grow, and what it takes to come as far as it had been."""
        most, before = self._pool.needed(job.growth), self._pool.needed(min(job.reached + 1, job.growth))
        return max(min(1, most - held), before - held)

    def _free(self, pages: int, spare: PromptKey | None = None) -> bool:
        """Whether so many pages are free, after evicting as many prompts without running rows as that takes (never `spare`)."""
        if self._pool.free >= pages:
            return True
        idle = [key for key in self._prompts if not self._users[key] and key != spare]
        if self._pool.free + sum(len(self._prompts[key].span.places) for key in idle) < pages:
            return False
        while self._pool.free < pages:
            self._pool.release(self._prompts.pop(idle.pop()).span)
        return True

    def _preempt(self) -> None:
        """Send the youngest running row back to the head of the queue."""
        row = self.running.pop()
        assert self.running, "a row that fits alone ran out of pages alone"
        self.preempted += 1
        row.job.reached = max(row.job.reached, len(row.tokens))
        self._wanted[row.job.key] += 1
        self.waiting.appendleft(row.job)
        self._leave(row)

    def _leave(self, row: Row) -> None:
        """Free what only this row used."""
        self._pool.release(row.own)
        self._users[row.job.key] -= 1
        self._forget(row.job.key)

    def _forget(self, key: PromptKey) -> None:
        """Free a prompt that nobody continues any more."""
        if self._users[key] or self._wanted[key]:
            return
        del self._users[key], self._wanted[key]
        if key in self._prompts:
            self._pool.release(self._prompts.pop(key).span)


def _key(request: Request) -> tuple[int, int, Purpose]:
    return request.group, request.sample, request.purpose
