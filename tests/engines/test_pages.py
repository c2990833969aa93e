"""KV memory: spans keep their contents whatever is taken and given back around them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engines.pages import PagePool, Span
from paceline.models.packed import Shape

SHAPE = Shape(layers=2, heads=4, kv_heads=2, head_dim=3, width=12, vocabulary=50, max_positions=99, scale=1.0, parameters=0)


def fill(pool, span, tag):
    """Write (tag + position) into every position of a span."""
    n = len(span.places) * pool.size
    heads = torch.arange(SHAPE.kv_heads) * pool.size
    where = (torch.tensor(pool.rows(span, 0, n))[:, None] + heads).flatten()
    values = (tag + torch.arange(float(n)))[:, None, None].expand(n, SHAPE.kv_heads, SHAPE.head_dim)
    for layer in range(SHAPE.layers):
        pool.write(layer, where, values + layer, -values)


def holds(pool, span, tag):
    for layer in range(SHAPE.layers):
        keys, values = (m[layer].view(-1, SHAPE.kv_heads, pool.size, SHAPE.head_dim) for m in pool.read(span.end))
        for index in range(len(span.places)):
            expected = tag + torch.arange(float(pool.size)) + index * pool.size
            slot = pool.slot(span, index)
            if not (keys[slot] == expected[None, :, None] + layer).all() or not (values[slot] == -expected[None, :, None]).all():
                return False
    return True


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40), st.integers(1, 4))
def test_spans_keep_their_contents_and_no_page_is_lost_or_shared(actions, size):
    pool = PagePool(SHAPE, pages=12, size=size, dtype=torch.float64)
    spans = [Span("front" if i % 2 else "back") for i in range(6)]
    tags = [1000.0 * (i + 1) for i in range(6)]
    for number, grow in actions:
        span = spans[number]
        if grow == 0:
            pool.release(span)
        elif grow <= pool.free:
            pool.extend(span, grow)
            fill(pool, span, tags[number])
        assert pool.used("front") == sum(len(s.places) for s in spans if s.end == "front")
        assert pool.used("back") == sum(len(s.places) for s in spans if s.end == "back")
        assert pool.free == 12 - pool.used("front") - pool.used("back")
        assert all(holds(pool, s, t) for s, t in zip(spans, tags, strict=True))
    for span in spans:
        pool.release(span)
    assert pool.free == 12


def test_pages_are_cleared_before_use():
    pool = PagePool(SHAPE, pages=3, size=2, dtype=torch.float32)
    span = Span("front")
    pool.extend(span, 3)
    fill(pool, span, float("nan"))
    pool.release(span)
    again = Span("back")
    pool.extend(again, 3)
    keys, values = (memory[1] for memory in pool.read("back"))
    assert not keys.any()
    assert not values.any()
