"""`kind = "math"`: where the answer stands, what it is equal to, and that hostile answers cost their deadline and nothing else.

The policy is tested through `equivalence.same`, in this process; what needs verifier processes shares the ones that `verify` keeps.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from paceline.rewards import Judge, Part, extract, verify
from paceline.rewards.bench import Bench, Job
from paceline.rewards.boxes import last_box
from paceline.rewards.equivalence import check, same
from paceline.rewards.maths import MathVerifier, maths_answer
from paceline.rewards.spelling import Unreadable
from paceline.rewards.verifiers import MathReward
from paceline.rewards.worker import create
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Trajectory

IDS = np.arange(3, dtype=np.int32)
BENCH = Bench(2)
"""Two verifiers for the tests of this file, started by the first that needs them."""
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
    r"\boxed{1\frac{①}{2}}",
    r"\boxed{(\sqrt{\pi^{1400}+1}-\pi^{700})\pi^{700}}",
    r"\boxed{\lfloor\pi^{10^{7}}\rfloor}",
    r"\boxed{\sum_{n=1}^{10^{12}}n}",
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
        (r"\boxed 12,345 it is", "12,345"),
        (r"\(\boxed 7\)", "7"),
        (r"\boxed{**7**}", "7"),
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
        ("The final answer is:\n\n\\[\n7\n\\]", "7"),
        ("The answer is 7. I hope it is correct.", "7"),
        ("The answer is 3.5 apples. Yes.", "3.5 apples"),
        ("Answer: 0.333...", "0.333..."),
        ("最终答案是 **7**。因为 3+4=7", "7"),
        ("<think>first \\boxed{5}</think>then \\boxed{7}", "7"),
        ("first \\boxed{5}</think>so it is 7", "so it is 7"),
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
        (r"\boxed 2\sqrt{7}", "empty box"),
        (r"\boxed 1,7", "empty box"),
        (r"<think>it may be \boxed{7}", "no answer"),
        (r"<think>it may be \boxed{7}</think>", "no answer"),
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
    assert extract("<think>A: 5</think>A: 7", kind="math", marker="A:") == "7"


# --- what is equal

SAME = {
    "fractions": [(r"\frac{1}{3}", "1/3"), ("0.5", r"\frac12"), ("1\\frac12", "3/2"), ("1 1/2", "1.5"), (r"\dfrac{1}{72}", r"\frac1{72}"), ("½", "0.50")],
    "whole numbers": [("4", "004"), ("-5", "−5"), ("1{,}000", "1000"), ("1,234,567", "1234567"), (r"12\,345", "12345"), ("10 000", "10000")],
    "scientific": [("1e-9", "10^{-9}"), (r"1.5\times 10^3", "1500"), ("2^{10}", "1024"), ("2^10", "1024"), ("0.\\overline{3}", "1/3")],
    "roots and powers": [(r"\sqrt{50}", r"5\sqrt2"), ("sqrt(2)/2", r"\frac{1}{\sqrt{2}}"), (r"\sqrt[3]{8}", "2"), ("√12", r"2\sqrt{3}")],
    "functions": [(r"\log_2 8", "3"), (r"\cos 60^\circ", r"\frac12"), (r"\sin^2 x+\cos^2 x", "1"), (r"\ln x^2", r"2\ln x"), ("log(100)", "2")],
    "counting": [(r"{5 \choose 2}", "10"), (r"\binom{5}{2}", "10"), ("5!", "120"), (r"\lfloor 7/2\rfloor", "3")],
    "polynomials": [("x^2+2x+1", "(x+1)^2"), ("x(x+1)", "x^2+x"), ("2(3)", "6"), ("1/2x", r"\frac{x}{2}"), (r"\frac{x^2-1}{x-1}", "x+1"), ("ab", "ba")],
    "absolute values": [(r"\sqrt{x^2}", "|x|"), ("|x-1|", "|1-x|"), ("||x|-1|", "|1-|x||")],
    "complex": [("3+4i", "4i+3"), ("i^2", "-1"), (r"e^{i\pi}", "-1")],
    "units": [("36", r"36\text{ cm}"), ("36 cm", r"36\mathrm{cm}"), ("36 square meters", r"36\text{ m}^2"), (r"5\text{ m}", "5 m"), ("5 apples", "5"), (r"90^\circ", "90"), (r"\$32", "32 dollars"), (r"3\sqrt{2}\text{ units}", r"3\sqrt 2"), ("2516_8", "2516")],
    "lists and sets": [("1,2", "2,1"), ("1,2", r"\{2, 1\}"), (r"\{1,1,2\}", r"\{1,2\}"), (r"\{1,2\}", r"\{2,1\}"), (r"12 \text{ and } 13", "13, 12"), (r"\pm 2", "2,-2"), (r"1\pm\sqrt3", r"1+\sqrt3, 1-\sqrt3"), (r"\emptyset", r"\{\}")],
    "tuples": [("(1,2)", "( 1, 2 )"), ("(1,234)", "(1, 234)"), (r"\langle 1,2\rangle", "(1,2)"), (r"\left(\frac12, 3\right)", "(0.5,3)"), ("1:2:3", "1 : 2 : 3"), ("3:4", "6:8")],
    "conditions": [(r"x\geq 3 \text{ and } x\leq 5", "[3,5]"), (r"\{x \mid x>2\}", r"(2,\infty)"), (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5")],
    "intervals": [("(0, 12.5)", "0 < x < 12.5"), ("x>3", r"(3,\infty)"), ("3<x", "x>3"), (r"x \in [1,2)", "[1,2)"), (r"(-\infty,1)\cup(2,\infty)", "x<1 or x>2"), (r"(2,\infty)\cup(-\infty,1)", r"(-\infty,1)\cup(2,\infty)"), (r"(-\infty,\infty)", r"\mathbb{R}")],
    "equations": [("x=2", "2"), ("2x=4", "x=2"), ("y=2x+3", "2x+3"), ("2x+3=y", "y=3+2x"), ("x=2 or x=3", "2,3"), ("x=2, 3", "3, 2"), ("x=1,y=2", "y=2,x=1"), ("f(x)=x^2", "x^2"), ("1+1=2", "2"), ("2x+1>3", "-2x-1<-3"), (r"x \ne 2", r"x\neq 2"), ("(x,y)=(1,2)", "(1,2)")],
    "matrices": [(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}")],
    "words": [("east", r"\text{East}"), ("(C)", "C"), (r"\text{(C)}", r"\textbf{(C)}"), ("no", "No"), (r"\text{no solution}", "No solution"), ("A and B", "B, A")],
    "unknown functions": [("f(x)+1", "1+f(x)")],
    "approximately": [(r"\frac{1}{3} \approx 0.333", "1/3")],
    "characters": [("７", "7"), ("（1，2）", "(1,2)"), ("－5", "−5"), ("7\u200b", "7"), ("x ＝ 3", "3"), ("5。", "5"), (r"\nicefrac12", "0.5"), ("$7$ cm", "7 cm"), ("$7$", "7"), ("$7", "7 dollars")],
    "infinity": [("(3, inf)", r"(3,\infty)"), ("(-inf, 2)", "x<2"), ("-infinity", r"-\infty"), ("(−∞, 2]", r"x \le 2")],
    "huge and tiny": [("1e400", "10^{400}"), ("1e1000", "10^{1000}"), ("2e3x", "2000x"), ("1e-400", r"\frac{1}{10^{400}}"), ("7" * 4000, "7" * 4000)],
    "mixed numbers": [("-1 1/2", "-1.5"), ("2 3/4", r"\frac{11}{4}"), (r"-3\frac12", "-3.5"), (r"5\frac{10}{2}", "25")],
    "plus-minus": [(r"(3, \pm 2)", "(3,2), (3,-2)"), (r"(\pm 1, \pm 2)", "(1,2), (-1,-2)"), (r"(1\pm 2)", "3, -1"), (r"x=\pm 2", "x=2 or x=-2"), (r"\pm 0", "0"), (r"\langle 0,\pm1\rangle", "(0,1),(0,-1)")],
    "one element": [(r"\{2\}", "2"), ("2,2", "2")],
    "choices": [(r"\textbf{(C)}\ 12", "C"), (r"\textbf{(C)}\ 12", "12"), (r"\text{(C) }12", "(C) 12"), ("(C)", r"\mathrm{(C)}\ 12"), (r"\textbf{(D) }\frac12", "0.5"), ("(A) and (B)", "B, A"), ("C. 12", "C"), ("C) 12", "12"), (r"\text{C) }12", "C"), ("C)", "C")],
    "times": [("12:00", "12:00"), (r"\text{6:00 a.m.}", "6:00 AM"), ("3:30 p.m.", r"3:30\text{ PM}"), ("3:30 pm", "3:30"), ("3:05", "03:05"), ("3 to 4", "3:4")],
    "words of scale": [("5 million", "5000000"), (r"\$2.5\text{ million}", "2,500,000"), ("2 dozen", "24"), ("1.5 x 10^3", "1500")],
    "bases": [(r"\text{A58}_{16}", "A58_{16}"), ("1010_2", "1010_{2}")],
    "named": [(r"\angle ABC = 45^\circ", "45"), ("AB = 5", "5"), ("f(3) = 9", "9"), ("total cost = 5", "5"), (r"S=\pi r^2=4\pi", r"4\pi"), ("x=y=2", "x=2, y=2")],
    "systems": [(r"\begin{cases}x=1\\y=2\end{cases}", "x=1, y=2"), (r"\left\{\begin{array}{l}x=1\\y=2\end{array}\right.", "y=2, x=1"), (r"\begin{aligned}x&=1\\y&=2\end{aligned}", "x=1,y=2")],
    "holes": [(r"\mathbb{R}\setminus\{2\}", r"x\ne 2"), (r"\mathbb{R} - \{\frac12\}", r"(-\infty,0.5)\cup(0.5,\infty)"), (r"x\ne 2", r"(-\infty,2)\cup(2,\infty)"), (r"x\neq 2", r"x<2\text{ or }x>2")],
    "real roots": [(r"\sqrt[3]{-8}", "-2"), (r"\sqrt[3]{-5}", r"-\sqrt[3]{5}"), (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"), ("(-8)^{2/3}", "4")],
    "repeating": [(r"0.\dot{3}", "1/3"), (r"0.\dot{1}4285\dot{7}", r"\frac17"), (r"0.1\dot6", r"\frac16")],
    "plain powers": [("2^0.5", r"\sqrt{2}"), ("x_10", "x_{10}"), (r"\log_10 100", "2"), (r"\log_2 128", "7"), ("√2.5", r"\sqrt{5/2}")],
    "the number e": [("2e-1", "2e - 1"), ("2e-1", "0.2"), (r"\mathrm{e}^{2}", "e^2"), ("2.0e-1", "0.2")],
    "names of functions": [(r"\lg 100", "2"), (r"\operatorname{tg} x", r"\tan x"), (r"\operatorname{arctg} 1", r"\frac{\pi}{4}")],
    "text": [("5 feet 11 inches", "5 Feet 11 inches"), ("June 5", "june 5"), ("是", "是"), ("3个", "3"), (r"3\text{ 米}", "3米"), ("φ", r"\phi")],
    "families": [(r"x = 2k\pi, k \in \mathbb{Z}", r"2k\pi"), (r"2k\pi \quad (k\in\mathbb{Z})", r"2k\pi, k\in\mathbb{Z}")],
    "rates": [(r"25 \mathrm{~m}/\mathrm{s}", "25 m/s"), (r"5\text{ m/s}", "5 m/s"), (r"9.8\text{ m/s}^2", "9.8 m/s^2"), ("60 mph", "60 miles per hour"), ("5 cups of flour", "5 cups")],
    "nothing but rounding": [(r"\sqrt2+\sqrt3", r"\sqrt{5+2\sqrt6}"), (r"\sqrt2+\sqrt3-\sqrt{5+2\sqrt6}", "0"), (r"\pi^{400}(\sqrt2+\sqrt3)", r"\pi^{400}\sqrt{5+2\sqrt6}")],
    "arrays": [(r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}")],
    "sides": [("3", "x=3"), ("3=x", "x=3"), ("x-2=0", "x=2"), ("x+y=3", "2x+2y=6"), ("x^2+y^2=4", "x^2+y^2-4=0")],
}  # fmt: skip
DIFFERENT = {
    "no tolerance": [("1e-9", "0"), ("0.333333", "1/3"), ("3.14", r"\pi"), ("x^2+2x+1", "(x+1)^2+10^{-9}"), (r"\sqrt{2}+10^{-60}", r"\sqrt{2}"), ("10^{400}", "10^{400}+1"), ("12345678901234567890", "12345678901234567891")],
    "equations": [("3*x-1*y+13=0", "3x + 4y + 14=0"), ("x=2", "y=2"), ("2x=4", "2"), ("x=1,y=2", "(1,2)"), ("2x+1>3", "2x+1<3"), ("x<3", "x>3"), ("x<3 and x>1", "x<3 or x>1"), ("x^2=4", "x=2")],
    "brackets": [("(0,1)", "[0,1]"), ("[1,2)", "[1,2]"), ("(1,2)", "(2,1)"), ("(1,2)", "1,2"), ("1, 234", "1234"), ("1:2:3", "2:4:6"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)")],
    "units": [(r"36\text{ m}", r"36\text{ cm}"), ("36 cm^2", "36 cm"), ("2ab", "2"), ("2516_8", "2516_7"), (r"\frac{\pi}{3}", r"60^\circ"), ("€5", r"\$5")],
    "letters": [("A", "a"), ("east", "seat"), ("B", "C"), ("yes", "no"), ("-x", "x"), (r"\sqrt{x^2}", "x"), ("I", "i")],
    "lists": [("1,2", "1,2,3"), (r"\{1,2\}", "1"), (r"\pm 2", "2")],
    "nearly": [(r"\frac{22}{7}", r"\pi"), ("1.414214", r"\sqrt2"), ("0.1428571", r"\frac17"), ("1e400", "1e400+1"), ("1e-400", "0"), ("1e1000", "1000e"), ("10^{10}", "10^{11}")],
    "decimal commas": [("3,14", "3.14"), ("0,5", "0.5"), ("1.234,56", "1234.56"), ("1,23", "123")],
    "plus-minus": [(r"(3,\pm 2)", "(3,2,-2)"), (r"(1\pm 2)", "(3,-1)"), (r"(\pm 1,\pm 2)", "(1,-2),(-1,2)")],
    "percent": [("50", "0.5"), (r"50\%", "5"), (r"50\%", r"0.5\%")],
    "ill-conditioned": [(r"(\sqrt{\pi^{1400}+1}-\pi^{700})\pi^{700}", gold) for gold in ("5", r"\sqrt2", r"\frac{\pi}{2}", "x+5", "0")] + [(r"(\sqrt{x^{1400}+1}-x^{700})x^{700}", "x+5")],
    "choices": [(r"\textbf{(C)}\ 12", r"\textbf{(C)}\ 13"), (r"\textbf{(C)}\ 12", r"\textbf{(D)}\ 12"), ("(C) 12", "D"), ("(C) 12", "13"), ("x=1, y=2", "2, 1")],
    "times": [("3:30", "1:10"), ("3:30 p.m.", "3:30 a.m."), ("12:00", "12"), ("3:05", "3:50")],
    "bases": [("AB_{16}", "BA_{16}"), ("1A_{16}", "A1_{16}"), ("AB_{16}", "AB_{12}"), ("A_1", "A_2"), ("A_1", "A")],
    "words among numbers": [("5 feet 11 inches", "11 feet 5 inches"), ("5 ft 11 in", "11 ft 5 in"), ("2 hours 30 minutes", "30 hours 2 minutes"), ("5 to 7", "7 to 5")],
    "words of the number": [("5 squared", "5"), ("5 million", "5"), ("3 thirds", "3"), (r"\frac43\pi abc", r"\frac43\pi"), ("3 xyz", "3")],
    "chains": [("x=y=2", "x=2")],
    "holes": [(r"x\ne 2", r"(-\infty,3)\cup(3,\infty)"), (r"x\ne 2", r"y<2\text{ or }y>2"), (r"x\ne 2", "2")],
    "plain powers": [("2^0.5", "0.5"), ("x_10", "0"), ("√2.5", r"0.5\sqrt2")],
    "percent and units": [(r"5\%", r"5^\circ"), (r"5\%", r"\$5"), (r"5\%", r"5\text{ cm}")],
    "signs": [("5", "-5"), ("x=5", "x=-5"), ("(1,-2)", "(1,2)")],
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
        "5 10/2",
        "1e99999",
        "]1,2[",
        "7\x00",
        "7\ud800",
        r"\sqrt12",
        "sqrt 12",
        "0.333...",
        "1, 2, ...",
        "x+1=y+2=3",
        "x=2=y",
        "(A) (B)",
        r"\textbf{(A)} B, B",
        "(A) (B) (C) (D)",
        r"\begin{cases}x&x>0\\-x&x<0\end{cases}",
        r"\begin{vmatrix}1&2\\3&4\end{vmatrix}",
        r"1\frac{①}{2}",
        r"5\text{ or more}",
        "3万",
    ],
)
def test_what_has_no_single_reading_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        check(text)


@pytest.mark.parametrize("text", [r"\frac{1}{0}", r"\sqrt{x}+\frac{1}{x-x}", r"\ln 0 \cdot 0"])
def test_a_gold_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        check(text)


# Golds as data sets write them, beyond those above.
GOLDS = [
    "4210_{5}", r"11\text{ inches}^2", "3,\\!000", r"r = 2 \sin \theta", "(x-3)^2+(y+1)^2=4", r"\left[ \frac{\pi^4}{16}, \infty\right)", r"\{1\pm\sqrt{5},-2\}",
    r"\tan^{-1}\frac12", r"\begin{pmatrix} 1/5 & 0\\ 0 & 1 \end{pmatrix}", r"\left(\frac{1}{2}, -\frac{3}{2}\right)", r"\text{A, B, D}", r"\frac{\pi}{6}+2k\pi",
    "f^{-1}(x)=\\frac{x-1}{2}", r"\vec{v}", r"\overline{AB}", r"\angle ABC", r"\mathbb{Z}", r"\{x \mid x>2\}", r"5\sqrt{2}\ \text{units}", r"60\ mph", r"\$5\text{ per hour}",
    r"32^\circ\text{F}", r"\frac{1}{4}\%", r"x\geq 3 \text{ and } x\leq 5", "-1\\le x\\le 1", r"\{(1,2),(3,4)\}", r"5\text{th}", "x^2+C", r"\text{no solution}", "7:30",
]  # fmt: skip


@pytest.mark.parametrize("gold", GOLDS)
def test_golds_as_data_sets_write_them_are_read(gold: str) -> None:
    check(gold)
    assert same(gold, gold)


# Completions as they came, each with its gold: found and compared in one go.
JUDGED = [
    (r"\frac{1}{3}", r"so it is \boxed{\frac{1}{3}}", 1),
    (r"\sqrt{\frac{2}{3}}+1", r"\boxed{1+\sqrt{\frac{2}{3}}}", 1),
    ("x^8", r"\boxed{x^{2^{3}}}", 1),
    ("840", r"therefore \boxed{840}., but ... **Final Answer** \boxed{840}", 1),
    ("4", r"answer \boxed{004} ... sum is 2,552,004 ... \boxed{004}", 1),
    ("7", r"\boxed{5} no wait \boxed{7}", 1),
    ("7", r"\boxed{7} no wait \boxed{5}", 0),
    ("7", r"\boxed{7} no wait \boxed{5", 0),
    ("3*x-1*y+13=0", "3x + 4y + 14=0", 0),
    ("3*x-1*y+13=0", "6x - 2y = -26", 1),
    ("73", "437 + 2*234 = 905 ... Final Answer: **73**", 1),
    ("73", "Final Answer: 73!", 1),
    (r"28\%", r"\boxed{28 \text{ percent}}", 1),
    ("(0, 12.5)", r"\boxed{0 < x < 12.5}", 1),
    ("(1,2)", r"\boxed{(2,1)}", 0),
    (r"\boxed{12}", r"\(\boxed{12}\)", 1),
    ("$18$", "The answer is $18$.", 1),
    ("120", "The answer is 5!", 0),
    ("120", r"\boxed{5!}", 1),
    ("5", "so there are five of them", 0),
    ("7", r"\boxed{7} is what I find, from 12 and 13.", 1),
    ("7", r"\boxed{\text{so it is } \boxed{7}}", 1),
    ("12", r"**Answer:** $\boxed{12\,\text{cm}}$", 1),
    (r"\frac{1}{2}", r"so \boxed{\frac{1}{2}", 0),
    ("10^{400}", r"\boxed{1e400}", 1),
    ("0", r"\boxed{1e-400}", 0),
    ("7", r"\boxed{7}, no: \fbox{8}", 0),
    ("7", r"<think>\boxed{5}</think>It is \boxed{7}.", 1),
    ("5", r"<think>\boxed{5}</think>It is 7.", 0),
    ("5", r"<think>\boxed{5}", 0),
    ("0.333", "Answer: 0.333...", 0),
    ("2", r"\boxed 2\sqrt{3}", 0),
    (r"\sqrt{2}", r"\boxed{1.414214}", 0),
]


def test_completions_are_judged_as_a_reader_would_judge_them() -> None:
    scores = MathVerifier(bench=BENCH).scores([(gold, text) for gold, text, _ in JUDGED])
    assert [text for (_, text, right), score in zip(JUDGED, scores, strict=True) if score.value != right] == []


# --- golds, reasons, settings


def test_golds_that_cannot_be_compared_are_listed_with_their_rows_before_anything_is_generated() -> None:
    judge = Judge([Part(MathReward("math", MathVerifier(timeout_s=1.0, bench=BENCH)))])
    golds = ["4", r"\frac{1}{2}", r"\frac{1}{0}", None, "3 4", r"\boxed{", "10^{10^{10}}", r"x \in [0, 1)"]
    with pytest.raises(RewardError) as caught:
        judge.check([Prompt(i, i, IDS, "q", gold, {}, "sums") for i, gold in enumerate(golds)])
    said = str(caught.value)
    assert "5 rows cannot be judged" in said
    for row, why in (
        (2, "an expression without a value"),
        (3, "task.gold_column"),
        (4, "two numbers side by side"),
        (5, "unterminated box"),
        (6, "not compared in time"),
    ):
        assert f"row {row} of sums, reward math: " in said
        assert why in next(line for line in said.splitlines() if line.startswith(f"row {row} "))


def test_a_bad_gold_is_an_error_and_never_a_zero() -> None:
    for gold in (r"\foo", "", r"\boxed{}"):
        with pytest.raises(RewardError, match="gold"):
            verify(gold, r"\boxed{1}", kind="math")


def test_every_score_says_why_and_what_was_read() -> None:
    texts = [r"\boxed{\frac{2}{4}}", r"\boxed{7}", r"\boxed{3 4}", r"\boxed{", r"\boxed{" + "x" * 3000 + "}", r"\boxed{999999999!}"]
    scores = MathVerifier(timeout_s=0.5, bench=BENCH).scores([("0.5", text) for text in texts])
    assert [(s.value, s.reason, s.parsed) for s in scores] == [
        (1.0, "", True),
        (0.0, "wrong", True),
        (0.0, "unreadable", False),
        (0.0, "unterminated box", False),
        (0.0, "too long", False),
        (0.0, "not compared in time", False),
    ]
    assert [s.extracted for s in scores[:3]] == [r"\frac{2}{4}", "7", "3 4"]


@pytest.mark.parametrize("settings", [{"percent": "no"}, {"marker": " "}, {"marker": 3}])
def test_settings_without_meaning_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        MathVerifier(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which"):
        verify("1", "1", kind="math", which="first")
    with pytest.raises(ConfigError, match="which"):
        extract("1", kind="math", which="first")


# --- processes


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _third() -> float:
    return verify(r"\frac{1}{3}", THIRD, kind="math")


def test_verify_gives_the_same_in_main_thread_thread_process_and_event_loop() -> None:
    async def inside() -> float:
        return await asyncio.to_thread(_third) * _third()

    results = [_third(), asyncio.run(inside())]
    thread = threading.Thread(target=lambda: results.append(_third()))
    thread.start()
    thread.join()
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        results.append(pool.submit(verify, r"\frac{1}{3}", THIRD, kind="math").result())
    assert results == [1.0] * 4
    assert _third() == 1.0, "a forked copy leaves the processes of this one alone"


def test_64_hostile_answers_cost_their_deadlines_and_the_next_batch_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    BENCH.start()
    deadline, workers = 0.2, 2
    code = rf"\boxed{{__import__('os').system('touch {tmp_path}/PWNED')}}"  # wherever the verifiers were started
    texts = [code, *(HOSTILE * 5)[:59], r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{1}", ""]
    start = time.monotonic()
    scores = MathVerifier(timeout_s=deadline, bench=BENCH).scores([(r"\frac12", text) for text in texts])
    assert time.monotonic() - start < deadline * len(texts) / workers + 2
    assert [score.value for score in scores] == [0.0] * 60 + [1.0, 1.0, 0.0, 0.0]
    assert all(score.reason for score in scores[:60])
    normal = MathVerifier(bench=BENCH).scores([(r"\sqrt{8}", r"\boxed{2\sqrt2}")] * 3 + [("1", r"\boxed{2}")])
    assert [score.value for score in normal] == [1.0, 1.0, 1.0, 0.0]
    assert os.listdir(tmp_path) == []


def test_five_thousand_digits_are_compared_without_an_exception() -> None:
    digits = "7" * 5000
    assert verify(digits, rf"\boxed{{{digits}}}", kind="math") == 1.0
    assert verify(digits, digits, kind="math") == 1.0
    assert verify(digits, rf"\boxed{{{digits[:-1]}8}}", kind="math") == 0.0
    assert verify("x", digits, kind="math") == 0.0
    assert verify(r"\frac{1}{2}", digits + "+1", kind="math") == 0.0


def test_finding_an_answer_in_a_megabyte_of_anything_is_quick() -> None:
    start = time.monotonic()
    for piece in (r"\(", "$", ".*", "_", "*", "answer ", "\\boxed{", "{}", "\n", "`", "and ", "####"):
        maths_answer(piece * (1_000_000 // len(piece)))
        maths_answer("answer is " + piece * (1_000_000 // len(piece)))
    assert time.monotonic() - start < 10


def test_memory_is_limited_and_running_out_of_it_costs_nothing_but_the_answer() -> None:
    bench = Bench(memory_mib=4)
    try:
        first, second = bench.compare([Job("1", "7^{10000000}"), Job("1/2", r"\frac12")], timeout_s=60)
        assert (first.status, second.status) == ("memory", "right")
    finally:
        bench.close()


@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="needs the children files of Linux")
def test_lost_processes_are_replaced_and_a_job_that_loses_two_is_an_error() -> None:
    bench = Bench()
    try:
        assert bench.compare([Job("1/2", r"\frac12")], 30)[0].status == "right"
        keeper, (verifier,) = bench.pid, children(bench.pid)
        for pid in (keeper, verifier):
            os.kill(pid, signal.SIGTERM)
        assert bench.compare([Job("1/2", r"\frac12")], 30)[0].status == "right"
        assert (bench.pid, children(keeper)) == (keeper, [verifier]), "a signal to the whole job is not theirs to follow"
        os.kill(verifier, signal.SIGKILL)
        assert bench.compare([Job("1/2", r"\frac12")], 30)[0].status == "right", "a verifier that died idle is nobody's fault"
        killer = threading.Thread(target=_kill_verifiers, args=(bench.pid, 2))
        killer.start()
        lost = bench.compare([Job("1/2", "999999999!")], 30)
        killer.join()
        assert lost[0].status == "lost"
        os.kill(keeper, signal.SIGKILL)
        assert bench.compare([Job("1/2", r"\frac12")], 30)[0].status == "right"
        assert bench.pid != keeper
    finally:
        bench.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_process_outlives_the_one_that_started_it_even_in_the_middle_of_a_comparison() -> None:
    program = (
        "from paceline.rewards.bench import Bench, Job; bench = Bench(); bench.start(); print(bench.pid, flush=True);"
        "bench.compare([Job('1/2', '999999999!')], 60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        keeper = int(caller.stdout.readline())
        pids = [keeper, *children(keeper)]
        caller.kill()
    end = time.monotonic() + 20
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def _kill_verifiers(keeper: int, times: int) -> None:
    """Kill the verifier that computes, `times` times in a row."""
    for _ in range(times):
        busy: list[int] = []
        while not busy:
            time.sleep(0.05)
            busy = [pid for pid in children(keeper) if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"]
        os.kill(busy[0], signal.SIGKILL)


def test_a_reward_worker_judges_a_group_in_order_and_names_the_row_of_a_bad_gold() -> None:
    body = create([{"kind": "math"}], verifiers=2)
    try:
        body.call("check", [prompt("4"), prompt(r"\frac{1}{2}")])
        group = body.call("score", prompt(r"\frac{1}{2}"), samples(r"\boxed{0.5}", "", r"\boxed{\frac{2}{4}}", r"\boxed{2}"))
        assert group.rewards == (1.0, 0.0, 1.0, 0.0)
        assert [score.reason for score in group.scores["math"]] == ["", "no answer", "", "wrong"]
        with pytest.raises(RewardError, match=r"reward math on row 7 of sums: gold '\\\\foo' cannot be read as mathematics"):
            body.call("score", prompt(r"\foo"), samples(r"\boxed{0.5}"))
    finally:
        body.close()
