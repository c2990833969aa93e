"""Who runs when memory is short: every request that can run alone ends exactly once, and the oldest is never disturbed."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engines.endings import Ending
from paceline.engines.pages import PagePool
from paceline.engines.scheduler import GONE, Job, Scheduler
from paceline.models.packed import Shape
from paceline.types.records import Request, Sampling

SHAPE = Shape(layers=1, heads=1, kv_heads=1, head_dim=1, width=1, vocabulary=9, max_positions=999, scale=1.0, parameters=0)


def job(number, prompt, length, max_tokens):
    """A job of `length` sampled tokens; jobs of one prompt id share the prompt."""
    ids = np.full(prompt[1], prompt[0], dtype=np.int32)
    request = Request(number, 0, 1, ids, Sampling(max_tokens, stop_ids=(length,)), 0, 0)
    ending = Ending(str, frozenset(request.sampling.stop_ids), (), max_tokens)
    return Job(request, ids.tobytes(), np.zeros(2, np.uint32), ending, version=0)


def scheduler(pages, slots, size=2, prefill_tokens=1000):
    pool = PagePool(SHAPE, pages, size, torch.float32)
    return Scheduler(pool, slots, prefill_tokens), pool


def advance(planner, step):
    """Give every row of a step a token (its number in the row, from 1); end those that are done."""
    done = []
    for part in step.parts:
        if part.stop == len(part.prompt.ids):
            part.prompt.last = torch.zeros(1)
    assert all(row.prompt.last is not None for row in step.rows)
    for row in step.rows:
        row.tokens.append(len(row.tokens) + 1)
        if row.job.ending.after(row.tokens):
            planner.finish(row)
            done.append((row.job.request.group, len(row.tokens)))
    return done


def submitted(planner, work):
    """Submit what fits alone; the length of each such job by its number."""
    fits = {n: w for n, w in enumerate(work) if planner.refusal(w[0][1], w[1] + w[2]) is None}
    for number, (prompt, length, slack) in fits.items():
        planner.submit(job(number, prompt, length, length + slack))
    return {number: length for number, (_, length, _) in fits.items()}


works = st.lists(st.tuples(st.tuples(st.integers(0, 4), st.integers(1, 9)), st.integers(1, 14), st.integers(0, 6)), min_size=1, max_size=25)


@settings(max_examples=300, deadline=None)
@given(works, st.integers(2, 14), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12))
def test_every_job_that_fits_alone_ends_once_with_all_its_tokens_and_nothing_leaks(work, pages, slots, size, prefill_tokens):
    planner, pool = scheduler(pages, slots, size, prefill_tokens)
    expected, ended = submitted(planner, work), []
    for _ in range(5000):
        oldest = planner.running[0] if planner.running else None
        step = planner.plan()
        assert oldest is None or planner.running[0] is oldest
        assert len(planner.running) <= slots
        assert step.decode or step.joins or step.parts or not planner.waiting
        for row in step.decode:
            assert len(row.own.places) == pool.needed(len(row.tokens))
        ended += advance(planner, step)
        if not planner.running and not planner.waiting:
            break
    assert sorted(ended) == sorted(expected.items())
    assert pool.free == pages


@settings(max_examples=100, deadline=None)
@given(works, st.integers(4, 14), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 24)), max_size=10))
def test_aborts_at_any_moment_leave_the_others_whole_and_free_every_page(work, pages, aborts):
    planner, pool = scheduler(pages, 4, prefill_tokens=4)
    expected, ended = submitted(planner, work), []
    for now in range(2000):
        ended += advance(planner, planner.plan())
        for at, number in aborts:
            if at == now and planner.remove(lambda job, number=number: job.request.group == number):
                del expected[number]
        if not planner.running and not planner.waiting:
            break
    assert sorted(ended) == sorted(expected.items())
    assert pool.free == pages


@settings(max_examples=200, deadline=None)
@given(works, st.integers(3, 14), st.integers(1, 6), st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6))
def test_new_weights_at_any_moment_reach_every_job_and_no_row_starts_on_a_prompt_of_old_ones(work, pages, slots, updates):
    planner, pool = scheduler(pages, slots, prefill_tokens=4)
    expected, ended, version = submitted(planner, work), [], 0
    for now in range(3000):
        for _, rebuild in [update for update in updates if update[0] == now]:
            planner.replace(version, version + 1, rebuild)
            version += 1
        step = planner.plan()
        assert all(row.job.version == version for row in step.rows)
        assert all(part.prompt.version == version for part in step.parts)
        assert all(row.prompt.version == version for row in step.joins)
        assert all(row.prompt.version in (version, GONE) for row in step.decode)
        ended += advance(planner, step)
        if not planner.running and not planner.waiting:
            break
    assert sorted(ended) == sorted(expected.items())
    assert pool.free == pages


def test_the_youngest_is_preempted_first_and_returns_before_those_who_never_ran():
    planner, _ = scheduler(pages=4, slots=2)
    for number in range(3):
        planner.submit(job(number, (number, 2), 6, 6))
    ended = []
    while not planner.preempted:
        ended += advance(planner, planner.plan())
    assert [row.job.request.group for row in planner.running] == [0]
    assert [waiting.request.group for waiting in planner.waiting] == [1, 2]
    while planner.running or planner.waiting:
        ended += advance(planner, planner.plan())
    assert ended == [(0, 6), (1, 6), (2, 6)]


def test_a_preempted_job_waits_until_there_is_room_for_what_it_had():
    planner, pool = scheduler(pages=7, slots=2)
    planner.submit(job(0, (0, 2), 12, 12))
    planner.submit(job(1, (0, 2), 12, 12))
    ended = []
    while not planner.preempted:
        ended += advance(planner, planner.plan())
    (waiting,) = planner.waiting
    assert waiting.request.group == 1
    assert len(waiting.tokens) >= 6
    while not ended:
        ended += advance(planner, planner.plan())
        assert planner.preempted == 1
    while planner.running or planner.waiting:
        ended += advance(planner, planner.plan())
    assert ended == [(0, 12), (1, 12)]
    assert pool.free == 7


def test_prompts_are_packed_up_to_the_prefill_limit_and_longer_ones_read_in_parts():
    planner, _ = scheduler(pages=50, slots=9, prefill_tokens=10)
    for number, length in enumerate((4, 27, 3, 6, 1)):
        planner.submit(job(number, (number, length), 9, 9))
    steps = []
    while planner.waiting:
        step = planner.plan()
        assert not advance(planner, step)
        steps.append(([(part.prompt.ids[0], part.start, part.stop) for part in step.parts], len(step.rows)))
    assert steps == [([(0, 0, 4)], 1), ([(1, 0, 10)], 1), ([(1, 10, 20)], 1), ([(1, 20, 27), (2, 0, 3)], 3), ([(3, 0, 6), (4, 0, 1)], 5)]


def test_a_prompt_in_parts_gives_its_pages_to_a_row_that_needs_them_and_to_an_abort_and_is_read_again():
    planner, pool = scheduler(pages=8, slots=3, prefill_tokens=4)
    planner.submit(job(0, (0, 2), 13, 13))
    planner.submit(job(1, (1, 9), 1, 1))
    ended, parts = [], []
    while planner.running or planner.waiting:
        step = planner.plan()
        parts += [(part.start, part.stop) for part in step.parts if part.prompt.ids[0] == 1]
        ended += advance(planner, step)
    assert ended == [(0, 13), (1, 1)]
    assert parts == [(0, 4), (4, 8), (0, 4), (4, 8), (8, 9)]
    planner.submit(job(2, (2, 9), 1, 1))
    planner.plan()
    assert pool.free == 3
    planner.remove(lambda job: True)
    assert pool.free == 8


def test_a_prompt_with_only_waiting_samples_leaves_when_a_running_row_needs_its_pages():
    planner, pool = scheduler(pages=6, slots=2)
    planner.submit(job(0, (0, 2), 9, 9))
    planner.submit(job(1, (1, 2), 1, 9))
    planner.submit(job(2, (1, 2), 9, 9))
    while planner.running or planner.waiting:
        advance(planner, planner.plan())
    assert pool.free == 6
