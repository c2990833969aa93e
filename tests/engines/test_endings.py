"""How trajectories end: ids, strings, limits, and the text that remains."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from engine_help import drain, engine, prompt, request, tiny

from paceline.engines.endings import Ending
from paceline.models.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = 2


def decode(ids):
    return TOKENIZER.decode(list(ids), skip_special_tokens=True)


def run(ids, stop=(), end_ids=(EOS,), max_tokens=10_000):
    """(tokens taken, reason, text) of a trajectory that would sample `ids`."""
    ending, taken = Ending(decode, frozenset(end_ids), tuple(stop), max_tokens), []
    for token in ids:
        taken.append(token)
        finish = ending.after(taken)
        if finish:
            return len(taken), finish, ending.text(taken, finish)
    return len(taken), None, decode(taken)


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_the_token_that_completes_a_stop_string_ends_it_and_stays_among_the_ids():
    ids = encode("the answer\n\nMore")
    taken, finish, text = run(ids, stop=["\n\n"])
    assert (finish, text) == ("stop", "the answer")
    assert decode(ids[:taken]) == "the answer\n\n"


def test_a_stop_string_inside_a_longer_token_cuts_the_text_before_it():
    assert run(encode("say hello"), stop=["ell"])[1:] == ("stop", "say h")


def test_the_earliest_of_several_stop_strings_in_the_text_cuts_it():
    assert run(encode("hello"), stop=["o", "ll"])[1:] == ("stop", "he")


def test_an_end_of_sequence_id_wins_over_the_limit_and_is_not_in_the_text():
    ids = [*encode("10"), EOS]
    assert run(ids, max_tokens=len(ids)) == (len(ids), "eos", "10")
    assert run([EOS]) == (1, "eos", "")


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop():
    ids = encode("ab#")
    assert run(ids, stop=["#"], max_tokens=len(ids))[1:] == ("stop", "ab")


@pytest.mark.parametrize("text", ["naïve ✓ done", "日本語です", "emoji 🙂 end"])
def test_stop_strings_of_several_bytes_per_character_are_found_across_tokens(text):
    for start in range(1, len(text)):
        stop = text[start : start + 3]
        assert run(encode(text), stop=[stop])[1:] == ("stop", text[: text.index(stop)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1).filter(lambda i: i != EOS), min_size=1, max_size=40),
    st.lists(st.text("abhelo10 é✓", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_ends_a_trajectory_exactly_when_the_whole_text_first_holds_it(ids, stop):
    expected = next((n for n in range(1, len(ids) + 1) if any(s in decode(ids[:n]) for s in stop)), None)
    taken, finish, text = run(ids, stop=stop)
    assert (taken if finish else None) == expected
    if finish:
        assert text == decode(ids[:taken])[: min(p for s in stop if (p := decode(ids[:taken]).find(s)) >= 0)]


@settings(max_examples=100, deadline=None)
@given(st.text("abhelo é✓語", min_size=2, max_size=20), st.data())
def test_a_stop_string_of_the_text_is_always_found(text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 6))]
    assert run(encode(text), stop=[stop])[1:] == ("stop", text[: text.index(stop)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("endings") / "m")


def test_the_engine_ends_rows_by_the_models_ids_extra_ids_strings_and_limits_side_by_side(model):
    serving = engine(model, slots=64)
    letters = tuple(chr(c) for c in range(ord("a"), ord("n")))
    kinds = ({}, {"stop_ids": tuple(range(20, 60))}, {"stop": letters}, {"stop": ("zzzzz",)})
    serving.submit([request(k, s, prompt(k, 5), max_tokens=25, **kind) for k, kind in enumerate(kinds) for s in range(12)])
    finishes = {}
    for (kind, _), result in drain(serving).items():
        finishes.setdefault(kind, set()).add(result.finish)
        ends = np.isin(result.ids, [*model[0].eos_ids, *kinds[kind].get("stop_ids", ())])
        assert not ends[:-1].any()
        assert ends[-1] == (result.finish == "eos")
        assert not any(letter in result.text for letter in kinds[kind].get("stop", ()))
        assert (len(result.ids) == 25) or result.finish != "length"
    assert "eos" in finishes[1]
    assert "stop" in finishes[2]
    assert "length" in finishes[3]


def test_a_completion_of_the_end_token_alone_is_a_trajectory_with_empty_text(model):
    serving = engine(model)
    every = tuple(range(model[0].model.shape.vocabulary))
    serving.submit([request(0, s, prompt(0, 5), stop_ids=every) for s in range(4)])
    for result in drain(serving).values():
        assert (len(result.ids), result.finish, result.text) == (1, "eos", "")
