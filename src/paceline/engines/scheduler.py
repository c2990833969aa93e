"""Who decodes in the next step: admission in order of submission under two limits, slots and KV pages.

1. A request is refused at once if it could not finish alone on an empty engine.
2. Before each step every running trajectory gets the page that its next token needs, oldest first. If none is free, prompts
   that nobody runs on leave first, then the youngest running trajectory is preempted: it keeps its tokens, loses its KV and
   returns to the head of the queue.
3. Trajectories are admitted strictly in order while a slot is free and pages remain for the prompt (unless it lies there
   already), for the tokens that the trajectory has, and one for each running trajectory that may still grow. A prompt longer than
   the prefill limit is read in parts, one a step, before its first trajectory is admitted.

The oldest running trajectory is preempted only when it is alone, which by 1 cannot happen: it always finishes, so there is
neither deadlock nor livelock. A prompt stays in memory while a running or waiting trajectory continues it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from paceline.engines.attention import Part, PromptKV, Track
from paceline.engines.endings import Ending
from paceline.engines.pages import KV, PagePool
from paceline.types.records import Request

PromptKey = tuple[int, bytes]
"""(policy version, prompt ids)."""
GONE = -1
"""Version of a prompt whose weights made way: only the trajectories that already run on it may continue it."""


@dataclass(slots=True, eq=False)
class SavedPrompt:
    """A prompt's KV outside the pages, shared by the trajectories that were saved with it."""

    version: int
    """Policy version whose weights made it, or GONE."""
    kv: KV
    last: torch.Tensor
    """As `PromptKV.last`."""
    placed: PromptKV | None = None
    """Where a prompt whose weights are GONE was put back: the trajectories saved with it find it here, and nobody else."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A trajectory's KV outside the pages; the last token's is yet to be made."""

    own: KV
    prompt: SavedPrompt


@dataclass(slots=True, eq=False)
class Job:
    """A trajectory, from its submission to its result: what was asked for, and what it has sampled."""

    request: Request
    prompt: bytes
    """The prompt's ids, as a key."""
    numbers: npt.NDArray[np.uint32]
    """Key of its uniform numbers, [2]."""
    ending: Ending
    version: int
    """Policy version that samples its next token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Policy version that sampled each token."""
    admitted_at: float | None = None
    """When it first ran, on the engine's clock."""
    saved: Saved | None = None
    """Of a waiting trajectory: KV that lies ready. Without it the tokens run through the model again."""

    @property
    def key(self) -> PromptKey:
        """The prompt in memory that it may continue."""
        return self.version, self.prompt

    @property
    def growth(self) -> int:
        """Tokens that the KV memory holds at most: the last one sampled is never written."""
        return self.request.sampling.max_tokens - 1


@dataclass(slots=True, eq=False, kw_only=True)
class Row(Track):
    """A job that runs, with its place in KV memory; `tokens` is the job's own list."""

    job: Job

    def state(self) -> torch.Tensor:
        """What predicts the first token after a row has joined [width]."""
        last = self.last if self.tokens else self.prompt.last
        assert last is not None, "a prompt in memory keeps its last hidden state"
        return last


@dataclass(frozen=True, slots=True)
class Step:
    """One token for each row, by one packed forward per version."""

    decode: list[Row]
    """Rows whose last token runs through the model."""
    joins: list[Row]
    """Rows whose KV is missing: without tokens the first one follows from the prompt, else all tokens run through the model."""
    parts: list[Part]
    """Of prompts, to prefill."""

    @property
    def rows(self) -> list[Row]:
        """All rows, in order of admission."""
        return self.decode + self.joins

    def by_version(self) -> dict[int, Step]:
        """The part of each version; the step itself where there is only one."""
        versions = {row.job.version for row in self.rows} | {part.prompt.version for part in self.parts}
        if len(versions) == 1:
            return {versions.pop(): self}
        return {
            version: Step(
                [row for row in self.decode if row.job.version == version],
                [row for row in self.joins if row.job.version == version],
                [part for part in self.parts if part.prompt.version == version],
            )
            for version in sorted(versions)
        }


class Scheduler:
    """Owns the queue, the running rows (oldest first) and the prompts in memory."""

    def __init__(self, pool: PagePool, slots: int, prefill_tokens: int) -> None:
        """prefill_tokens: prompts and lost tokens of one step, at most; a single trajectory may have lost more."""
        self._pool, self._slots, self._prefill_tokens = pool, slots, prefill_tokens
        self.waiting: deque[Job] = deque()
        self.running: list[Row] = []
        self.preempted = 0
        """Preemptions since the start."""
        self._prompts: dict[PromptKey, PromptKV] = {}
        self._wanted: Counter[PromptKey] = Counter()
        """Waiting jobs per prompt."""

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

    def put_first(self, jobs: list[Job]) -> None:
        """Put jobs before all that wait, in their order; the caller has asked `refusal`."""
        for job in reversed(jobs):
            self._wanted[job.key] += 1
            self.waiting.appendleft(job)

    def plan(self) -> Step:
        """Make room for the running rows, admit what fits. The pages of everything in the step are held when this returns."""
        self._grow()
        step = Step(list(self.running), [], [])
        self._admit(step)
        return step

    def finish(self, row: Row) -> None:
        """A running row ended."""
        self.running.remove(row)
        self._leave(row)

    def find(self, which: Callable[[Job], bool]) -> list[tuple[Job, Row | None]]:
        """Jobs, those that run first (with their rows), then those that wait, in order."""
        running = [(row.job, row) for row in self.running if which(row.job)]
        return [*running, *((job, None) for job in self.waiting if which(job))]

    def save(self, which: Callable[[Job], bool]) -> list[tuple[Job, Saved | None]]:
        """Jobs with copies of their KV, those that run first; they stay. None for one without KV."""
        prompts: dict[int, SavedPrompt] = {}
        return [(job, job.saved if row is None else self._saved(row, prompts)) for job, row in self.find(which)]

    def remove(self, which: Callable[[Job], bool]) -> list[Job]:
        """Forget jobs, running and waiting; their memory is free at once."""
        found = self.find(which)
        for job, row in found:
            if row is not None:
                self.finish(row)
            else:
                self.waiting.remove(job)
                self._unwant(job)
        return [job for job, _ in found]

    def replace(self, old: int, new: int, rebuild: bool) -> None:
        """Jobs under version `old` go on under `new`: with the KV they have, or without. Prompts of `old` stay with their rows."""
        if rebuild:
            for row in [row for row in reversed(self.running) if row.job.version == old]:
                self._put_back(row)
        self._hide(old)
        for job, _ in self.find(lambda job: job.version == old):
            job.version = new
            if rebuild:
                job.saved = None
            elif job.saved:
                job.saved.prompt.version = GONE
        self._wanted = Counter(job.key for job in self.waiting)

    def missing(self, jobs: list[Job]) -> int:
        """Tokens that must run through the model to make the KV that waiting jobs have lost, prompts that nobody has included."""
        come_along = {job.key for job in jobs if job.saved}
        lost = [job for job in jobs if job.tokens and not job.saved]
        prompts = {job.key: _unread(job, self._prompts.get(job.key)) for job in lost if job.key not in come_along}
        return sum(prompts.values()) + sum(len(job.tokens) for job in lost)

    def _saved(self, row: Row, prompts: dict[int, SavedPrompt]) -> Saved:
        """Copies of a row's KV and of its prompt's, the latter once for all rows on it."""
        prompt = row.prompt
        if id(prompt) not in prompts:
            assert prompt.last is not None, "a row has sampled a token"
            prompts[id(prompt)] = SavedPrompt(prompt.version, self._pool.save(prompt.span, len(prompt.ids)), prompt.last)
        return Saved(self._pool.save(row.own, len(row.tokens) - 1), prompts[id(prompt)])

    def _hide(self, version: int) -> None:
        """Let nobody find the prompts of a version; those without rows leave."""
        for key in [key for key in self._prompts if key[0] == version]:
            prompt = self._prompts.pop(key)
            prompt.version = GONE
            if not prompt.users:
                self._pool.release(prompt.span)

    def _grow(self) -> None:
        """Rule 2. The running list may shrink at its end while it is walked."""
        index = 0
        while index < len(self.running):
            row = self.running[index]
            missing = self._pool.needed(len(row.tokens)) - len(row.own.places)
            if not self._free(missing):
                assert len(self.running) > 1, "a row that fits alone ran out of pages alone"
                self._put_back(self.running[-1])
                self.preempted += 1
                continue
            self._pool.extend(row.own, missing)
            index += 1

    def _admit(self, step: Step) -> None:
        """Rule 3. Adds the rows and prompts that came into memory to the step."""
        filled = 0
        while self.waiting and len(self.running) < self._slots:
            job = self.waiting[0]
            prompt = self._present(job)
            own, tokens = self._pool.needed(len(job.tokens)), _prefilled(job, prompt)
            if tokens and filled and filled + tokens > self._prefill_tokens:
                break
            reserved = self._promised(job, own) + sum(self._promised(row.job, len(row.own.places)) for row in self.running)
            missing = 0 if prompt else self._pool.needed(len(job.request.prompt_ids))
            if not self._free(missing + own + reserved, spare=prompt):
                break
            filled += tokens
            prompt = prompt or self._bring(job)
            self._read(prompt, job, step)
            if prompt.unread:
                break
            self.waiting.popleft()
            self._start(job, prompt, step)

    def _read(self, prompt: PromptKV, job: Job, step: Step) -> None:
        """Fill what is missing of a prompt with the KV that came along with a job, else let as much of it run in a step as may."""
        start = prompt.read
        prompt.read = len(prompt.ids) if job.saved else min(len(prompt.ids), start + self._prefill_tokens)
        if job.saved and start < prompt.read:
            self._pool.restore(prompt.span, job.saved.prompt.kv)
            prompt.last = job.saved.prompt.last.to(self._pool.device, copy=True)
        elif start < prompt.read:
            step.parts.append(Part(prompt, start, prompt.read))

    def _start(self, job: Job, prompt: PromptKV, step: Step) -> None:
        """Give a job its row. Pages are free."""
        prompt.users += 1
        row = Row(prompt, tokens=job.tokens, job=job)
        self._pool.extend(row.own, self._pool.needed(len(job.tokens)))
        if job.saved is None:
            step.joins.append(row)
        else:
            self._pool.restore(row.own, job.saved.own)
            job.saved = None
            step.decode.append(row)
        self._unwant(job)
        self.running.append(row)

    def _bring(self, job: Job) -> PromptKV:
        """The prompt of a job in pages of its own, still to be filled."""
        saved = job.saved.prompt if job.saved else None
        prompt = PromptKV(tuple(job.request.prompt_ids.tolist()), saved.version if saved else job.version)
        self._pool.extend(prompt.span, self._pool.needed(len(prompt.ids)))
        if prompt.version == GONE:
            assert saved is not None
            saved.placed = prompt
        else:
            self._prompts[job.key] = prompt
        return prompt

    def _present(self, job: Job) -> PromptKV | None:
        """The prompt in memory that a job continues; KV made under weights that are gone continues only the prompt it was made with."""
        if job.saved is None or job.saved.prompt.version != GONE:
            return self._prompts.get(job.key)
        placed = job.saved.prompt.placed
        return placed if placed is not None and placed.users else None

    def _promised(self, job: Job, held: int) -> int:
        """Pages to leave free for a job that holds some: one while it may grow."""
        return min(1, self._pool.needed(job.growth) - held)

    def _free(self, pages: int, spare: PromptKV | None = None) -> bool:
        """Whether so many pages are free, after evicting as many prompts without running rows as that takes (never `spare`)."""
        if self._pool.free >= pages:
            return True
        idle = [key for key, prompt in self._prompts.items() if not prompt.users and prompt is not spare]
        if self._pool.free + sum(len(self._prompts[key].span.places) for key in idle) < pages:
            return False
        while self._pool.free < pages:
            self._pool.release(self._prompts.pop(idle.pop()).span)
        return True

    def _put_back(self, row: Row) -> None:
        """Send a running row back to the head of the queue, with its tokens and without its KV."""
        self.put_first([row.job])
        self.finish(row)

    def _leave(self, row: Row) -> None:
        """Free what only this row used."""
        self._pool.release(row.own)
        row.prompt.users -= 1
        self._forget((row.prompt.version, row.job.prompt), row.prompt)

    def _unwant(self, job: Job) -> None:
        """A job waits no longer."""
        self._wanted[job.key] -= 1
        if not self._wanted[job.key]:
            del self._wanted[job.key]
        self._forget(job.key, self._prompts.get(job.key))

    def _forget(self, key: PromptKey, prompt: PromptKV | None) -> None:
        """Free a prompt that nobody continues any more."""
        if prompt is None or prompt.users:
            return
        if self._prompts.get(key) is prompt:
            if key in self._wanted:
                return
            del self._prompts[key]
        self._pool.release(prompt.span)


def _unread(job: Job, prompt: PromptKV | None) -> int:
    """Tokens of a job's prompt that are not in memory."""
    return prompt.unread if prompt else len(job.request.prompt_ids)


def _prefilled(job: Job, prompt: PromptKV | None) -> int:
    """Tokens that run through the model before a job can start on a prompt in memory, or on none."""
    return 0 if job.saved else len(job.tokens) + _unread(job, prompt)
