"""Which sequences are computed together, and where their tokens lie as rows of one packed forward pass.

A sequence of p prompt and n sampled tokens needs p + n - 1 rows: the last token predicts nothing. Samples of a group in one
micro-batch share the p rows of their prompt; its last row predicts the first token of each. Rows of a block:

    | prompt 0 .. p-1 | own rows of sample a: p .. p+n_a-2 | own rows of sample b: p .. p+n_b-2 | ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from paceline.trainers.sequences import TrainingSequence
from paceline.types.weights import BatchPlan, PlannedBatch


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows: `prefix` rows that attend causally to each other, then samples that attend to them and to themselves."""

    prefix: int
    own: tuple[int, ...]
    """Own rows of each sample that has any."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """R rows in blocks, and the N tokens that they predict."""

    ids: torch.Tensor
    """[R] int64."""
    positions: torch.Tensor
    """[R] int64; own rows continue from the prompt."""
    blocks: tuple[Block, ...]
    rows: torch.Tensor
    """[N] int64: the row that predicts each sampled token."""
    targets: torch.Tensor
    """[N] int64: the sampled tokens, sequence by sequence."""
    segments: torch.Tensor
    """[N] int64: position in the batch of the sequence that a token belongs to."""


def plan(sequences: Sequence[TrainingSequence], budget: int, *, shared: bool = True, rank: int = 0) -> BatchPlan:
    """As few micro-batches, in order, as `budget` rows each allow, and the largest of them as small as that number allows.

    A sequence over the budget gets one of its own. `shared`: a group's prompt counts once per micro-batch. Groups may be split: their
    prompt is then computed again.
    """
    batches = _filled(sequences, budget, shared)
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        tried = _filled(sequences, middle, shared)
        if len(tried) > len(batches):
            low = middle + 1
        else:
            batches, high = tried, middle
    return BatchPlan(tuple(PlannedBatch(rank, tuple(batch)) for batch in batches))


def _filled(sequences: Sequence[TrainingSequence], budget: int, shared: bool) -> list[list[int]]:
    """Indices of the sequences in order, each in the last micro-batch while it fits. A larger budget never gives more of them."""
    batches: list[list[int]] = []
    rows = 0
    for index, sequence in enumerate(sequences):
        own = max(len(sequence.ids) - 1, 0)
        joins = shared and bool(batches) and sequences[index - 1].group == sequence.group
        cost = own if joins else own + len(sequence.prompt)
        if batches and rows + cost <= budget:
            batches[-1].append(index)
            rows += cost
        else:
            batches.append([index])
            rows = own + len(sequence.prompt)
    return batches


def pack(sequences: Sequence[TrainingSequence], *, shared: bool = True) -> PackedBatch:
    """Lay the sequences out in order. Consecutive ones of a group share their prompt rows; with `shared` off each has its own copy."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    blocks: list[Block] = []
    rows: list[np.ndarray] = []
    used = 0
    for members in by_group(sequences) if shared else [[sequence] for sequence in sequences]:
        prompt = members[0].prompt
        start, size = used, len(prompt)
        ids.append(prompt)
        positions.append(np.arange(size))
        used += size
        for member in members:
            own = max(len(member.ids) - 1, 0)
            rows.append(np.concatenate([[start + size - 1], np.arange(used, used + own)])[: len(member.ids)])
            ids.append(member.ids[:-1])
            positions.append(np.arange(size, size + own))
            used += own
        own_rows = tuple(len(member.ids) - 1 for member in members if len(member.ids) > 1)
        # A sample alone is one causal run, so that attention needs no padding and no mask.
        blocks.append(Block(size + sum(own_rows), ()) if len(members) == 1 else Block(size, own_rows))
    segments = [np.full(len(sequence.ids), index) for index, sequence in enumerate(sequences)]
    targets = [sequence.ids for sequence in sequences]
    return PackedBatch(_joined(ids), _joined(positions), tuple(blocks), _joined(rows), _joined(targets), _joined(segments))


def by_group(sequences: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
    """Consecutive sequences of one group together."""
    return [list(members) for _, members in groupby(sequences, key=lambda sequence: sequence.group)]


def _joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
