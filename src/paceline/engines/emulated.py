"""An engine that computes when its trajectories end instead of decoding them: for load tests of the runtime.

Every running trajectory gets one token a step, and between two changes (a join, an end, full memory) the seconds of many steps have a
closed form (`core.costs`). So nothing happens per token, and 64 processes fit on two cores. Lengths and outcomes are numbers of the
request alone: every schedule meets the same work. All times are those of the clock that it is given.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.algo.counter import philox, stream_key, uniforms
from paceline.core.costs import DecodeCost, LinearCost
from paceline.core.places import Places
from paceline.engines.batch import Batch, Counted
from paceline.ports.fakes.training import probe_logprobs, read_weights
from paceline.ports.rollout import EngineLoad, Failure, TakenIn
from paceline.types.errors import EngineError, ModelError, StateFileError
from paceline.types.moving import plain_request, request_of
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, VERSION, Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, Unfinished, WeightsRef

EOS_ID = 2
FIRST_ID, IDS = 1000, 30000
"""All tokens of a trajectory are the same one, its own of these, but the end-of-sequence token."""
JITTER_STEPS = 256
"""Steps in a row at one speed."""
FORMAT = 1
"""Of state files."""
LONGEST_PAUSE = 0.5
"""Seconds."""
RIGHT, WRONG = "1", "0"
"""Texts of trajectories. The gold answer of synthetic prompts is RIGHT."""
_NORMAL = NormalDist()
_LENGTH, _OUTCOME, _TOKEN = range(3)
"""Lanes of a request's numbers."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sampled tokens of trajectories, before `max_tokens` cuts them."""

    mean: float
    sigma: float
    """Lognormal: standard deviation of the logarithm."""
    trace: tuple[int, ...] = ()
    """Measured lengths; given, they are the distribution instead."""

    def at(self, quantile: float) -> int:
        """Tokens, at least 1, at a quantile in [0, 1)."""
        if self.trace:
            return self.trace[int(quantile * len(self.trace))]
        normal = _NORMAL.inv_cdf(max(quantile, 2.0**-25))
        return max(1, round(self.mean * math.exp(self.sigma * (normal - self.sigma / 2))))


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """How long an instance takes, in seconds of its clock."""

    decode: DecodeCost
    """A step. Trajectories of several versions share it, but each version reads its own weights (`base`)."""
    prefill: LinearCost
    """A prompt, by its tokens. It is read once for the samples of its group that run together."""
    load: float
    """Loading a version; nothing decodes meanwhile."""
    move: LinearCost
    """Handing over or taking in, by KV tokens; nothing decodes meanwhile on either side."""
    jitter: float = 0.0
    """Relative standard deviation of the time of JITTER_STEPS steps; 0 = every step takes what it costs."""


@dataclass(frozen=True, slots=True)
class _Weights:
    fingerprint: str
    number: int


class EmulatedEngine:
    """Engine, Cancels, HoldsWeights and MovesState of `ports.rollout` over a cost model.

    Admission is in order of submission, while a slot is free and KV tokens remain for the prompt, for the tokens that the trajectory has,
    and one for each that runs. When memory is full the youngest is preempted: it keeps its tokens and loses its KV cache. `step` brings
    everything to the present, `pause` says for how long there is nothing to do.
    """

    def __init__(
        self, *, instance: str, slots: int, kv_tokens: int, costs: EngineCosts, lengths: Lengths, solved: float,
        clock: Callable[[], float], sleep: Callable[[float], None], versions_held: int = 1, seed: int = 0,
    ) -> None:  # fmt: skip
        """solved: chance that a trajectory is right. seed: of the jitter, which differs from instance to instance."""
        self._info = InstanceInfo(instance, slots, kv_tokens, versions_held, exports_kv=True)
        self._costs, self._lengths, self._solved = costs, lengths, solved
        self._clock, self._sleep = clock, sleep
        # Nothing drafts here, so the numbers of drafts are free.
        self._jitter_key = stream_key(seed, "draft", int.from_bytes(instance.encode()[-8:], "little"), 0)
        self._batch = Batch(kv_tokens)
        self._waiting: deque[Counted] = deque()
        self._ended: list[Trajectory | Failure] = []
        self._at = clock()
        """Until when everything has happened; ahead of the clock while a prompt is read."""
        self._places = Places(instance, versions_held)
        self._weights = {place: _Weights("", 0) for place in range(versions_held)}
        self._tokens, self._decoding = 0, 0.0
        self.prefilled = 0
        """Tokens that were read into a KV cache since the start, those read again included."""
        self.preempted = 0
        """Preemptions since the start."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order; impossible ones come back from the next `step` as Failures."""
        self._catch_up()
        for request in requests:
            reason = self._refusal(request)
            if reason is None:
                self._waiting.append(self._job(request))
            else:
                self._ended.append(_failure(request, reason))

    def step(self) -> Sequence[Trajectory | Failure]:
        """Everything that ended until now, in order of its end, then of its admission."""
        self._catch_up()
        self._admit()
        ended, self._ended = self._ended, []
        return ended

    def pause(self) -> float | None:
        """Seconds until the next `step` can have something to say, at most LONGEST_PAUSE; None = only after a call."""
        if not len(self._batch):
            return 0.0 if self._waiting or self._ended else None
        return min(max(self._at + self._span(self._steps()) - self._clock(), 0.0), LONGEST_PAUSE)

    def load_state(self) -> EngineLoad:
        """The load at the last call or step. What `step` has yet to return counts as waiting."""
        batch = self._batch
        return EngineLoad(
            batch.own + batch.shared, len(batch), len(self._waiting) + len(self._ended), self._tokens, batch.count, self._decoding
        )

    def abort(self, group: int, sample: int, purpose: Purpose = "train", attempt: int | None = None) -> bool:
        """Forget a trajectory of this purpose, one attempt of it or all, running or waiting."""
        self._catch_up()
        found = [job for job in self._all() if job.key[:3] == (purpose, group, sample) and attempt in (None, job.request.attempt)]
        self._take_out(found)
        return bool(found)

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""
        return self._info

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Read what an emulated trainer published, as long as that takes.

        Raises EngineError for work that would be lost, or when there is no place; ModelError for a file that cannot be read, and the work
        of the version that made way fails.
        """
        self._catch_up()
        place, leaving = self._places.make_way(ref, unfinished, replaces, lambda version: len(self._under(version)))
        jobs = self._under(leaving)
        try:
            self._weights[place] = _Weights(*read_weights(Path(location)))
        except ModelError as error:
            self._fail(jobs, f"version {leaving} made way for version {ref.version}, which could not be loaded: {error}")
            raise
        self._places.arrived(ref.version, place)
        self._stall(self._costs.load)
        for job in jobs:
            self._batch.change(job, ref.version)
        if unfinished == "recompute":
            self._rebuild(jobs)
        return self._weights[place].fingerprint

    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """What the trainer of these weights reports. Raises EngineError for fewer than two tokens, or a version that is not held."""
        asked, place = self._places.find(version)
        if len(ids) < 2:
            raise EngineError(f"{self._info.instance}: cannot probe {len(ids)} tokens")
        weights = self._weights[place]
        return ProbeReport(asked, weights.fingerprint, probe_logprobs(weights.number, ids))

    def hand_over(self, trajectories: Sequence[tuple[int, int]], location: str) -> tuple[tuple[int, int], ...]:
        """Write the state of training trajectories and take them out, as long as their KV tokens take."""
        self._catch_up()
        wanted = {("train", group, sample) for group, sample in trajectories}
        jobs = [job for job in self._all() if job.key[:3] in wanted]
        states = [self._batch.state(job) for job in jobs]
        try:
            Path(location).write_text(json.dumps({"format": FORMAT, "trajectories": [self._plain(state) for state in states]}))
        except OSError as error:
            raise StateFileError(f"{self._info.instance}: cannot write the state of trajectories to {location} ({error})") from error
        self._take_out(jobs)
        self._stall(self._costs.move.seconds(_kv_tokens(states)))
        return _names(states)

    def take_in(self, location: str) -> TakenIn:
        """Go on with what `hand_over` wrote, as long as its KV tokens take."""
        self._catch_up()
        try:
            plain = json.loads(Path(location).read_text())
            if plain["format"] != FORMAT:
                raise StateFileError(f"{location}: state of format {plain['format']}, this engine reads format {FORMAT}")
            found = [self._counted(item) for item in plain["trajectories"]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StateFileError(f"{location}: cannot read the state of trajectories ({error!r})") from error
        here = {job.key for job in self._all()}
        for job in found:
            self._places.find(job.version)
            reason = "it is here already" if job.key in here else self._too_long(job.request)
            if reason is not None:
                raise EngineError(f"{self._info.instance}: cannot take trajectory {job.key[1:3]} in: {reason}")
        self._stall(self._costs.move.seconds(_kv_tokens(found)))
        self._waiting.extendleft(reversed(found))
        return TakenIn(_names(found), sum(job.prompt_tokens + job.done for job in found if job.done and not job.kv))

    def _plain(self, state: Counted) -> dict[str, Any]:
        """A trajectory on its way as JSON. What follows from its request (length, numbers) does not travel."""
        seconds = None if state.started is None else self._at - state.started
        counts = {"versions": state.versions, "done": state.done, "kv": state.kv, "seconds": seconds}
        return {"request": plain_request(state.request), **counts}

    def _counted(self, plain: Mapping[str, Any]) -> Counted:
        """The trajectory that `_plain` gave. KeyError or TypeError for anything else."""
        job = self._job(request_of(plain["request"]))
        job.versions = [(int(first), int(version)) for first, version in plain["versions"]]
        job.done, job.kv = int(plain["done"]), bool(plain["kv"])
        job.started = None if plain["seconds"] is None else self._at - plain["seconds"]
        return job

    # --- time

    def _catch_up(self) -> None:
        """Let time pass until now: whole steps, whoever ends on the way, and who joins in their place."""
        now, batch = self._clock(), self._batch
        while len(batch) and self._at < now:
            steps = self._steps()
            if self._at + self._span(steps) > now:
                steps = self._cost().steps_within(len(batch), batch.context / len(batch), now - self._at)
                self._advance(steps)
                return
            self._advance(steps)
            self._leave()
            self._admit()
        if not len(batch):
            self._at = max(self._at, now)

    def _advance(self, steps: int) -> None:
        seconds = self._span(steps)
        self._at += seconds
        self._decoding += seconds
        self._tokens += self._batch.advance(steps)

    def _span(self, steps: int) -> float:
        """Seconds of so many steps of what runs."""
        return self._cost().span(len(self._batch), self._batch.context / len(self._batch), steps)

    def _steps(self) -> int:
        """Steps until something changes: one ends, memory is full, or the speed is another."""
        batch = self._batch
        steps = min(batch.until_end(), max(1, batch.free // len(batch)))
        return min(steps, JITTER_STEPS - batch.count % JITTER_STEPS) if self._costs.jitter else steps

    def _cost(self) -> DecodeCost:
        """The present cost of a step."""
        cost, factor = self._costs.decode, 1.0
        if self._costs.jitter:
            word = int(philox((self._batch.count // JITTER_STEPS, 0, 0, 0), self._jitter_key)[0])
            sigma = math.sqrt(math.log1p(self._costs.jitter**2))
            factor = math.exp(sigma * (_NORMAL.inv_cdf((word + 0.5) / 2**32) - sigma / 2))
        return DecodeCost(cost.base * len(self._batch.versions) * factor, cost.per_sequence * factor, cost.per_context * factor)

    def _stall(self, seconds: float) -> None:
        """Do something that takes so long, and nothing beside it."""
        before = self._clock()
        self._sleep(seconds)
        self._at += self._clock() - before

    # --- who runs

    def _admit(self) -> None:
        batch = self._batch
        while self._waiting and len(batch) < self._info.slots and batch.fits(self._waiting[0]):
            job = self._waiting.popleft()
            if not job.kv:
                self._read(batch.fresh(job) + job.done)
            job.started = self._at if job.started is None else job.started
            batch.join(job)

    def _leave(self) -> None:
        """Who is done ends; the youngest make room when memory is full."""
        while (job := self._batch.ended()) is not None:
            self._ended.append(self._trajectory(job))
        while (job := self._batch.crowded_out()) is not None:
            self._waiting.appendleft(job)
            self.preempted += 1

    def _all(self) -> Iterator[Counted]:
        """Running ones in order of admission, then those that wait, in order."""
        return itertools.chain(self._batch.jobs.values(), self._waiting)

    def _take_out(self, jobs: Iterable[Counted]) -> None:
        """Forget trajectories."""
        for job in jobs:
            if job.ticket >= 0:
                self._batch.part(job)
            else:
                self._waiting.remove(job)

    # --- requests and weights

    def _under(self, version: int | None) -> list[Counted]:
        """Unfinished trajectories whose next token is of this version."""
        return [job for job in self._all() if job.version == version]

    def _fail(self, jobs: Sequence[Counted], error: str) -> None:
        self._take_out(jobs)
        self._ended += [_failure(job.request, error) for job in jobs]

    def _rebuild(self, jobs: Sequence[Counted]) -> None:
        """Read prompts (once per group) and tokens again; what waits does so when it joins."""
        running = [job for job in jobs if job.ticket >= 0]
        prompts = {job.prompt: job.prompt_tokens for job in running}
        self._read(sum(prompts.values()) + sum(map(self._batch.sampled, running)))
        for job in jobs:
            job.kv = False

    def _read(self, tokens: int) -> None:
        """Prefill, before anything else decodes."""
        if tokens:
            self._at += self._costs.prefill.seconds(tokens)
            self.prefilled += tokens

    def _refusal(self, request: Request) -> str | None:
        if request.version not in self._places.held:
            return f"version {request.version} was asked for, {self._info.instance} holds {self._places.named()}"
        if not len(request.prompt_ids):
            return "the prompt is empty"
        if request.sampling.max_tokens < 1:
            return f"sampling.max_tokens = {request.sampling.max_tokens}: must be at least 1"
        return self._too_long(request)

    def _too_long(self, request: Request) -> str | None:
        total = len(request.prompt_ids) + request.sampling.max_tokens
        if total > self._info.kv_tokens:
            return f"prompt + max_tokens = {total} exceeds the KV capacity of {self._info.kv_tokens} tokens"
        return None

    def _job(self, request: Request) -> Counted:
        numbers, most = _numbers(request), request.sampling.max_tokens
        drawn = self._lengths.at(numbers[_LENGTH])
        return Counted(request, min(drawn, most), drawn > most, [(0, request.version)], numbers)

    def _trajectory(self, job: Counted) -> Trajectory:
        """Ids and columns have the size of real ones; in them, only versions and the last token mean anything."""
        request, numbers, n = job.request, job.numbers, job.length
        ids = np.full(n, FIRST_ID + int(IDS * numbers[_TOKEN]), dtype=np.int32)
        if not job.cut:
            ids[-1] = EOS_ID
        assert job.started is not None
        return Trajectory(
            group=request.group,
            sample=request.sample,
            attempt=request.attempt,
            prompt_ids=request.prompt_ids,
            ids=ids,
            columns={LOGPROB: np.full(n, -1.0, dtype=np.float32), VERSION: _version_column(job)},
            finish="length" if job.cut else "eos",
            text=RIGHT if numbers[_OUTCOME] < self._solved else WRONG,
            instance=self._info.instance,
            seconds=self._at - job.started,
            purpose=request.purpose,
        )


def _failure(request: Request, error: str) -> Failure:
    return Failure(request.group, request.sample, request.attempt, error, request.purpose)


def _numbers(request: Request) -> tuple[float, ...]:
    """The request's own uniform numbers, by lane; the same in every attempt, on every instance, under every version."""
    key = stream_key(request.seed, request.purpose, request.group, request.sample)
    return tuple(uniforms(key, [0, 0, 0], [_LENGTH, _OUTCOME, _TOKEN]).tolist())


def _version_column(job: Counted) -> npt.NDArray[np.int32]:
    column = np.empty(job.length, dtype=np.int32)
    for first, version in job.versions:
        column[first:] = version
    return column


def _kv_tokens(jobs: Iterable[Counted]) -> int:
    """KV tokens that travel: a prompt once for the samples of its group."""
    moved = [job for job in jobs if job.kv]
    return sum(job.done for job in moved) + sum({job.prompt: job.prompt_tokens for job in moved}.values())


def _names(jobs: Iterable[Counted]) -> tuple[tuple[int, int], ...]:
    return tuple((job.request.group, job.request.sample) for job in jobs)
