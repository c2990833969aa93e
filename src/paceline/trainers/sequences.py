"""From scored groups to training sequences: advantages, masks and checks. One sequence per trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.algo.advantage import advantages
from paceline.algo.shaping import overlong_penalty
from paceline.config.schema import AlgorithmConfig
from paceline.types.errors import TrainerError
from paceline.types.records import LOGPROB, LOGPROB_KEPT, VERSION, ScoredGroup, Trajectory

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sample as the loss sees it; token arrays are [n]."""

    group: int
    sample: int
    prompt: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    behaviour: Floats
    """Log-probs that the ratio divides by: over the kept set where a filter was on, else over the full vocabulary."""
    full: Floats
    """Behaviour log-probs over the full vocabulary."""
    versions: npt.NDArray[np.integer[Any]]
    advantage: float
    penalised: bool
    """Whether the KL penalty applies."""
    in_loss: bool
    """Whether it enters loss and denominator: it has tokens and was not masked as truncated."""


def training_sequences(
    groups: Sequence[ScoredGroup], algorithm: AlgorithmConfig, *, filtered: bool, max_tokens: int
) -> list[TrainingSequence]:
    """Sequences in order of group and sample. `filtered`: top-p or top-k were on, so LOGPROB_KEPT must be there.

    The overlong penalty is added to the rewards here and nowhere else. Advantages come from the rewards alone: which groups train is
    decided before, by their outcomes. TrainerError names the trajectory whose arrays do not fit together; ValueError the rewards that
    are not finite.
    """
    values = advantages(
        [_shaped(group, algorithm, max_tokens) for group in groups], kind=algorithm.advantage, std=algorithm.std, eps=algorithm.std_eps
    )
    sequences = []
    for group, scores in zip(groups, values, strict=True):
        moved = bool((scores != 0).any())
        for trajectory, score in zip(group.trajectories, scores.tolist(), strict=True):
            _check(group, trajectory, filtered)
            sequences.append(
                TrainingSequence(
                    group=group.group,
                    sample=trajectory.sample,
                    prompt=trajectory.prompt_ids,
                    ids=trajectory.ids,
                    behaviour=trajectory.columns[LOGPROB_KEPT if filtered else LOGPROB],
                    full=trajectory.columns[LOGPROB],
                    versions=trajectory.columns[VERSION],
                    advantage=score,
                    penalised=moved or not algorithm.mask_kl_without_signal,
                    in_loss=len(trajectory.ids) > 0 and not (algorithm.mask_truncated and trajectory.finish == "length"),
                )
            )
    return sequences


def _shaped(group: ScoredGroup, algorithm: AlgorithmConfig, max_tokens: int) -> list[float]:
    buffer, penalty = algorithm.overlong_buffer, algorithm.overlong_penalty
    return [
        reward + overlong_penalty(len(trajectory.ids), max_tokens=max_tokens, buffer=buffer, penalty=penalty)
        for reward, trajectory in zip(group.rewards, group.trajectories, strict=True)
    ]


def _check(group: ScoredGroup, trajectory: Trajectory, filtered: bool) -> None:
    name = f"group {group.group}, sample {trajectory.sample}"
    if trajectory.group != group.group:
        raise TrainerError(f"{name}: the trajectory belongs to group {trajectory.group}")
    if len(trajectory.prompt_ids) == 0:
        raise TrainerError(f"{name}: an empty prompt predicts no first token")
    if not np.array_equal(trajectory.prompt_ids, group.trajectories[0].prompt_ids):
        raise TrainerError(f"{name}: its prompt differs from that of the group's first sample")
    for column in (LOGPROB, VERSION, *((LOGPROB_KEPT,) if filtered else ())):
        if column not in trajectory.columns:
            raise TrainerError(f"{name}: column {column!r} is missing; it has {sorted(trajectory.columns)}")
        if len(trajectory.columns[column]) != len(trajectory.ids):
            raise TrainerError(f"{name}: column {column!r} has {len(trajectory.columns[column])} values for {len(trajectory.ids)} tokens")
