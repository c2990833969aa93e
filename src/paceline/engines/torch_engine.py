"""The in-process engine: continuous batching over a packed model, with counter-based sampling and exact log-probs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paceline.algo.counter import stream_key, uniforms
from paceline.algo.sampling import Draw, Knobs, check, draw
from paceline.config.memory import KV_PAGE
from paceline.engines.attention import PromptKV, StepAttention, Track
from paceline.engines.endings import Decode, Ending
from paceline.engines.pages import PagePool
from paceline.engines.scheduler import Job, Row, Scheduler
from paceline.models.packed import LoadedModel
from paceline.models.store import fingerprint
from paceline.ports.rollout import EngineLoad, Failure, Unfinished
from paceline.types.errors import ConfigError, EngineError
from paceline.types.progress import ProbeReport
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION, FinishReason, Purpose, Request, Trajectory
from paceline.types.weights import InstanceInfo, WeightsRef

PREFILL_TOKENS = 4096
"""A step prefills prompts up to this many tokens, at least one prompt."""


class TorchEngine:
    """Engine, Cancels and HoldsWeights of `ports.rollout` over one `LoadedModel` in this process.

    Each `step` is one packed forward: the last token of every running trajectory, and the prompts of those that join. A
    trajectory's numbers come from (seed, purpose, group, sample, position), its attention reads its own pages only, and
    its draw its own logits only: neighbours, slots and order of submission change it by rounding at most.
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
        page: int = KV_PAGE,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        """kv_tokens: capacity, rounded down to whole pages of `page` tokens. decode: ids -> text without special tokens.

        clock: seconds on a monotonic clock. Raises ConfigError for less than one slot or page.
        """
        if slots < 1 or page < 1 or kv_tokens < page:
            raise ConfigError(f"slots = {slots}, kv_tokens = {kv_tokens}, page = {page}: the engine needs a slot and a page at least")
        self._model, self._shape, self._eos_ids = loaded.model, loaded.model.shape, frozenset(loaded.eos_ids)
        double = any(tensor.dtype == torch.float64 for _, tensor in loaded.model.named_parameters())
        self._dtype = torch.float64 if double else torch.float32
        self._pool = PagePool(self._shape, kv_tokens // page, page, self._dtype)
        self._scheduler = Scheduler(self._pool, slots, prefill_tokens, self._watch)
        self._instance, self._slots, self._decode, self._clock = instance, slots, decode, clock
        self._version: int | None = 0
        self._fingerprint: str | None = None
        self._refused: list[Failure] = []
        self._tokens = self._prefilled = 0

    @property
    def preempted(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.preempted

    @property
    def prefilled(self) -> int:
        """Prompt tokens that ran through the model since the start, probes included."""
        return self._prefilled

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in order. One that can never run comes back from the next `step` as a Failure with the reason."""
        for request in requests:
            reason = self._refusal(request)
            if reason is not None:
                self._refused.append(Failure(request.group, request.sample, request.attempt, reason, request.purpose))
                continue
            ids = np.ascontiguousarray(request.prompt_ids, dtype=np.int64)
            numbers = stream_key(request.seed, request.purpose, request.group, request.sample)
            self._scheduler.submit(Job(request, (request.version, ids.tobytes()), numbers))

    @torch.inference_mode()
    def step(self) -> Sequence[Trajectory | Failure]:
        """One token for every running trajectory; admits waiting ones first. Returns what ended, in order of admission."""
        ended: list[Trajectory | Failure] = list(self._refused)
        self._refused.clear()
        plan = self._scheduler.plan()
        rows = plan.decode + plan.joins
        if not rows:
            return ended
        now = self._clock()
        for row in plan.joins:
            row.job.admitted_at = now if row.job.admitted_at is None else row.job.admitted_at
        hidden = self._forward(plan.decode, plan.fresh)[: len(plan.decode)] if plan.decode or plan.fresh else None
        firsts = [row.prompt.last for row in plan.joins if row.prompt.last is not None]
        assert len(firsts) == len(plan.joins), "a prompt in memory keeps its last hidden state"
        parts = [hidden] if hidden is not None and plan.decode else []
        drawn = self._draw(rows, torch.cat([*parts, *(first[None] for first in firsts)]))
        return ended + self._advance(rows, drawn)

    def load_state(self) -> EngineLoad:
        """Present load. KV memory counts in whole pages; refused requests wait until `step` has returned their failures."""
        used = (self._pool.pages - self._pool.free) * self._pool.size
        waiting = len(self._scheduler.waiting) + len(self._refused)
        return EngineLoad(used, len(self._scheduler.running), waiting, self._tokens)

    def abort(self, group: int, sample: int, purpose: Purpose = "train") -> bool:
        """Forget a trajectory of this purpose, running or waiting; its KV memory is free at once."""
        return self._scheduler.abort(group, sample, purpose)

    def info(self) -> InstanceInfo:
        """Identity and capabilities."""
        return InstanceInfo(self._instance, self._slots, kv_tokens=self._pool.pages * self._pool.size)

    def load(self, ref: WeightsRef, location: str, unfinished: Unfinished = "none", replaces: int | None = None) -> str:
        """Replace the weights in place by the safetensors file or directory at `location`; returns the fingerprint of what lies in them.

        No KV survives: prompts leave memory with their last request. Raises EngineError while there is work, ModelError for a
        file that does not fit; if that happens halfway, every request fails until a load succeeds.
        """
        if self._scheduler.running or self._scheduler.waiting:
            state = self.load_state()
            raise EngineError(
                f"{self._instance}: cannot load version {ref.version} with {state.running} trajectories running and {state.waiting} waiting"
            )
        if ref.kind != "full":
            raise EngineError(f"{self._instance}: version {ref.version} is of kind {ref.kind!r}, this engine loads full weights")
        assert self._pool.free == self._pool.pages, "an idle engine holds no KV"
        self._version = None
        self._fingerprint = self._model.load_tensors(Path(location))
        self._version = ref.version
        return self._fingerprint

    @torch.inference_mode()
    def probe(self, ids: Sequence[int], version: int | None = None) -> ProbeReport:
        """Score fixed tokens as requests are served: the first half of `ids` as a prompt, the others by one decode step each.

        Work in flight is untouched. Raises EngineError if fewer than two tokens are given, the pages are not free, or a load failed.
        """
        started, half = self._clock(), len(ids) // 2
        pages = self._pool.needed(half) + self._pool.needed(len(ids) - half)
        if half < 1 or pages > self._pool.free or self._version is None:
            raise EngineError(
                f"{self._instance}: cannot probe {len(ids)} tokens ({pages} pages, {self._pool.free} free, version {self._version})"
            )
        track = Track(PromptKV(tuple(ids[:half])))
        try:
            hidden = self._replay(track, ids[half:-1])
        finally:
            self._pool.release(track.prompt.span)
            self._pool.release(track.own)
        scores = self._model.logits(hidden).log_softmax(dim=-1)
        logprobs = scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._model.named_parameters())
        return ProbeReport(self._version, self._fingerprint, tuple(logprobs.tolist()), self._clock() - started)

    def _refusal(self, request: Request) -> str | None:
        """Why a request can never run here, or None."""
        ids, sampling = request.prompt_ids, request.sampling
        try:
            check(sampling)
        except ConfigError as error:
            return str(error)
        length = len(ids) + sampling.max_tokens
        if request.version != self._version:
            return f"version {request.version} was asked for, {self._instance} holds {self._version}"
        if not len(ids):
            return "the prompt is empty"
        if ids.min() < 0 or ids.max() >= self._shape.vocabulary:
            return f"prompt ids reach from {ids.min()} to {ids.max()}, the vocabulary has {self._shape.vocabulary} tokens"
        if length > self._shape.max_positions:
            return f"prompt of {len(ids)} + max_tokens {sampling.max_tokens} = {length} exceeds the model's {self._shape.max_positions}"
        return self._scheduler.refusal(len(ids), sampling.max_tokens)

    def _watch(self, request: Request) -> Ending:
        sampling = request.sampling
        return Ending(self._decode, self._eos_ids | set(sampling.stop_ids), sampling.stop, sampling.max_tokens)

    def _forward(self, tracks: Sequence[Track], fresh: Sequence[PromptKV]) -> torch.Tensor:
        """Final hidden states [tracks + prompt tokens, width]; the KV of all these tokens is in memory afterwards."""
        ids = [track.tokens[-1] for track in tracks]
        positions = [len(track.prompt.ids) + len(track.tokens) - 1 for track in tracks]
        for prompt in fresh:
            ids += prompt.ids
            positions += range(len(prompt.ids))
        attend = StepAttention(self._pool, self._shape, tracks, fresh, self._dtype)
        hidden = self._model.hidden(torch.tensor(ids), torch.tensor(positions), attend)
        end = len(tracks)
        for prompt in fresh:
            end += len(prompt.ids)
            prompt.last = hidden[end - 1].clone()
        self._prefilled += end - len(tracks)
        return hidden

    def _replay(self, track: Track, tokens: Sequence[int]) -> torch.Tensor:
        """Prefill a track's prompt, decode given tokens after it; hidden states of all [prompt + tokens, width]."""
        self._pool.extend(track.prompt.span, self._pool.needed(len(track.prompt.ids)))
        hidden = [self._forward([], [track.prompt])]
        for token in tokens:
            track.tokens.append(token)
            self._pool.extend(track.own, self._pool.needed(len(track.tokens)) - len(track.own.places))
            hidden.append(self._forward([track], []))
        return torch.cat(hidden)

    def _draw(self, rows: Sequence[Row], hidden: torch.Tensor) -> Draw:
        """One token per row from its hidden state [N, width]."""
        numbers = uniforms(np.stack([row.job.numbers for row in rows]), [len(row.tokens) for row in rows])
        return draw(self._model.logits(hidden), Knobs.of([row.job.request.sampling for row in rows]), torch.from_numpy(numbers))

    def _advance(self, rows: Sequence[Row], drawn: Draw) -> list[Trajectory | Failure]:
        """Append the drawn tokens; end the rows that are done."""
        ended: list[Trajectory | Failure] = []
        columns = (drawn.ids.tolist(), drawn.logprob.tolist(), drawn.logprob_kept.tolist(), drawn.finite.tolist())
        for row, token, logprob, kept, finite in zip(rows, *columns, strict=True):
            request = row.job.request
            if not finite:
                reason = f"version {request.version} gives logits that are not finite at token {len(row.tokens)} after the prompt"
                ended.append(Failure(request.group, request.sample, request.attempt, reason, request.purpose))
                self._scheduler.finish(row)
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.kept.append(kept)
            self._tokens += 1
            finish = row.ending.after(row.tokens)
            if finish is not None:
                self._scheduler.finish(row)
                ended.append(self._trajectory(row, finish))
        return ended

    def _trajectory(self, row: Row, finish: FinishReason) -> Trajectory:
        request, sampling = row.job.request, row.job.request.sampling
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        columns: dict[str, npt.NDArray[Any]] = {
            LOGPROB: np.array(row.logprobs, dtype=dtype),
            VERSION: np.full(len(row.tokens), request.version, dtype=np.int32),
        }
        if sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0):
            columns[LOGPROB_KEPT] = np.array(row.kept, dtype=dtype)
        assert row.job.admitted_at is not None
        return Trajectory(
            group=request.group,
            sample=request.sample,
            attempt=request.attempt,
            prompt_ids=request.prompt_ids,
            ids=np.array(row.tokens, dtype=np.int32),
            columns=columns,
            finish=finish,
            text=row.ending.text(row.tokens, finish),
            instance=self._instance,
            seconds=self._clock() - row.job.admitted_at,
            purpose=request.purpose,
        )
