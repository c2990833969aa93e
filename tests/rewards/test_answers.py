"""extract and verify: the public functions."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from paceline.rewards import extract, verify
from paceline.rewards.answers import Verifier, normalise
from paceline.types.errors import ConfigError, RewardError

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k"
GLUED = "437 + 2*234 = 905 ... Final Answer: "


@pytest.mark.parametrize("written", ["**73**", "__73__", "`73`", "73.", "73!", "**73.**", "$73"])
def test_markdown_and_punctuation_around_an_answer_are_not_part_of_it(written: str) -> None:
    assert extract(GLUED + written, kind="numeric") == "73"
    assert verify("73", GLUED + written, kind="numeric") == 1.0


@pytest.mark.parametrize(
    ("gold", "text", "loose", "strict"),
    [
        ("28%", "28 percent", 1.0, 1.0),
        ("28%", "0.28", 1.0, 1.0),
        ("0.28", "28%", 1.0, 1.0),
        ("28%", "28", 1.0, 0.0),
        ("28", "28%", 1.0, 0.0),
        ("50%", "0.5", 1.0, 1.0),
        ("0.5", "50", 0.0, 0.0),
        ("50", "0.5", 0.0, 0.0),
        ("28%", "27%", 0.0, 0.0),
    ],
)
def test_the_percent_flag_decides_only_between_a_rate_and_its_bare_number(gold: str, text: str, loose: float, strict: float) -> None:
    assert verify(gold, text, kind="numeric") == loose
    assert verify(gold, text, kind="numeric", percent="strict") == strict


def test_five_thousand_digits_are_compared_without_an_exception() -> None:
    digits = "7" * 5000
    assert verify(digits, f"it is {digits}", kind="numeric") == 1.0
    assert verify(digits, f"it is {digits[:-1]}8", kind="numeric") == 0.0
    assert verify("7", f"it is {digits}", kind="numeric") == 0.0


@pytest.mark.parametrize(
    "text", ["__import__('os').system('touch PWNED')", "().__class__.__base__.__subclasses__()", "\\sqrt{" * 2000, "\x00\ud800"]
)
def test_hostile_answers_score_zero_and_touch_nothing(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert verify("4", text, kind="numeric") == 0.0
    assert verify("four", text, kind="exact") == 0.0
    assert os.listdir(tmp_path) == []


def test_only_what_follows_the_last_marker_counts() -> None:
    text = "A: 17\nNo, wait.\nA: 18\nThat is 3 more than 15."
    assert extract(text, kind="numeric", marker="A:") == "18"
    assert verify("18", text, kind="numeric", marker="A:") == 1.0
    assert verify("17", text, kind="numeric", marker="A:") == 0.0


def test_without_its_marker_an_answer_gets_no_credit() -> None:
    assert extract("it is 18", kind="numeric", marker="A:") is None
    assert verify("18", "it is 18", kind="numeric", marker="A:") == 0.0
    assert Verifier("numeric", "A:").score("18", "it is 18").reason == "no marker"


def test_a_marker_does_not_start_inside_a_word() -> None:
    assert extract("DNA: 18", kind="numeric", marker="A:") is None
    assert extract("####18", kind="numeric", marker="####") == "18"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>is it 17?</think>It is 18.", "18"),
        ("is it 17?</think>It is 18.", "18"),
        ("<think>is it 18?", None),
        ("<think>It is 18.</think>", None),
        ("It is 18. <think>Or 19", "18"),
    ],
)
def test_what_stands_in_a_thought_is_no_answer(text: str, answer: str | None) -> None:
    assert extract(text, kind="numeric") == answer
    assert verify("18", text, kind="numeric") == float(answer == "18")
    assert verify("It is 18", text, kind="exact") == float(answer == "18")


def test_an_answer_may_stand_on_the_line_after_the_marker() -> None:
    assert extract("The answer is:\n\n  18 dollars\n\nNext question: 5", kind="numeric", marker="The answer is:") == "18"
    assert Verifier("numeric", "A:").score("18", "A: \n ").reason == "no answer"


def test_which_decides_between_several_numbers() -> None:
    assert extract("18 of 20", kind="numeric") == "20"
    assert extract("18 of 20", kind="numeric", which="first") == "18"


@pytest.mark.parametrize("written", ["Paris", " Paris. ", "**Paris**", "**Paris.**", "`Paris`", "Paris\n"])
def test_exact_compares_text_without_decoration(written: str) -> None:
    assert verify("Paris", written, kind="exact") == 1.0
    assert verify("Paris", f"A: {written}", kind="exact", marker="A:") == 1.0


@pytest.mark.parametrize(("gold", "text"), [("Paris", "paris"), ("Paris", "It is Paris"), ("a b", "ab"), ("1.0", "1")])
def test_exact_keeps_case_and_every_word(gold: str, text: str) -> None:
    assert verify(gold, text, kind="exact") == 0.0


def test_exact_does_not_distinguish_ways_to_encode_a_letter() -> None:
    assert verify("caf\u00e9", "cafe\u0301", kind="exact") == 1.0
    assert normalise("a\t b\n c") == "a b c"


@pytest.mark.parametrize("kind", ["numeric", "exact"])
def test_an_empty_completion_scores_zero_with_a_reason(kind: str) -> None:
    for text in ("", " \n"):
        score = Verifier(kind).score("4", text)  # type: ignore[arg-type]
        assert (score.value, score.reason, score.parsed) == (0.0, "no answer", False)


@pytest.mark.parametrize(("text", "reason"), [("I do not know", "no number"), ("A: 10^5", "unreadable number"), ("5", "wrong"), ("4", "")])
def test_every_score_says_why(text: str, reason: str) -> None:
    assert Verifier().score("4", text).reason == reason


@pytest.mark.parametrize("gold", ["", "four", "4 or 5", "10^5", "1/0"])
def test_a_gold_that_is_not_one_number_is_an_error_and_never_a_zero(gold: str) -> None:
    with pytest.raises(RewardError, match="not one number"):
        verify(gold, "4", kind="numeric")


def test_an_empty_gold_is_an_error_for_exact() -> None:
    with pytest.raises(RewardError, match="no text"):
        verify(" . ", "4", kind="exact")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "exakt"},
        {"which": "middle"},
        {"percent": "no"},
        {"marker": " "},
        {"kind": "exact", "which": "first"},
        {"kind": "exact", "percent": "strict"},
    ],
)
def test_settings_without_meaning_or_effect_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Verifier(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_s"):
        verify("1", "1", kind="numeric", timeout_s=0)


def _verify_third() -> float:
    return verify("1/3", "The answer is \\frac{1}{3}", kind="numeric")


def test_verify_gives_the_same_in_thread_process_and_event_loop() -> None:
    async def inside() -> float:
        return _verify_third()

    results = [_verify_third(), asyncio.run(inside())]
    thread = threading.Thread(target=lambda: results.append(_verify_third()))
    thread.start()
    thread.join()
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        results.append(pool.submit(verify, "1/3", "The answer is \\frac{1}{3}", kind="numeric").result())
    assert results == [1.0] * 4


@pytest.mark.skipif(not SHARED.exists(), reason="shared GSM8K data is not here")
def test_the_labelled_gsm8k_answers_are_judged_as_labelled() -> None:
    judged = 0
    for line in (SHARED / "model_solutions_sample.jsonl").read_text().splitlines():
        row = json.loads(line)
        gold = extract(row["ground_truth"], kind="numeric", marker="A:")
        assert gold is not None
        for answer in (value for value in row.values() if isinstance(value, dict)):
            assert verify(gold, answer["solution"], kind="numeric", marker="A:") == float(answer["is_correct"])
            judged += 1
    assert judged == 800


@pytest.mark.skipif(not SHARED.exists(), reason="shared GSM8K data is not here")
@pytest.mark.parametrize("name", ["train", "test"])
def test_every_gsm8k_solution_is_right_about_its_own_gold(name: str) -> None:
    for line in (SHARED / f"{name}.jsonl").read_text().splitlines():
        solution = json.loads(line)["answer"]
        assert verify(solution.rsplit("####", 1)[1].strip(), solution, kind="numeric", marker="####") == 1.0
