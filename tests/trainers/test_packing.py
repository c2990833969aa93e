import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from paceline.trainers.attend import block_attend
from paceline.trainers.packing import Block, pack, plan
from paceline.trainers.sequences import TrainingSequence

torch.set_num_threads(1)


def sequence(group: int, sample: int, prompt: int, tokens: int) -> TrainingSequence:
    ids = np.arange(tokens, dtype=np.int32) + 100 * (sample + 1)
    return TrainingSequence(
        group=group,
        sample=sample,
        prompt=np.arange(prompt, dtype=np.int32) + 1000 * (group + 1),
        ids=ids,
        behaviour=np.zeros(tokens),
        full=np.zeros(tokens),
        versions=np.zeros(tokens, dtype=np.int32),
        advantage=1.0,
        penalised=True,
        in_loss=True,
    )


def test_the_prompt_is_computed_once_and_its_last_row_predicts_every_first_token() -> None:
    batch = pack([sequence(0, 0, 3, 2), sequence(0, 1, 3, 3), sequence(0, 2, 3, 1), sequence(1, 0, 2, 2)])
    assert batch.ids.tolist() == [1000, 1001, 1002, 100, 200, 201, 2000, 2001, 100]
    assert batch.positions.tolist() == [0, 1, 2, 3, 3, 4, 0, 1, 2]
    assert batch.targets.tolist() == [100, 101, 200, 201, 202, 300, 100, 101]
    assert batch.rows.tolist() == [2, 3, 2, 4, 5, 2, 7, 8]
    assert batch.segments.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert batch.blocks == (Block(3, (1, 2)), Block(3, ()))


def test_without_sharing_every_sample_is_one_causal_run_of_its_own() -> None:
    batch = pack([sequence(0, 0, 3, 2), sequence(0, 1, 3, 3)], shared=False)
    assert batch.ids.tolist() == [1000, 1001, 1002, 100, 1000, 1001, 1002, 200, 201]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert batch.rows.tolist() == [2, 3, 6, 7, 8]
    assert batch.blocks == (Block(4, ()), Block(5, ()))


def test_a_budget_cuts_micro_batches_and_counts_a_prompt_once_per_group_in_each() -> None:
    sequences = [sequence(0, s, 10, 6) for s in range(4)] + [sequence(1, 0, 10, 6)]
    assert [batch.sequences for batch in plan(sequences, 20).batches] == [(0, 1), (2, 3), (4,)]
    assert [batch.sequences for batch in plan(sequences, 45).batches] == [(0, 1, 2, 3, 4)]
    assert [batch.sequences for batch in plan(sequences, 30, shared=False).batches] == [(0, 1), (2, 3), (4,)]
    assert [batch.sequences for batch in plan(sequences, 1).batches] == [(0,), (1,), (2,), (3,), (4,)]
    assert plan([], 10).batches == ()


@given(
    shape=st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=4)), min_size=1, max_size=5),
    budget=st.integers(1, 60),
    shared=st.booleans(),
)
def test_every_sequence_lies_in_exactly_one_micro_batch_and_only_single_ones_exceed_the_budget(
    shape: list[tuple[int, list[int]]], budget: int, shared: bool
) -> None:
    sequences = [sequence(g, s, prompt, n) for g, (prompt, lengths) in enumerate(shape) for s, n in enumerate(lengths)]
    batches = plan(sequences, budget, shared=shared).batches
    assert [index for batch in batches for index in batch.sequences] == list(range(len(sequences)))
    for batch in batches:
        packed = pack([sequences[index] for index in batch.sequences], shared=shared)
        assert len(packed.ids) <= budget or len(batch.sequences) == 1
        assert len(packed.ids) == sum(block.prefix + sum(block.own) for block in packed.blocks)
        assert len(packed.targets) == sum(len(sequences[index].ids) for index in batch.sequences)


def rows_of(sequences: list[TrainingSequence], batches: list[tuple[int, ...]], shared: bool = True) -> list[int]:
    return [len(pack([sequences[index] for index in batch], shared=shared).ids) for batch in batches]


def test_micro_batches_are_as_equal_as_their_number_allows_and_not_full_ones_and_a_rest() -> None:
    sequences = [sequence(g, s, 10, 21) for g in range(4) for s in range(4)]
    assert rows_of(sequences, [batch.sequences for batch in plan(sequences, 350).batches]) == [180, 180]
    assert rows_of(sequences, [batch.sequences for batch in plan(sequences, 180).batches]) == [180, 180]
    assert rows_of(sequences, [batch.sequences for batch in plan(sequences, 360).batches]) == [360]
    assert rows_of(sequences, [batch.sequences for batch in plan(sequences, 150).batches]) == [140, 140, 90]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=3)), min_size=1, max_size=3),
    budget=st.integers(1, 60),
    shared=st.booleans(),
)
def test_no_other_cut_into_fewer_micro_batches_or_smaller_ones_exists(
    shape: list[tuple[int, list[int]]], budget: int, shared: bool
) -> None:
    sequences = [sequence(g, s, prompt, n) for g, (prompt, lengths) in enumerate(shape) for s, n in enumerate(lengths)]

    def largest(cuts: tuple[int, ...]) -> int:
        """Of the micro-batches that hold several sequences; one alone may exceed the budget."""
        batches = [tuple(range(a, b)) for a, b in itertools.pairwise((0, *cuts, len(sequences))) if b > a + 1]
        return max(rows_of(sequences, batches, shared), default=0)

    found = [batch.sequences for batch in plan(sequences, budget, shared=shared).batches]
    everywhere = range(1, len(sequences))
    fewer = itertools.chain(*(itertools.combinations(everywhere, n) for n in range(len(found) - 1)))
    assert all(largest(cuts) > budget for cuts in fewer)
    as_many = itertools.combinations(everywhere, len(found) - 1)
    assert largest(tuple(batch[0] for batch in found[1:])) == min(map(largest, as_many))


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_block_attention_equals_one_dense_mask_forward_and_backward(dtype: torch.dtype, library: bool) -> None:
    blocks = (Block(5, (3, 1, 4)), Block(6, ()), Block(1, (2, 2)))
    owners: list[tuple[int, int]] = []
    for number, block in enumerate(blocks):
        owners += [(number, -1)] * block.prefix
        owners += [(number, sample) for sample, rows in enumerate(block.own) for _ in range(rows)]
    total = len(owners)
    mask = torch.tensor(
        [[j <= i and owners[i][0] == owners[j][0] and owners[j][1] in (-1, owners[i][1]) for j in range(total)] for i in range(total)]
    )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(total, heads, 8, generator=generator, dtype=dtype).requires_grad_() for heads in (4, 2, 2))
    weights = torch.randn(total, 4, 8, generator=generator, dtype=dtype)
    wide = [x.repeat_interleave(4 // x.shape[1], 1).transpose(0, 1) for x in (q, k, v)]
    dense = F.scaled_dot_product_attention(*wide, attn_mask=mask, scale=0.3).transpose(0, 1)
    ours = block_attend(blocks, 0.3, torch.device("cpu"), library=library)(0, q, k, v)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(ours, dense, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad((out * weights).sum(), (q, k, v), retain_graph=True) for out in (ours, dense)]
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right, atol=tolerance, rtol=tolerance)
