"""The trainer: whole groups in, raw gradient sums, one scaled step, published weights. One process, any torch device.

Forward and backward run over packed micro-batches with shared prompts; what they add up to does not depend on how the
sequences were packed, split into dispatches or ordered. See docs/design/trainer.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from paceline.algo.correction import Correction
from paceline.algo.logprobs import TokenScores, token_logprobs
from paceline.algo.loss import PolicyLoss, check_options, policy_loss
from paceline.algo.shaping import overlong_penalty
from paceline.config.schema import AlgorithmConfig, ModelConfig, RolloutConfig, TrainerConfig
from paceline.durable import spare
from paceline.models.packed import LoadedModel, PackedModel, Tunable
from paceline.models.store import export, fingerprint, write_tensors
from paceline.native.calls import LANES, Kernels
from paceline.trainers import checkpoint
from paceline.trainers.attend import block_attend
from paceline.trainers.checkpoint import Counters
from paceline.trainers.measures import Measures
from paceline.trainers.optimizer import Optimizer, learning_rate
from paceline.trainers.packing import PackedBatch, by_group, pack, plan
from paceline.trainers.probing import Probing, scorer
from paceline.trainers.sequences import TrainingSequence, training_sequences
from paceline.types.errors import CheckpointError, ConfigError, TrainerError
from paceline.types.progress import ProbeReport, UpdateReport
from paceline.types.records import ScoredGroup
from paceline.types.weights import WeightsRef


@dataclass(slots=True)
class _Pending:
    """What was accumulated for the next step."""

    groups: list[ScoredGroup] = field(default_factory=list)
    sequences: list[TrainingSequence] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    loss: float = 0.0
    """Raw sum, like the gradients."""

    def ids(self) -> tuple[int, ...]:
        """Group ids in order."""
        return tuple(group.group for group in self.groups)


class TorchTrainer:
    """`Trainer`, `Publishes` and `Checkpoints` over a packed model with master weights of its own."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        algorithm: AlgorithmConfig,
        trainer: TrainerConfig,
        rollout: RolloutConfig,
        model: ModelConfig,
        total_updates: int,
        reference: LoadedModel | None = None,
        shared_prompts: bool = True,
        deterministic: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        """`loaded`: made by `models.load.load(config, train=True)`; its parameters are the master weights (float32 or float64).

        Without `reference` the starting weights are kept as one, in compute dtype, if kl_weight > 0. `shared_prompts` off computes
        every sample with its own copy of the prompt: slower, the same result. `deterministic`: no micro-batch holds sequences of two
        groups, so that groups in the same order give the same bits however they were dispatched. ConfigError for settings without meaning
        and for options that this model does not have, ModelError where this machine cannot compile.
        """
        self._loaded, self._model = loaded, loaded.model
        self._algorithm, self._trainer, self._rollout = algorithm, trainer, rollout
        self._total_updates, self._shared, self._deterministic = total_updates, shared_prompts, deterministic
        self._length = algorithm.constant_length or rollout.max_tokens
        self._filtered = rollout.top_p < 1 or rollout.top_k > 0
        self._serving: torch.dtype = getattr(torch, model.dtype)
        self._weights = dict(self._model.named_parameters())
        self._correction = _check_settings(algorithm, rollout, self._length, self._weights)
        self._device = next(iter(self._weights.values())).device
        self._optimizer = Optimizer(self._weights, trainer)
        self._kernels = kernels if self._device.type == "cpu" else None
        _tune(self._model, trainer, self._kernels)
        self._probing = Probing(self._model, self._device, trainer.head_chunk, self._kernels)
        self._reference = self._make_reference(reference)
        self._counters = Counters()
        self._pending = _Pending()
        self._published: WeightsRef | None = None

    def accumulate(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Forward and backward of whole groups; returns metrics of this dispatch. Nothing is accumulated if it raises a check."""
        self._admit(groups)
        measures = Measures()
        sequences = training_sequences(groups, self._algorithm, filtered=self._filtered, max_tokens=self._rollout.max_tokens)
        scored = [sequence for sequence in sequences if sequence.in_loss]
        for together in by_group(scored) if self._deterministic else [scored]:
            for moves in (True, False):
                part = [sequence for sequence in together if self._moves(sequence) == moves]
                for batch in plan(part, self._trainer.micro_batch_tokens, shared=self._shared).batches:
                    self._micro_batch([part[index] for index in batch.sequences], moves, measures)
        self._pending.groups += groups
        self._pending.sequences += sequences
        self._pending.measures.merge(measures)
        return measures.values() | {"tokens": float(sum(len(s.ids) for s in scored)), "sequences": float(len(scored))}

    def step(self) -> UpdateReport:
        """Scale by the update's denominator, clip, step, clear. A non-finite loss or gradient skips the step (`applied` False).

        TrainerError without accumulated groups; before the step when fresh log-probs differ from the engine's by more than
        gap_stop; after the nonfinite_limit-th skipped update in a row. An update without a single loss token moves nothing.
        """
        pending, started = self._pending, perf_counter()
        if not pending.groups:
            raise TrainerError("step without accumulated groups")
        self._check_gap(pending)
        scored = [sequence for sequence in pending.sequences if sequence.in_loss]
        tokens = sum(len(sequence.ids) for sequence in scored)
        denominator = {"token": tokens, "sequence": len(scored), "constant": len(scored) * self._length}[self._algorithm.aggregation]
        update = self._counters.update + 1
        rate = learning_rate(self._trainer, update, self._total_updates)
        norm = self._optimizer.norm(denominator or 1)
        applied = math.isfinite(pending.loss) and math.isfinite(norm)
        culprits = () if applied else self._culprits(scored)
        moved = applied and denominator > 0 and rate > 0
        if moved:
            self._optimizer.step(rate, denominator, norm)
        self._optimizer.clear()
        self._count(update, applied, moved)
        pending.measures.spend("optimizer", perf_counter() - started)
        self._pending = _Pending()
        report = UpdateReport(
            update=update,
            applied=applied,
            groups=pending.ids(),
            sequences=len(scored),
            tokens=tokens,
            metrics=self._metrics(pending, denominator) | {"grad_norm": norm, "learning_rate": rate},
            culprits=culprits,
        )
        if self._counters.skipped_in_a_row >= self._trainer.nonfinite_limit:
            raise TrainerError(
                f"update {update}: non-finite loss or gradient in {self._counters.skipped_in_a_row} updates in a row "
                f"(trainer.nonfinite_limit); last caused by (group, sample) {list(culprits)}"
            )
        return report

    def publish(self, version: int, location: str) -> WeightsRef:
        """Write the weights in serving dtype as a safetensors file, complete or absent; return their reference.

        It is not synced: engines that live read it, and a resumed run publishes anew.
        """
        path = Path(location)
        checksum = write_tensors(self._weights.items(), path, self._serving, synced=False, over=spare(path))
        self._published = WeightsRef(version=version, fingerprint=checksum)
        self._counters = replace(self._counters, version=version)
        return self._published

    def probe(self, ids: Sequence[int]) -> ProbeReport:
        """Log-probs of ids[1:] at temperature 1 under the version last published (or the starting weights), in serving dtype, and how
        much of them is rounding (`Probing.rounding`).

        Ask before the next update: TrainerError once the weights have moved on, for those of the version exist only on disk.
        """
        started = perf_counter()
        version = self._counters.version
        if version is None:
            raise TrainerError(f"probe after update {self._counters.update} moved the published weights: ask right after publish")
        if len(ids) < 2:
            raise TrainerError(f"a probe needs at least 2 tokens, got {len(ids)}")
        logprobs = self._probing.logprobs(ids)
        rounding = self._probing.rounding(ids, logprobs)
        served = ((name, weight.to(self._serving)) for name, weight in self._weights.items())
        checksum = self._published.fingerprint if self._published else fingerprint(served)
        by = "" if self._trainer.compile else self._probing.by  # what torch.compile makes multiplies in its own order
        return ProbeReport(version, checksum, tuple(logprobs.tolist()), perf_counter() - started, rounding, by)

    def export(self, directory: str) -> None:
        """Write a Hugging Face directory (config, tokenizer, safetensors in serving dtype) that AutoModelForCausalLM loads."""
        export(self._loaded, self._weights.items(), Path(directory), self._serving)

    def save(self, directory: str) -> None:
        """Write master weights, moments and counters. What was accumulated and not stepped is no part of it: those groups train again."""
        checkpoint.save(Path(directory), self._weights, self._optimizer.moments(), self._counters)

    def restore(self, directory: str) -> None:
        """Continue bit for bit where `save` stood; anything accumulated is dropped. CheckpointError names what does not fit."""
        master, moments, counters = checkpoint.read(Path(directory))
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in master.items()}
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in self._weights.items()}
        if found != expected:
            odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise CheckpointError(f"{directory}: {len(odd)} weights do not fit this model, e.g. {odd[0]!r}")
        self._optimizer.restore(moments)
        with torch.no_grad():
            for name, tensor in master.items():
                self._weights[name].copy_(tensor)
        self._optimizer.clear()
        self._counters, self._pending, self._published = counters, _Pending(), None

    def _admit(self, groups: Sequence[ScoredGroup]) -> None:
        if not groups:
            raise TrainerError("accumulate without groups")
        if self._algorithm.advantage == "batch_std" and self._pending.groups:
            raise ConfigError(
                "algorithm.advantage = 'batch_std' divides by the deviation of the whole update: all its groups must come in one dispatch"
            )
        ids = [*self._pending.ids(), *(group.group for group in groups)]
        twice = sorted({group for group in ids if ids.count(group) > 1})
        if twice:
            raise TrainerError(f"groups {twice} come twice in update {self._counters.update + 1}")

    def _moves(self, sequence: TrainingSequence) -> bool:
        """Whether the sequence can have a gradient at all; if not it is scored for the metrics, without a backward pass."""
        return sequence.advantage != 0 or (self._algorithm.kl_weight > 0 and sequence.penalised)

    def _micro_batch(self, sequences: Sequence[TrainingSequence], moves: bool, measures: Measures) -> None:
        started = perf_counter()
        with torch.set_grad_enabled(moves):
            (loss, metrics), scores, batch = self._loss(sequences)
        value = float(loss.detach())
        self._pending.loss += value
        measures.add(metrics | {"entropy": float(scores.entropy.mean())}, len(batch.targets))
        _compare(sequences, scores, batch, self._counters.version, measures)
        measures.spend("forward", perf_counter() - started)
        started = perf_counter()
        if moves and math.isfinite(value):
            loss.backward()  # type: ignore[no-untyped-call]
        measures.spend("backward", perf_counter() - started)

    def _loss(self, sequences: Sequence[TrainingSequence]) -> tuple[PolicyLoss, TokenScores, PackedBatch]:
        """Raw sum of the loss over sequences, with what it was made of."""
        algorithm = self._algorithm
        batch = pack(sequences, shared=self._shared)
        scores = self._score(self._model, batch, entropy=True)
        behaviour = torch.from_numpy(np.concatenate([s.behaviour for s in sequences])).to(scores.logp)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._score(self._reference, batch).logp
        loss = policy_loss(
            scores.kept if self._filtered else scores.logp,
            behaviour,
            torch.tensor([s.advantage for s in sequences], dtype=torch.float64, device=self._device),
            torch.ones_like(scores.logp, dtype=torch.bool),
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip,
            aggregation=algorithm.aggregation,
            constant_length=self._length,
            ratio=algorithm.ratio,
            correction=self._correction,
            kl=algorithm.kl,
            kl_weight=algorithm.kl_weight,
            reference_logp=reference,
            kl_logp=scores.logp,
            kl_sequences=torch.tensor([s.penalised for s in sequences], device=self._device),
            segments=batch.segments.to(self._device),
            denominator=1,
        )
        return loss, scores, batch

    def _score(self, model: PackedModel, batch: PackedBatch, *, entropy: bool = False) -> TokenScores:
        attend = block_attend(batch.blocks, model.shape.scale, self._device, kernels=self._kernels)
        hidden = model.hidden(batch.ids.to(self._device), batch.positions.to(self._device), attend)
        return token_logprobs(
            hidden.index_select(0, batch.rows.to(self._device)),
            batch.targets.to(self._device),
            model.logits,
            temperature=self._rollout.temperature,
            top_p=self._rollout.top_p,
            top_k=self._rollout.top_k,
            chunk=self._trainer.head_chunk,
            entropy=entropy,
            scorer=scorer(model),
        )

    def _make_reference(self, given: LoadedModel | None) -> PackedModel | None:
        if self._algorithm.kl == "none":
            return None
        if given is not None:
            theirs, ours = given.model.shape.vocabulary, self._model.shape.vocabulary
            if theirs != ours:
                raise ConfigError(
                    f"algorithm.reference = {str(given.directory)!r}: it has {theirs} tokens and the policy {ours}; "
                    "a KL term compares log-probs over one vocabulary"
                )
            if isinstance(given.model, Tunable):  # as the copy below is: where weights are equal, so are log-probs
                given.model.tune(layers_again=False, compiled=self._trainer.compile, kernels=self._kernels)
            return given.model
        if self._algorithm.kl_weight == 0:
            return None
        model = copy.deepcopy(self._model)
        for _, weight in model.named_parameters():
            weight.requires_grad_(False)
            weight.data = weight.data.to(self._serving)
        return model

    def _check_gap(self, pending: _Pending) -> None:
        gap = pending.measures.gap()
        if gap is not None and gap > self._algorithm.gap_stop:
            raise TrainerError(
                f"update {self._counters.update + 1}: log-probs of engine and trainer differ by {gap:.4g} nats on average for tokens of "
                f"the present weights (algorithm.gap_stop = {self._algorithm.gap_stop}): they do not compute the same policy"
            )

    def _culprits(self, scored: Sequence[TrainingSequence]) -> tuple[tuple[int, int], ...]:
        """Each sequence alone, forward and backward: exact, and paid only when an update is skipped."""
        found = []
        for sequence in scored:
            self._optimizer.clear()
            moves = self._moves(sequence)
            with torch.set_grad_enabled(moves):
                loss = self._loss([sequence])[0].loss
            finite = bool(loss.isfinite())
            if finite and moves:
                loss.backward()  # type: ignore[no-untyped-call]
                finite = math.isfinite(self._optimizer.norm(1))
            if not finite:
                found.append((sequence.group, sequence.sample))
        return tuple(found)

    def _count(self, update: int, applied: bool, moved: bool) -> None:
        self._counters = Counters(
            update=update,
            skipped=self._counters.skipped + (not applied),
            skipped_in_a_row=0 if applied else self._counters.skipped_in_a_row + 1,
            version=None if moved else self._counters.version,
        )

    def _metrics(self, pending: _Pending, denominator: int) -> dict[str, float]:
        learning = {sequence.group for sequence in pending.sequences if sequence.advantage != 0}
        return {
            **pending.measures.values(),
            "loss": pending.loss / (denominator or 1),
            "frac_zero_advantage": 1 - len(learning) / len(pending.groups),
            "skipped_updates": float(self._counters.skipped),
        }


def _compare(
    sequences: Sequence[TrainingSequence], scores: TokenScores, batch: PackedBatch, version: int | None, measures: Measures
) -> None:
    """Record |engine - trainer| per token over the full vocabulary, apart for trajectories of exactly the present weights.

    A token of the present weights after one of earlier weights is none of those: under `keep` it was sampled over earlier keys and values.
    """
    engine = np.concatenate([sequence.full for sequence in sequences])
    gaps = np.abs(scores.logp.detach().cpu().double().numpy() - engine)
    fresh = np.concatenate([np.full(len(s.versions), bool((s.versions == version).all())) for s in sequences])
    measures.fresh.append(gaps[fresh])
    measures.moved.append(gaps[~fresh])


def _check_settings(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, length: int, weights: Mapping[str, torch.Tensor]
) -> Correction | None:
    """Refuse settings without meaning; the correction that they name."""
    try:
        check_options(
            algorithm.clip_low,
            algorithm.clip_high,
            algorithm.dual_clip,
            algorithm.aggregation,
            length,
            algorithm.ratio,
            algorithm.kl,
            algorithm.kl_weight,
        )
        overlong_penalty(0, max_tokens=rollout.max_tokens, buffer=algorithm.overlong_buffer, penalty=algorithm.overlong_penalty)
        correction = None
        if algorithm.correction != "none":
            bounds = (algorithm.correction_low, algorithm.correction_high)
            correction = Correction(algorithm.correction, algorithm.correction_level, *bounds)
    except ValueError as error:
        raise ConfigError(f"algorithm: {error}") from error
    if rollout.temperature == 0:
        raise ConfigError("rollout.temperature = 0: greedy tokens have no log-probs to train on; take a temperature > 0")
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.train_on_filtered:
        raise ConfigError(
            f"rollout.top_p = {rollout.top_p}, top_k = {rollout.top_k}: training on filtered samples needs rollout.train_on_filtered = true"
        )
    narrow = [name for name, weight in weights.items() if weight.dtype not in (torch.float32, torch.float64)]
    if narrow:
        raise ConfigError(f"master weights must be float32 or float64, {narrow[0]} is {weights[narrow[0]].dtype}: load with train=True")
    return correction


def _tune(model: PackedModel, trainer: TrainerConfig, kernels: Kernels | None) -> None:
    if isinstance(model, Tunable):
        if trainer.kernels == "native" and model.shape.head_dim % LANES:
            raise ConfigError(f"trainer.kernels = 'native': heads of {model.shape.head_dim} numbers are no multiple of {LANES}")
        model.tune(layers_again=trainer.checkpoint_activations, compiled=trainer.compile, kernels=kernels)
        return
    wanted = [f"trainer.{key} = true" for key in ("checkpoint_activations", "compile") if getattr(trainer, key)]
    wanted += ["trainer.kernels = 'native'"] * (trainer.kernels == "native")
    if wanted:
        raise ConfigError(f"{' and '.join(wanted)}: only the slim decoder can; this model runs through its transformers class")
