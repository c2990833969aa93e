"""A rollout engine without a model: tokens from the same counters, lengths by a function, failures on demand."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.algo.counter import stream_key, uniforms
from paceline.core.places import Places
from paceline.ports.rollout import EngineLoad, Failure, TakenIn
from paceline.types.errors import EngineError, StateFileError
from paceline.types.moving import Carried
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, VERSION, FinishReason, Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, Unfinished, WeightsRef


def counted_length(request: Request) -> int:
    """Sampled tokens before and including the end of a trajectory: 1 to 1.25 x max_tokens, from the request's own numbers."""
    return 1 + int(uniforms(_numbers(request), 0, lane=1) * 1.25 * request.sampling.max_tokens)


@dataclass(slots=True, eq=False)
class _Job:
    """A trajectory, waiting or running."""

    request: Request
    version: int
    started: float | None = None
    length: int = 0
    """Tokens after which it ends by itself; set when it starts."""
    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kv: bool = False
    """Whether the KV of prompt and tokens exists."""


class FakeEngine:
    """Engine, Cancels, HoldsWeights and MovesState of `ports.rollout` in memory.

    Every running trajectory gets one token per step, drawn from all ids below `vocabulary` but `eos_id` with its counter-based
    number; the token at its length is `eos_id`. Tokens do not depend on version, order or neighbours. Requests start in
    order of submission while a slot is free and their worst case fits. Stop strings and filters have no effect. KV is a mark on
    the trajectory: `prefilled` counts the tokens of those that start without it, each with its own prompt.
    """

    def __init__(
        self,
        *,
        instance: str = "fake",
        slots: int = 8,
        kv_tokens: int = 1 << 30,
        versions_held: int = 1,
        vocabulary: int = 100,
        eos_id: int = 2,
        length: Callable[[Request], int] = counted_length,
        fail: Callable[[Request], str | None] = lambda request: None,
        decode: Callable[[Sequence[int]], str] = lambda ids: " ".join(map(str, ids)),
        clock: Callable[[], float] = lambda: 0.0,
        checksum: Callable[[WeightsRef, str], str] = lambda ref, location: ref.fingerprint or f"version-{ref.version}",
        score: Callable[[int, int], float] | None = None,
    ) -> None:
        """fail: an error at admission, or None. checksum: what `load` finds at a location; the load fails with what it raises.

        score: (version, token) -> log-prob that `probe` reports; by default that of the uniform distribution.
        """
        self._instance, self._slots, self._kv_tokens = instance, slots, kv_tokens
        self._vocabulary, self._eos_id, self._length, self._fail = vocabulary, eos_id, length, fail
        self._decode, self._clock, self._checksum = decode, clock, checksum
        self._logprob = -math.log(vocabulary)
        self._score = score or (lambda version, token: self._logprob)
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._refused: list[Failure] = []
        self._places = Places(instance, versions_held)
        self._fingerprints = ["version-0"] * versions_held
        self._tokens = 0
        self.prefilled = 0
        """Tokens read to make KV, since the start."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order; impossible ones come back from the next `step` as Failures."""
        for request in requests:
            reason = self._refusal(request)
            if reason is None:
                self._waiting.append(_Job(request, request.version))
            else:
                self._refused.append(_failure(request, reason))

    def step(self) -> Sequence[Trajectory | Failure]:
        """One token for every running trajectory; returns what ended, in order of admission."""
        ended: list[Trajectory | Failure] = list(self._refused)
        self._refused.clear()
        self._admit(ended)
        for job in list(self._running):
            token = self._token(job)
            job.ids.append(token)
            job.versions.append(job.version)
            self._tokens += 1
            ends = token == self._eos_id or token in job.request.sampling.stop_ids
            if ends or len(job.ids) == job.request.sampling.max_tokens:
                self._running.remove(job)
                ended.append(self._trajectory(job, "eos" if ends else "length"))
        return ended

    def load_state(self) -> EngineLoad:
        """Present load. KV tokens are those of prompts and sampled tokens; refused requests wait until `step` has returned them."""
        held = sum(len(job.request.prompt_ids) + len(job.ids) for job in self._running)
        return EngineLoad(held, len(self._running), len(self._waiting) + len(self._refused), self._tokens)

    def abort(self, group: int, sample: int, purpose: Purpose = "train", attempt: int | None = None) -> bool:
        """Forget a trajectory of this purpose, running or waiting."""
        key = (group, sample, purpose)
        return bool(self._remove(lambda job: _key(job.request) == key and attempt in (None, job.request.attempt)))

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""
        return InstanceInfo(self._instance, self._slots, self._kv_tokens, self._places.count, exports_kv=True)

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Serve another version. Work under the replaced one fails with the load."""
        place, leaving = self._places.make_way(ref, unfinished, replaces, self._work)
        try:
            self._fingerprints[place] = checksum = self._checksum(ref, location)
            self._places.arrived(ref.version, place)
        finally:
            if ref.version not in self._places.held:
                reason = f"version {leaving} made way for version {ref.version}, which could not be loaded"
                self._refused += [_failure(job.request, reason) for job in self._remove(lambda job: job.version == leaving)]
        if unfinished == "recompute":
            self._put_back(lambda job: job.version == leaving)
        for job in (*self._running, *self._waiting):
            if job.version == leaving:
                job.version, job.kv = ref.version, job.kv and unfinished != "recompute"
        return checksum

    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """Log-probs by `score`, [n - 1]; raises EngineError for fewer than two tokens or a version that is not held."""
        if len(ids) < 2:
            raise EngineError(f"{self._instance}: cannot probe {len(ids)} tokens: it takes two at least")
        found, place = self._places.find(version)
        return ProbeReport(found, self._fingerprints[place], tuple(self._score(found, token) for token in ids[1:]))

    def hand_over(self, trajectories: Sequence[tuple[int, int]], location: str) -> tuple[tuple[int, int], ...]:
        """Write trajectories as JSON and forget them."""
        wanted = {(group, sample, "train") for group, sample in trajectories}
        jobs = [job for job in (*self._running, *self._waiting) if _key(job.request) in wanted]
        items = [{"kv": job.kv, "job": self._carried(job).as_json()} for job in jobs]
        try:
            Path(location).write_text(json.dumps(items))
        except OSError as error:
            raise StateFileError(f"{self._instance}: cannot write the state of trajectories to {location} ({error})") from error
        self._remove(lambda job: job in jobs)
        return tuple((job.request.group, job.request.sample) for job in jobs)

    def take_in(self, location: str) -> TakenIn:
        """Go on with what another fake wrote."""
        found = _read(location)
        jobs = [self._arrived(carried, kv) for carried, kv in found]
        self._waiting.extendleft(reversed(jobs))
        lost = [carried for carried, kv in found if carried.tokens and not kv]
        return TakenIn(tuple(carried.key for carried, _ in found), sum(len(c.request.prompt_ids) + len(c.tokens) for c in lost))

    def _refusal(self, request: Request, version: int | None = None) -> str | None:
        """Why a request cannot run here, under its own version or another one."""
        total = len(request.prompt_ids) + request.sampling.max_tokens
        wanted = request.version if version is None else version
        if wanted not in self._places.held:
            return f"version {wanted} was asked for, {self._instance} holds {self._places.named()}"
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
            if job.started is None:
                error = self._fail(job.request)
                if error is not None:
                    ended.append(_failure(job.request, error))
                    continue
                job.started, job.length = self._clock(), self._length(job.request)
            if not job.kv:
                self.prefilled += len(job.request.prompt_ids) + len(job.ids)
                job.kv = True
            self._running.append(job)

    def _remove(self, which: Callable[[_Job], bool]) -> list[_Job]:
        """Forget jobs, running and waiting; those forgotten."""
        found = [job for job in (*self._running, *self._waiting) if which(job)]
        self._running = [job for job in self._running if job not in found]
        self._waiting = deque(job for job in self._waiting if job not in found)
        return found

    def _put_back(self, which: Callable[[_Job], bool]) -> None:
        """Send running jobs to the head of the queue, in their order."""
        back = [job for job in self._running if which(job)]
        self._running = [job for job in self._running if job not in back]
        self._waiting.extendleft(reversed(back))

    def _work(self, version: int | None) -> int:
        return sum(job.version == version for job in (*self._running, *self._waiting))

    def _carried(self, job: _Job) -> Carried:
        seconds = None if job.started is None else self._clock() - job.started
        return Carried(job.request, job.version, job.ids, [self._logprob] * len(job.ids), [], job.versions, seconds)

    def _arrived(self, carried: Carried, kv: bool) -> _Job:
        self._places.find(carried.version)
        attempt = (*_key(carried.request), carried.request.attempt)
        known = any((*_key(job.request), job.request.attempt) == attempt for job in (*self._running, *self._waiting))
        reason = "it is here already" if known else self._refusal(carried.request, carried.version)
        if reason is not None:
            raise EngineError(f"{self._instance}: cannot take trajectory {carried.key} in: {reason}")
        started = None if carried.seconds is None else self._clock() - carried.seconds
        length = 0 if started is None else self._length(carried.request)
        return _Job(carried.request, carried.version, started, length, carried.tokens, carried.versions, kv)

    def _token(self, job: _Job) -> int:
        if len(job.ids) + 1 >= job.length:
            return self._eos_id
        token = int(uniforms(_numbers(job.request), len(job.ids)) * (self._vocabulary - 1))
        return token + (token >= self._eos_id)

    def _trajectory(self, job: _Job, finish: FinishReason) -> Trajectory:
        request, n = job.request, len(job.ids)
        assert job.started is not None
        return Trajectory(
            group=request.group,
            sample=request.sample,
            attempt=request.attempt,
            prompt_ids=request.prompt_ids,
            ids=np.array(job.ids, dtype=np.int32),
            columns={LOGPROB: np.full(n, self._logprob, dtype=np.float32), VERSION: np.array(job.versions, dtype=np.int32)},
            finish=finish,
            text=self._decode(job.ids[:-1] if finish == "eos" else job.ids),
            instance=self._instance,
            seconds=self._clock() - job.started,
            purpose=request.purpose,
        )


def _read(location: str) -> list[tuple[Carried, bool]]:
    """The trajectories of a file, each with whether its KV came along."""
    try:
        return [(Carried.of_json(item["job"]), bool(item["kv"])) for item in json.loads(Path(location).read_text())]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StateFileError(f"{location}: cannot read the state of trajectories ({error!r})") from error


def _most(request: Request) -> int:
    """KV tokens of a trajectory at its longest."""
    return len(request.prompt_ids) + request.sampling.max_tokens


def _failure(request: Request, error: str) -> Failure:
    return Failure(request.group, request.sample, request.attempt, error, request.purpose)


def _key(request: Request) -> tuple[int, int, Purpose]:
    return request.group, request.sample, request.purpose


def _numbers(request: Request) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return stream_key(request.seed, request.purpose, request.group, request.sample)
