"""Records as JSON: an exact round trip, and nothing unknown gets through."""

import json
import math
from dataclasses import fields, is_dataclass, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.codec import SCHEMA, decode, dumps, encode, loads
from paceline.types.errors import RecordError
from paceline.types.weights import InstanceInfo

KINDS = get_args(e.Event) + get_args(c.Command)


@st.composite
def records(draw):
    return draw(st.from_type(draw(st.sampled_from(KINDS))))


def same(a, b):
    """Equality under which nan is nan."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_kind_survives_the_round_trip(kind):
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.from_type(kind))
    def check(record):
        assert same(loads(dumps(record)), record)
        assert same(decode(json.loads(json.dumps(encode(record)))), record)

    check()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(records(), st.text(min_size=1), st.integers())
def test_a_field_too_many_or_too_few_is_refused(record, name, value):
    raw = encode(record)
    for f in fields(record):
        with pytest.raises(RecordError, match="missing fields"):
            decode({k: v for k, v in raw.items() if k != f.name})
    if name not in raw:
        with pytest.raises(RecordError, match="unknown fields"):
            decode(raw | {name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": SCHEMA + 1}, "schema"),
        ({"v": None}, "schema"),
        ({"kind": "Admitted"}, "unknown kind"),
        ({"kind": None}, "unknown kind"),
        ({"kind": "Note"}, "unknown kind 'Note'; this version of paceline knows"),
        ({"group": "3"}, "Admit.group: expected int"),
        ({"group": True}, "Admit.group: expected int"),
        ({"group": 3.0}, "Admit.group: expected int"),
        ({"instance": 3}, "Admit.instance: expected str"),
        ({"version": [4]}, "Admit.version: expected int"),
    ],
)
def test_a_record_of_another_schema_kind_or_type_is_refused(change, message):
    raw = encode(c.Admit(1, 2, 3, 0, "i0", 4))
    assert decode(raw) == c.Admit(1, 2, 3, 0, "i0", 4)
    with pytest.raises(RecordError, match=message):
        decode(raw | change)


def test_a_word_that_is_not_in_the_vocabulary_is_refused():
    with pytest.raises(RecordError, match="expected one of"):
        decode(encode(c.Terminal(1, 2, "trained")) | {"state": "lost"})
    with pytest.raises(RecordError, match="expected int or expected NoneType"):
        decode(encode(c.LoadWeights(1, "i0", 2)) | {"replaces": "1"})
    with pytest.raises(RecordError, match="tokens_per_second: expected a number, got 'fast'"):
        decode(encode(e.InstanceReport("i0", 0, 1.5, 1, 0)) | {"tokens_per_second": "fast"})
    with pytest.raises(RecordError, match="info: expected an object, got 'i0'"):
        decode(encode(e.InstanceUp(InstanceInfo("i0", 8))) | {"info": "i0"})
    with pytest.raises(RecordError, match="expected a list of 2"):
        decode(encode(e.Migrated(1, ((1, 2),))) | {"moved": [[1, 2, 3]]})


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"v":1}', b"\xff"])
def test_text_that_is_no_record_is_refused_with_the_text(text):
    with pytest.raises(RecordError):
        loads(text)


def test_a_probe_error_that_is_no_number_is_kept_and_the_line_stays_json():
    live = e.WeightsLive(1, "i0", 0, "f", math.nan, math.inf)
    line = dumps(live)
    assert json.loads(line, parse_constant=pytest.fail)["probe_error"] == "nan"
    back = loads(line)
    assert math.isnan(back.probe_error)
    assert back.probe_bound == math.inf
    assert loads(dumps(replace(live, probe_error=0.1))).probe_error == 0.1
