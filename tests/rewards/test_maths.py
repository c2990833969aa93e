"""`kind = "math"`: where the answer stands, what it is equal to, and that hostile answers cost their deadline and nothing else.

The policy is tested through `equivalence.same`, in this process; what needs verifier processes shares the ones that `verify` keeps.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from paceline.config.schema import RewardConfig
from paceline.rewards import extract, load_judge, verify
from paceline.rewards.bench import Bench, Job
from paceline.rewards.boxes import last_box
from paceline.rewards.equivalence import check, same
from paceline.rewards.maths import MathVerifier, maths_answer
from paceline.rewards.spelling import Unreadable
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Trajectory

IDS = np.arange(3, dtype=np.int32)
THIRD = r"The answer is \boxed{\frac{1}{3}}"
NESTED = "\\sqrt{" * 2000 + "2" + "}" * 2000
HOSTILE = [
    r"\boxed{10^{10^{10}}}",
    r"\boxed{999999999!}",
    r"\boxed{2^{2^{2^{2^{2^{2}}}}}}",
    r"\boxed{\binom{10^{12}}{10^{11}}}",
    r"\boxed{((((x+1)^{9999}+1)^{9999}+1)^{9999}+1)}",
    r"\boxed{\sin(10^{10^{8}})}",
    rf"\boxed{{{NESTED}}}",
    "\\boxed{" + "{" * 3000,
    r"\boxed{" + "a" * 1_000_000 + "}",
    r"\boxed{__import__('os').system('touch PWNED')}",
    "().__class__.__base__.__subclasses__()",
    "\\boxed{" + "((x+1)(" * 12 + "1" + "))" * 12 + "}",
    "\\boxed{" + "1/" * 900 + "3}",
    "\x00\ud800\\boxed{\ud800}",
]


def prompt(gold: str | None = "4") -> Prompt:
    return Prompt(9, 7, IDS, "2+2?", gold, {}, "sums")


def samples(*texts: str, group: int = 5) -> list[Trajectory]:
    return [Trajectory(group, i, 0, IDS, IDS, {}, "eos", text) for i, text in enumerate(texts)]


# --- where the answer stands


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{3}}", r"\frac{1}{3}"),
        (r"\boxed{\sqrt{\frac{2}{3}}+\{1\}}", r"\sqrt{\frac{2}{3}}+\{1\}"),
        (r"\boxed{x^{2^{3}}}", "x^{2^{3}}"),
        (r"therefore \boxed{840}., but ... **Final Answer** \boxed{840}", "840"),
        (r"answer \boxed{004} ... sum is 2,552,004 ... \boxed{004}", "004"),
        (r"\boxed{5} no wait \boxed{7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7.", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        ("437 + 2*234 = 905 ... Final Answer: **73**", "73"),
        ("Final Answer: __73__", "73"),
        ("Final Answer: `73`", "73"),
        ("Final Answer: 73.", "73"),
        ("Final Answer: 73!", "73"),
        ("**Answer:** 73\nI hope it is correct.", "73"),
        ("The answer is $x = 3$ or $x = 5$.", "x = 3 or x = 5"),
        ("so the answer is the area $5$ of it", "5"),
        ("working\n\n#### 18", "18"),
        ("5!", "5!"),
        ("first\n\\frac12\n", r"\frac12"),
    ],
)
def test_the_answer_is_the_last_box_else_what_follows_the_last_answer_is_else_the_last_line(text: str, answer: str) -> None:
    assert extract(text, kind="math") == answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\boxed{7} and then \boxed{7", "unterminated box"),
        (r"\boxed{7} and then \boxed{\frac{1}{2}", "unterminated box"),
        (r"\boxed{7} and then \boxed{}", "empty box"),
        (r"\boxed{7} and then \boxed{  }", "empty box"),
        (r"\boxed", "empty box"),
        ("", "no answer"),
        (" \n", "no answer"),
        ("**", "no answer"),
    ],
)
def test_a_last_box_that_is_empty_or_left_open_is_no_answer_whatever_stood_before(text: str, reason: str) -> None:
    assert maths_answer(text).reason == reason
    (score,) = MathVerifier().scores([("7", text)])
    assert (score.value, score.reason, score.parsed) == (0.0, reason, False)


def test_a_word_that_begins_with_boxed_is_no_box() -> None:
    assert last_box(r"\boxedsomething{7}") is None


def test_with_a_marker_only_the_line_after_its_last_occurrence_is_searched() -> None:
    assert extract("\\boxed{5}\nA: \\boxed{7}\nmore 9", kind="math", marker="A:") == "7"
    assert extract("A: $x=3$.\n\\boxed{5}", kind="math", marker="A:") == "x=3"
    assert maths_answer(r"\boxed{5}", "A:").reason == "no marker"


# --- what is equal

SAME = {
    "fractions": [(r"\frac{1}{3}", "1/3"), ("0.5", r"\frac12"), ("1\\frac12", "3/2"), ("1 1/2", "1.5"), (r"\dfrac{1}{72}", r"\frac1{72}"), ("½", "0.50")],
    "whole numbers": [("4", "004"), ("-5", "−5"), ("1{,}000", "1000"), ("1,234,567", "1234567"), (r"12\,345", "12345"), ("10 000", "10000")],
    "scientific": [("1e-9", "10^{-9}"), (r"1.5\times 10^3", "1500"), ("2^{10}", "1024"), ("2^10", "1024"), ("0.\\overline{3}", "1/3")],
    "roots and powers": [(r"\sqrt{50}", r"5\sqrt2"), ("sqrt(2)/2", r"\frac{1}{\sqrt{2}}"), (r"\sqrt[3]{8}", "2"), ("√12", r"2\sqrt{3}")],
    "functions": [(r"\log_2 8", "3"), (r"\cos 60^\circ", r"\frac12"), (r"\sin^2 x+\cos^2 x", "1"), (r"\ln x^2", r"2\ln x"), ("log(100)", "2")],
    "counting": [(r"\binom{5}{2}", "10"), ("5!", "120"), (r"\lfloor 7/2\rfloor", "3")],
    "polynomials": [("x^2+2x+1", "(x+1)^2"), ("x(x+1)", "x^2+x"), ("2(3)", "6"), ("1/2x", r"\frac{x}{2}"), (r"\frac{x^2-1}{x-1}", "x+1"), ("ab", "ba")],
    "absolute values": [(r"\sqrt{x^2}", "|x|"), ("|x-1|", "|1-x|"), ("||x|-1|", "|1-|x||")],
    "complex": [("3+4i", "4i+3"), ("i^2", "-1"), (r"e^{i\pi}", "-1")],
    "units": [("36", r"36\text{ cm}"), ("36 cm", r"36\mathrm{cm}"), ("36 square meters", r"36\text{ m}^2"), (r"5\text{ m}", "5 m"), ("5 apples", "5"), (r"90^\circ", "90"), (r"\$32", "32 dollars"), (r"3\sqrt{2}\text{ units}", r"3\sqrt 2"), ("2516_8", "2516")],
    "lists and sets": [("1,2", "2,1"), ("1,2", r"\{2, 1\}"), (r"\{1,1,2\}", r"\{1,2\}"), (r"12 \text{ and } 13", "13, 12"), (r"\pm 2", "2,-2"), (r"1\pm\sqrt3", r"1+\sqrt3, 1-\sqrt3"), (r"\emptyset", r"\{\}")],
    "tuples": [("(1,2)", "( 1, 2 )"), ("(1,234)", "(1, 234)"), (r"\langle 1,2\rangle", "(1,2)"), (r"\left(\frac12, 3\right)", "(0.5,3)"), ("1:2:3", "1 : 2 : 3"), ("3:4", "6:8")],
    "intervals": [("(0, 12.5)", "0 < x < 12.5"), ("x>3", r"(3,\infty)"), ("3<x", "x>3"), (r"x \in [1,2)", "[1,2)"), (r"(-\infty,1)\cup(2,\infty)", "x<1 or x>2"), (r"(2,\infty)\cup(-\infty,1)", r"(-\infty,1)\cup(2,\infty)"), (r"(-\infty,\infty)", r"\mathbb{R}")],
    "equations": [("x=2", "2"), ("2x=4", "x=2"), ("y=2x+3", "2x+3"), ("2x+3=y", "y=3+2x"), ("x=2 or x=3", "2,3"), ("x=2, 3", "3, 2"), ("x=1,y=2", "y=2,x=1"), ("f(x)=x^2", "x^2"), ("1+1=2", "2"), ("2x+1>3", "-2x-1<-3"), (r"x \ne 2", r"x\neq 2"), ("(x,y)=(1,2)", "(1,2)")],
    "matrices": [(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}")],
    "words": [("east", r"\text{East}"), ("(C)", "C"), (r"\text{(C)}", r"\textbf{(C)}"), ("no", "No"), (r"\text{no solution}", "No solution")],
    "unknown functions": [("f(x)+1", "1+f(x)")],
    "approximately": [(r"\frac{1}{3} \approx 0.333", "1/3")],
}  # fmt: skip
DIFFERENT = {
    "no tolerance": [("1e-9", "0"), ("0.333333", "1/3"), ("3.14", r"\pi"), ("x^2+2x+1", "(x+1)^2+10^{-9}"), (r"\sqrt{2}+10^{-60}", r"\sqrt{2}"), ("10^{400}", "10^{400}+1"), ("12345678901234567890", "12345678901234567891")],
    "equations": [("3*x-1*y+13=0", "3x + 4y + 14=0"), ("x=2", "y=2"), ("2x=4", "2"), ("x=1,y=2", "(1,2)"), ("2x+1>3", "2x+1<3"), ("x<3", "x>3"), ("x^2=4", "x=2")],
    "brackets": [("(0,1)", "[0,1]"), ("[1,2)", "[1,2]"), ("(1,2)", "(2,1)"), ("(1,2)", "1,2"), ("1, 234", "1234"), ("1:2:3", "2:4:6"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)")],
    "units": [(r"36\text{ m}", r"36\text{ cm}"), ("36 cm^2", "36 cm"), ("2ab", "2"), ("2516_8", "2516_7"), (r"\frac{\pi}{3}", r"60^\circ"), ("€5", r"\$5")],
    "letters": [("A", "a"), ("east", "seat"), ("B", "C"), ("yes", "no"), ("-x", "x"), (r"\sqrt{x^2}", "x"), ("I", "i")],
    "lists": [("1,2", "1,2,3"), (r"\{1,2\}", "1"), (r"\pm 2", "2")],
}  # fmt: skip


@pytest.mark.parametrize("kind", SAME)
def test_equal_answers_are_equal_in_both_directions(kind: str) -> None:
    assert [pair for pair in SAME[kind] if not (same(*pair) and same(*reversed(pair)))] == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_answers_differ_in_both_directions(kind: str) -> None:
    assert [pair for pair in DIFFERENT[kind] if same(*pair) or same(*reversed(pair))] == []


def test_the_percent_flag_decides_only_between_a_rate_and_its_bare_number() -> None:
    table = [
        (r"28\%", "28 percent", 1, 1),
        (r"28\%", "0.28", 1, 1),
        (r"28\%", "28", 1, 0),
        (r"\frac12", r"50\%", 1, 1),
        (r"50\%", "50", 1, 0),
        ("0.5", "50", 0, 0),
    ]
    for gold, answer, loose, strict in table:
        for pair in ((gold, answer), (answer, gold)):
            assert (same(*pair), same(*pair, percent="strict")) == (loose, strict), pair


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 4",
        "x'",
        "1.5.2",
        r"\foo",
        "x+",
        "(1",
        r"\{1",
        "1..2",
        "7!!",
        r"\int x dx",
        r"1, \ldots",
        "a < b > c",
        "=3",
        r"x \in 3",
        "|x",
    ],
)
def test_what_has_no_single_reading_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        check(text)


@pytest.mark.parametrize("text", [r"\frac{1}{0}", r"\sqrt{x}+\frac{1}{x-x}", r"\ln 0 \cdot 0"])
def test_a_gold_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        check(text)
