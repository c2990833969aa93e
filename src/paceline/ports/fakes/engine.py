"""A rollout engine without a model: tokens from the same counters, lengths by a function, failures on demand."""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from paceline.algo.counter import stream_key, uniforms
from paceline.ports.rollout import EngineLoad, Failure, TakenIn, Unfinished
from paceline.types.errors import EngineError
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, VERSION, FinishReason, Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, WeightsRef


def counted_length(request: Request) -> int:
    """Sampled tokens before and including the end of a trajectory: 1 to 1.25 x max_tokens, from the request's own numbers."""
    return 1 + int(uniforms(_numbers(request), 0, lane=1) * 1.25 * request.sampling.max_tokens)


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    started: float = 0.0
    length: int = 0
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class FakeEngine:
    """Engine, Cancels, HoldsWeights and MovesState of `ports.rollout` in memory.

    Every running trajectory gets one token per step, drawn from all ids below `vocabulary` but `eos_id` with its counter-based
    number; the token at its length is `eos_id`. Tokens do not depend on version, order or neighbours. Requests start in
    order of submission while a slot is free and their worst case fits. Stop strings and filters have no effect.
    """

    def __init__(
        self,
        *,
        instance: str = "fake",
        slots: int = 8,
        kv_tokens: int = 1 << 30,
        versions_held: int = 1,
        exports_kv: bool = False,
        vocabulary: int = 100,
        eos_id: int = 2,
        length: Callable[[Request], int] = counted_length,
        fail: Callable[[Request], str | None] = lambda request: None,
        decode: Callable[[Sequence[int]], str] = lambda ids: " ".join(map(str, ids)),
        clock: Callable[[], float] = lambda: 0.0,
        checksum: Callable[[WeightsRef, str], str] = lambda ref, location: ref.fingerprint or f"version-{ref.version}",
        score: Callable[[int, int], float] | None = None,
    ) -> None:
        """fail: an error at admission, or None. checksum: what `load` finds at a location.

        score: (version, token) -> log-prob that `probe` reports; by default that of the uniform distribution.
        """
        self._instance, self._slots, self._kv_tokens = instance, slots, kv_tokens
        self._versions_held, self._exports_kv = versions_held, exports_kv
        self._vocabulary, self._eos_id, self._length, self._fail = vocabulary, eos_id, length, fail
        self._decode, self._clock, self._checksum = decode, clock, checksum
        self._logprob = -math.log(vocabulary)
        self._score = score or (lambda version, token: self._logprob)
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._refused: list[Failure] = []
        self._held = {0: "version-0"}
        self._newest, self._loaded, self._tokens = 0, False, 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order; impossible ones come back from the next `step` as Failures."""
        for request in requests:
            reason = self._refusal(request)
            if reason is None:
                self._waiting.append(_Job(request))
            else:
                self._refused.append(_failure(request, reason))

    def step(self) -> Sequence[Trajectory | Failure]:
        """One token for every running trajectory; returns what ended, in order of admission."""
        ended: list[Trajectory | Failure] = list(self._refused)
        self._refused.clear()
        self._admit(ended)
        for running in list(self._running):
            token = self._token(running)
            running.ids.append(token)
            running.versions.append(running.request.version)
            self._tokens += 1
            ends = token == self._eos_id or token in running.request.sampling.stop_ids
            if ends or len(running.ids) == running.request.sampling.max_tokens:
                self._running.remove(running)
                ended.append(self._trajectory(running, "eos" if ends else "length"))
        return ended

    def load_state(self) -> EngineLoad:
        """Present load. KV tokens are those of prompts and sampled tokens; refused requests wait until `step` has returned them."""
        held = sum(len(r.request.prompt_ids) + len(r.ids) for r in self._running)
        return EngineLoad(held, len(self._running), len(self._waiting) + len(self._refused), self._tokens)

    def abort(self, group: int, sample: int, purpose: Purpose = "train") -> bool:
        """Forget a trajectory of this purpose, running or waiting."""
        before, key = len(self._running) + len(self._waiting), (group, sample, purpose)
        self._running = [r for r in self._running if _key(r.request) != key]
        self._waiting = deque(r for r in self._waiting if _key(r.request) != key)
        return len(self._running) + len(self._waiting) < before

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""
        return InstanceInfo(
            self._instance, self._slots, kv_tokens=self._kv_tokens, versions_held=self._versions_held, exports_kv=self._exports_kv
        )

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Serve another version; raises EngineError while there is work that may not go on under it, or without a place for it."""
        if replaces is None and (self._versions_held == 1 or not self._loaded):
            (replaces,) = self._held
        under = self._under(replaces)
        if under and unfinished == "none":
            raise EngineError(f"{self._instance}: cannot load version {ref.version} with {len(under)} trajectories running")
        if len(self._held.keys() - {replaces, ref.version}) >= self._versions_held:
            raise EngineError(f"{self._instance}: cannot load version {ref.version} beside {sorted(self._held)}")
        self._held = {version: checksum for version, checksum in self._held.items() if version != replaces}
        self._held[ref.version] = self._checksum(ref, location)
        self._newest, self._loaded = ref.version, True
        for job in under:
            job.request = replace(job.request, version=ref.version)
        return self._held[ref.version]

    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """Log-probs by `score`, [n - 1]; raises EngineError for fewer than two tokens."""
        if len(ids) < 2:
            raise EngineError(f"{self._instance}: cannot probe {len(ids)} tokens")
        version = self._newest if version is None else version
        if version not in self._held:
            raise EngineError(f"{self._instance}: cannot probe version {version}, it holds {sorted(self._held)}")
        return ProbeReport(version, self._held[version], tuple(self._score(version, token) for token in ids[1:]))

    def hand_over(self, trajectories: Sequence[tuple[int, int]], location: str) -> tuple[tuple[int, int], ...]:
        """Write training trajectories to a file and forget them."""
        wanted = {(*key, "train") for key in trajectories}
        jobs = [job for job in (*self._running, *self._waiting) if _key(job.request) in wanted]
        Path(location).write_bytes(pickle.dumps(jobs))
        for job in jobs:
            self.abort(job.request.group, job.request.sample)
        return tuple((job.request.group, job.request.sample) for job in jobs)

    def take_in(self, location: str) -> TakenIn:
        """Go on with what `hand_over` wrote, after what waits here."""
        jobs: list[_Job] = pickle.loads(Path(location).read_bytes())
        if missing := {job.request.version for job in jobs} - self._held.keys():
            raise EngineError(f"{self._instance}: cannot take in trajectories of versions {sorted(missing)}, it holds {sorted(self._held)}")
        self._waiting.extend(jobs)
        return TakenIn(tuple((job.request.group, job.request.sample) for job in jobs), 0)

    def _under(self, version: int | None) -> list[_Job]:
        return [job for job in (*self._running, *self._waiting) if job.request.version == version]

    def _refusal(self, request: Request) -> str | None:
        total = len(request.prompt_ids) + request.sampling.max_tokens
        if request.version not in self._held:
            return f"version {request.version} was asked for, {self._instance} holds {', '.join(map(str, sorted(self._held)))}"
        if not len(request.prompt_ids):
            return "the prompt is empty"
        if request.sampling.max_tokens < 1:
            return f"sampling.max_tokens = {request.sampling.max_tokens}: must be at least 1"
        if total > self._kv_tokens:
            return f"prompt + max_tokens = {total} exceeds the KV capacity of {self._kv_tokens} tokens"
        return None

    def _admit(self, ended: list[Trajectory | Failure]) -> None:
        """Start waiting requests while they fit; requests that `fail` names end here."""
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting[0]
            if sum(_most(r.request) for r in self._running) + _most(job.request) > self._kv_tokens:
                break
            self._waiting.popleft()
            error = None if job.ids else self._fail(job.request)
            if error is not None:
                ended.append(_failure(job.request, error))
                continue
            if not job.ids:
                job.started, job.length = self._clock(), self._length(job.request)
            self._running.append(job)

    def _token(self, running: _Job) -> int:
        if len(running.ids) + 1 >= running.length:
            return self._eos_id
        token = int(uniforms(_numbers(running.request), len(running.ids)) * (self._vocabulary - 1))
        return token + (token >= self._eos_id)

    def _trajectory(self, running: _Job, finish: FinishReason) -> Trajectory:
        request, n = running.request, len(running.ids)
        return Trajectory(
            group=request.group,
            sample=request.sample,
            attempt=request.attempt,
            prompt_ids=request.prompt_ids,
            ids=np.array(running.ids, dtype=np.int32),
            columns={LOGPROB: np.full(n, self._logprob, dtype=np.float32), VERSION: np.array(running.versions, dtype=np.int32)},
            finish=finish,
            text=self._decode(running.ids[:-1] if finish == "eos" else running.ids),
            instance=self._instance,
            seconds=self._clock() - running.started,
            purpose=request.purpose,
        )


def _most(request: Request) -> int:
    """KV tokens of a trajectory at its longest."""
    return len(request.prompt_ids) + request.sampling.max_tokens


def _failure(request: Request, error: str) -> Failure:
    return Failure(request.group, request.sample, request.attempt, error, request.purpose)


def _key(request: Request) -> tuple[int, int, Purpose]:
    return request.group, request.sample, request.purpose


def _numbers(request: Request) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return stream_key(request.seed, request.purpose, request.group, request.sample)
