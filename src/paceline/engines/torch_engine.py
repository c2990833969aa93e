"""The in-process engine: continuous batching over a packed model, with counter-based sampling and exact log-probs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paceline.algo.counter import stream_key, uniforms
from paceline.algo.sampling import Draw, Knobs, check, draw
from paceline.config.memory import KV_PAGE
from paceline.core.places import Places
from paceline.engines import tiles
from paceline.engines.attention import Part, PromptKV, StepAttention, Track
from paceline.engines.endings import Decode, Ending
from paceline.engines.paged import misfit
from paceline.engines.pages import PagePool
from paceline.engines.scheduler import Job, Row, Scheduler, Step
from paceline.engines.state import State, read, write
from paceline.models.attend import compiled_for
from paceline.models.packed import LoadedModel, PackedModel, Serving
from paceline.models.store import fingerprint
from paceline.native.calls import Kernels
from paceline.ports.rollout import EngineLoad, Failure, TakenIn
from paceline.types.errors import ConfigError, EngineError, ModelError
from paceline.types.moving import Carried
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION, FinishReason, Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, Unfinished, WeightsRef

PREFILL_TOKENS = 512
"""A step prefills prompts up to this many tokens, and longer ones in parts: those who decode wait for it."""
PROBE_STEPS = 4
"""Decode steps of a probe."""


class TorchEngine:
    """Engine, Cancels, HoldsWeights and MovesState of `ports.rollout` over one `LoadedModel` in this process.

    Each `step` is one packed forward per version: the last token of every running trajectory, and the prompts of those that
    join. A trajectory's numbers come from (seed, purpose, group, sample, position), its attention reads its own pages only,
    and its draw its own logits only: neighbours, slots and order of submission change it by rounding at most.
    It serves version 0, the weights it was given, until `load`. Who runs when memory is short: `engines.scheduler`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        instance: str,
        slots: int,
        kv_tokens: int,
        decode: Decode,
        clock: Callable[[], float],
        versions_held: int = 1,
        page: int = KV_PAGE,
        prefill_tokens: int = PREFILL_TOKENS,
        deterministic: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        """kv_tokens: capacity, rounded down to whole pages of `page` tokens. decode: ids -> text without special tokens.

        clock: seconds on a monotonic clock. versions_held: versions served side by side, each with a copy of the weights.
        deterministic: neighbours, slots and order of submission change no bit of a trajectory; see `engines.tiles`.
        kernels: compiled ones, for what they suit; torch's operators do the rest.
        Raises ConfigError for less than one slot, page or version; EngineError where this machine cannot be deterministic.
        """
        if slots < 1 or page < 1 or kv_tokens < page:
            raise ConfigError(f"slots = {slots}, kv_tokens = {kv_tokens}, page = {page}: the engine needs a slot and a page at least")
        self._places = Places(instance, versions_held)
        self._models: list[PackedModel] = [loaded.model, *(copy.deepcopy(loaded.model) for _ in range(versions_held - 1))]
        self._fingerprints: list[str | None] = [None] * versions_held
        self._shape, self._eos_ids = loaded.model.shape, frozenset(loaded.eos_ids)
        compute, device = loaded.model.compute, next(tensor.device for _, tensor in loaded.model.named_parameters())
        self._kernels, self.without_kernels = kernels, "" if kernels else "there are none"
        """The second: why no compiled kernels decode here; empty where they do."""
        if kernels is not None:
            try:
                if unread := misfit(self._shape, page, compute, device):
                    raise ConfigError(unread)
                self._models = self._served(kernels, deterministic)
            except ConfigError as reason:
                self._kernels, self.without_kernels = None, str(reason)
        self._wide = torch.promote_types(compute, torch.float32)
        """Of logits."""
        self._pool = PagePool(self._shape, kv_tokens // page, page, compute if self._kernels else self._wide, device)
        self._scheduler = Scheduler(self._pool, slots, prefill_tokens)
        self._instance, self._slots, self._decode, self._clock = instance, slots, decode, clock
        self._refused: list[Failure] = []
        self._tokens = self._prefilled = 0
        self._deterministic = deterministic
        if deterministic:
            self._prove()

    def _served(self, kernels: Kernels, alike: bool) -> list[PackedModel]:
        """Views of the models by kernels; ConfigError says why there are none, or why (`alike`) rows would not be alike."""
        try:
            views = [model.served(kernels) if isinstance(model, Serving) else None for model in self._models]
        except ModelError as error:
            raise ConfigError(str(error)) from error
        if alike and not all(view is not None and view.alike for view in views):
            raise ConfigError("they do not make all products of this model, so rows would not be alike")
        return [view or model for view, model in zip(views, self._models, strict=True)]

    @property
    def preempted(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.preempted

    @property
    def prefilled(self) -> int:
        """Tokens that ran through the model without being sampled in that step: prompts, KV made again, probes."""
        return self._prefilled

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order. One that can never run comes back from the next `step` as a Failure with the reason."""
        for request in requests:
            reason = self._refusal(request, request.version)
            if reason is None:
                self._scheduler.submit(self._job(request, request.version))
            else:
                self._refused.append(_failure(request, reason))

    @torch.inference_mode()
    def step(self) -> Sequence[Trajectory | Failure]:
        """One token for every running trajectory; admits waiting ones first. Returns what ended, in order of admission."""
        ended: list[Trajectory | Failure] = list(self._refused)
        self._refused.clear()
        plan = self._scheduler.plan()
        rows = plan.rows
        if not rows and not plan.parts:
            return ended
        now = self._clock()
        for row in plan.joins:
            row.job.admitted_at = now if row.job.admitted_at is None else row.job.admitted_at
        logits = self._logits(plan)
        return ended + self._advance(rows, self._draw(rows, logits)) if rows else ended

    def load_state(self) -> EngineLoad:
        """Present load. KV memory counts in whole pages; refused requests wait until `step` has returned their failures."""
        used = (self._pool.pages - self._pool.free) * self._pool.size
        waiting = len(self._scheduler.waiting) + len(self._refused)
        return EngineLoad(used, len(self._scheduler.running), waiting, self._tokens)

    def abort(self, group: int, sample: int, purpose: Purpose = "train", attempt: int | None = None) -> bool:
        """Forget a trajectory of this purpose, running or waiting; its KV memory is free at once."""
        key = (group, sample, purpose)
        return bool(self._scheduler.remove(lambda job: _key(job.request) == key and attempt in (None, job.request.attempt)))

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""
        return InstanceInfo(self._instance, self._slots, self._pool.pages * self._pool.size, self._places.count, exports_kv=True)

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Load the safetensors file or directory at `location` in place; returns the fingerprint of what lies in the weights.

        `keep`: rows decode on over the KV they have. `recompute`: they lose it, and their prompts and tokens run through the new
        weights, as slots and the prefill limit let them, before their next token. Waiting requests run under the new version
        from their next token on, whatever they have sampled so far. No other request finds KV of the old weights.
        Raises ModelError for a file that does not fit: that place is empty then, and the work under `replaces` comes back as failures.
        """
        if ref.kind != "full":
            raise EngineError(f"{self._instance}: version {ref.version} is of kind {ref.kind!r}, this engine loads full weights")
        place, leaving = self._places.make_way(ref, unfinished, replaces, self._work)
        try:
            self._fingerprints[place] = checksum = self._models[place].load_tensors(Path(location))
            self._places.arrived(ref.version, place)
        finally:
            if ref.version not in self._places.held:  # the old weights may be gone in part
                self._give_up(leaving, f"version {leaving} made way for version {ref.version}, which could not be loaded")
        if leaving is not None:
            self._scheduler.replace(leaving, ref.version, rebuild=unfinished == "recompute")
        return checksum

    @torch.inference_mode()
    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """Score fixed tokens as requests are served: the last PROBE_STEPS, or half of them, by a decode step each, the others as a prompt.

        It takes pages of its own, so work in flight is untouched, however full the memory. Raises EngineError if fewer than two
        tokens are given or the version is not held.
        """
        started, prompt = self._clock(), max(len(ids) // 2, len(ids) - PROBE_STEPS)
        if len(ids) < 2:
            raise EngineError(f"{self._instance}: cannot probe {len(ids)} tokens: it takes two at least")
        found, place = self._places.find(version)
        hidden = self._replay(self._models[place], ids[:prompt], ids[prompt:-1])
        logits = self._scores(self._models[place], hidden)
        scores = tiles.log_softmax(logits) if self._deterministic else logits.log_softmax(dim=-1)
        logprobs = scores.gather(1, torch.tensor(ids[1:]).to(scores.device)[:, None])[:, 0]
        checksum, seconds = self._checksum(place), self._clock() - started
        return ProbeReport(found, checksum, tuple(logprobs.tolist()), seconds, by=self._by(self._models[place]), prefilled=prompt)

    def _by(self, model: PackedModel) -> str:
        """As `ProbeReport.by`; none in deterministic mode, where the rows of a prompt attend through pages, unlike the trainer's."""
        if self._kernels is None or self._deterministic or not getattr(model, "alike", False):
            return ""
        return self._kernels.name if compiled_for(model.compute, self._shape.head_dim) else ""

    def hand_over(self, trajectories: Sequence[tuple[int, int]], location: str) -> tuple[tuple[int, int], ...]:
        """Write trajectories with their KV to `location` and forget them; see `engines.state`.

        One that waits to run again leaves without KV, one that never ran as its request. Nothing leaves if the file cannot be written.
        """
        wanted, now = {(group, sample, "train") for group, sample in trajectories}, self._clock()
        found = self._scheduler.save(lambda job: _key(job.request) in wanted)
        versions = {job.version for job, _ in found}
        write(State(self._fits(versions), [(_carried(job, now), saved) for job, saved in found]), location)
        leaving = {id(job) for job, _ in found}
        self._scheduler.remove(lambda job: id(job) in leaving)
        return tuple(_key(job.request)[:2] for job, _ in found)

    def take_in(self, location: str) -> TakenIn:
        """Go on with trajectories from a file: first in the queue here, with the KV that came along."""
        state, now = read(location, self._pool.dtype), self._clock()
        for what, wanted in self._fits({carried.version for carried, _ in state.trajectories}).items():
            if (found := state.fits.get(what)) != wanted:
                raise EngineError(f"{self._instance}: {location} holds state for {what} = {found}, here it is {wanted}")
        jobs, here = [], {(*_key(job.request), job.request.attempt) for job, _ in self._scheduler.find(lambda job: True)}
        for carried, saved in state.trajectories:
            known = (*_key(carried.request), carried.request.attempt) in here
            reason = "it is here already" if known else self._refusal(carried.request, carried.version)
            if reason is not None:
                raise EngineError(f"{self._instance}: cannot take trajectory {carried.key} in: {reason}")
            job = self._job(carried.request, carried.version)
            job.tokens, job.logprobs, job.kept, job.versions = carried.tokens, carried.logprobs, carried.kept, carried.versions
            job.ending.catch_up(job.tokens)
            job.admitted_at = None if carried.seconds is None else now - carried.seconds
            job.saved = saved
            jobs.append(job)
        self._scheduler.put_first(jobs)
        return TakenIn(tuple(_key(job.request)[:2] for job in jobs), self._scheduler.missing(jobs))

    def _fits(self, versions: Iterable[int]) -> dict[str, str]:
        """What must be equal in two engines between which trajectories of these versions move."""
        shape = self._shape
        kv = f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_dim}, width {shape.width}, vocabulary {shape.vocabulary}"
        dtype = next(str(tensor.dtype) for _, tensor in self._models[0].named_parameters())
        weights = {f"weights of version {version}": self._checksum(self._places.find(version)[1]) for version in versions}
        exact = {"rows of": self._kernels.name if self._kernels else "tiles"} if self._deterministic else {}
        return {"dtype": dtype, "shape": kv, **exact, **weights}

    def _checksum(self, place: int) -> str:
        """Fingerprint of the weights in a place."""
        found = self._fingerprints[place]
        if found is None:
            found = self._fingerprints[place] = fingerprint(self._models[place].named_parameters())
        return found

    def _work(self, version: int | None) -> int:
        """Trajectories unfinished under a version."""
        return len(self._scheduler.find(lambda job: job.version == version))

    def _give_up(self, version: int | None, reason: str) -> None:
        """End all work under a version."""
        self._refused += [_failure(job.request, reason) for job in self._scheduler.remove(lambda job: job.version == version)]

    def _refusal(self, request: Request, version: int) -> str | None:
        """Why a request can never run here under a version, or None."""
        ids, sampling = request.prompt_ids, request.sampling
        if version not in self._places.held:
            return f"version {version} was asked for, {self._instance} holds {self._places.named()}"
        try:
            check(sampling)
        except ConfigError as error:
            return str(error)
        length = len(ids) + sampling.max_tokens
        if not len(ids):
            return "the prompt is empty"
        if ids.min() < 0 or ids.max() >= self._shape.vocabulary:
            return f"prompt ids reach from {ids.min()} to {ids.max()}, the vocabulary has {self._shape.vocabulary} tokens"
        if length > self._shape.max_positions:
            return f"prompt of {len(ids)} + max_tokens {sampling.max_tokens} = {length} exceeds the model's {self._shape.max_positions}"
        return self._scheduler.refusal(len(ids), sampling.max_tokens)

    def _job(self, request: Request, version: int) -> Job:
        """A job that has sampled nothing yet."""
        sampling, ids = request.sampling, np.ascontiguousarray(request.prompt_ids, dtype=np.int64)
        numbers = stream_key(request.seed, request.purpose, request.group, request.sample)
        ending = Ending(self._decode, self._eos_ids | set(sampling.stop_ids), sampling.stop, sampling.max_tokens)
        return Job(request, ids.tobytes(), numbers, ending, version)

    def _logits(self, plan: Step) -> torch.Tensor:
        """Of every row of a step [N, vocabulary]: one forward per version."""
        parts = plan.by_version()
        done = [self._part(self._models[self._places.find(version)[1]], part) for version, part in parts.items()]
        if len(done) == 1:
            return done[0]
        place = {id(row): n for n, row in enumerate(row for part in parts.values() for row in part.rows)}
        return torch.cat(done)[[place[id(row)] for row in plan.rows]]

    def _part(self, model: PackedModel, part: Step) -> torch.Tensor:
        """Logits of the rows of one version [N, vocabulary]."""
        rebuilt = [row for row in part.joins if row.tokens]
        states: list[torch.Tensor] = []
        if part.decode or part.parts or rebuilt:
            states.append(self._forward(model, self._pool, part.decode, part.parts, rebuilt)[: len(part.decode)])
        states += [row.state()[None] for row in part.joins]
        return self._scores(model, torch.cat(states))

    def _scores(self, model: PackedModel, states: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states [N, vocabulary]."""
        if not len(states):
            return torch.empty(0, self._shape.vocabulary, dtype=self._wide, device=self._pool.device)
        return tiles.logits(model, states, self._kernels) if self._deterministic else model.logits(states)

    @torch.inference_mode()
    def _prove(self) -> None:
        tiles.prove(self._models[0], self._pool, self._kernels)

    def _forward(
        self, model: PackedModel, pool: PagePool, tracks: Sequence[Track], parts: Sequence[Part] = (), rebuilt: Sequence[Track] = ()
    ) -> torch.Tensor:
        """Final hidden states [tracks + prompt tokens + rebuilt tokens, width]; the KV of all these tokens is in memory afterwards."""
        parts = sorted(parts, key=lambda part: part.start > 0)
        if self._deterministic:
            hidden = tiles.hidden(model, pool, tiles.rows_of(tracks, parts, rebuilt), self._kernels)
        else:
            hidden = self._packed(model, pool, tracks, parts, rebuilt)
        end = len(tracks)
        for part in parts:
            end += len(part.ids)
            if part.stop == len(part.prompt.ids):
                part.prompt.last = hidden[end - 1].clone()
        for track in rebuilt:
            end += len(track.tokens)
            track.last = hidden[end - 1].clone()
        self._prefilled += len(hidden) - len(tracks)
        return hidden

    def _packed(
        self, model: PackedModel, pool: PagePool, tracks: Sequence[Track], parts: Sequence[Part], rebuilt: Sequence[Track]
    ) -> torch.Tensor:
        """`_forward` as one run of all rows together."""
        ids = [track.tokens[-1] for track in tracks]
        positions = [len(track.prompt.ids) + len(track.tokens) - 1 for track in tracks]
        for part in parts:
            ids += part.ids
            positions += range(part.start, part.stop)
        for track in rebuilt:
            ids += track.tokens
            positions += range(len(track.prompt.ids), len(track.prompt.ids) + len(track.tokens))
        rows = torch.tensor([ids, positions]).to(pool.device)
        return model.hidden(rows[0], rows[1], StepAttention(pool, tracks, parts, rebuilt, self._kernels))

    def _replay(self, model: PackedModel, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Prefill a prompt, decode given tokens after it; hidden states of all [prompt + tokens, width]."""
        track = Track(PromptKV(tuple(prompt)))
        pool = self._pool.another(self._pool.needed(len(prompt)) + self._pool.needed(len(tokens)))
        pool.extend(track.prompt.span, pool.needed(len(prompt)))
        hidden = [self._forward(model, pool, [], [Part(track.prompt, 0, len(prompt))])]
        for token in tokens:
            track.tokens.append(token)
            pool.extend(track.own, pool.needed(len(track.tokens)) - len(track.own.places))
            hidden.append(self._forward(model, pool, [track]))
        return torch.cat(hidden)

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor) -> Draw:
        """One token per row from its logits [N, vocabulary]."""
        numbers = uniforms(np.stack([row.job.numbers for row in rows]), [len(row.tokens) for row in rows])
        samplings = [row.job.request.sampling for row in rows]
        if self._deterministic:
            return tiles.drawn(logits, samplings, torch.from_numpy(numbers))
        return draw(logits, Knobs.of(samplings), torch.from_numpy(numbers))

    def _advance(self, rows: Sequence[Row], drawn: Draw) -> list[Trajectory | Failure]:
        """Append the drawn tokens; end the rows that are done."""
        ended: list[Trajectory | Failure] = []
        columns = (drawn.ids.tolist(), drawn.logprob.tolist(), drawn.logprob_kept.tolist(), drawn.finite.tolist())
        for row, token, logprob, kept, finite in zip(rows, *columns, strict=True):
            job = row.job
            if not finite:
                reason = f"version {job.version} gives logits that are not finite at token {len(job.tokens)} after the prompt"
                ended.append(_failure(job.request, reason))
                self._scheduler.finish(row)
                continue
            job.tokens.append(token)
            job.logprobs.append(logprob)
            job.kept.append(kept)
            job.versions.append(job.version)
            self._tokens += 1
            finish = job.ending.after(job.tokens)
            if finish is not None:
                self._scheduler.finish(row)
                ended.append(self._trajectory(job, finish))
        return ended

    def _trajectory(self, job: Job, finish: FinishReason) -> Trajectory:
        request, sampling = job.request, job.request.sampling
        dtype = np.float64 if self._wide == torch.float64 else np.float32
        columns: dict[str, npt.NDArray[Any]] = {
            LOGPROB: np.array(job.logprobs, dtype=dtype),
            VERSION: np.array(job.versions, dtype=np.int32),
        }
        if sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0):
            columns[LOGPROB_KEPT] = np.array(job.kept, dtype=dtype)
        assert job.admitted_at is not None
        return Trajectory(
            group=request.group,
            sample=request.sample,
            attempt=request.attempt,
            prompt_ids=request.prompt_ids,
            ids=np.array(job.tokens, dtype=np.int32),
            columns=columns,
            finish=finish,
            text=job.ending.text(job.tokens, finish),
            instance=self._instance,
            seconds=self._clock() - job.admitted_at,
            purpose=request.purpose,
        )


def _carried(job: Job, now: float) -> Carried:
    seconds = None if job.admitted_at is None else now - job.admitted_at
    return Carried(job.request, job.version, job.tokens, job.logprobs, job.kept, job.versions, seconds)


def _failure(request: Request, reason: str) -> Failure:
    return Failure(request.group, request.sample, request.attempt, reason, request.purpose)


def _key(request: Request) -> tuple[int, int, Purpose]:
    return request.group, request.sample, request.purpose
