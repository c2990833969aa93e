"""Reading answers: no spelling has another value than it says, and nothing but Unreadable comes out of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import sympy

from paceline.rewards.boxes import find_answer
from paceline.rewards.equivalence import Incomparable, equal_forms, expression, readable
from paceline.rewards.reading import plain_number, read
from paceline.rewards.spelling import Unreadable, clean, explicit
from paceline.rewards.units import without_unit

X, Y = sympy.symbols("x y", real=True)
POINT = {X: sympy.Rational(17, 11), Y: sympy.Rational(-29, 13)}
PIECES = [
    *"0123456789xyabfiIn+-*/^_=<>()[]{}|!.,;:%$&' ",
    *(
        r"\frac",
        r"\sqrt",
        r"\boxed",
        r"\text{",
        r"\text{cm}",
        r"\text{ and }",
        r"\left(",
        r"\right)",
        r"\{",
        r"\}",
        r"\cup",
        r"\in",
        r"\le",
    ),
    *(
        r"\pm",
        r"\mp",
        r"\infty",
        r"\pi",
        r"\sin",
        r"\log",
        r"\binom",
        r"\cdot",
        r"\lfloor",
        r"\rfloor",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
    ),
    *(r"\\", r"\langle", r"\rangle", r"^\circ", r"\%", r"\$", r"\approx", r"\overline{3}", r"\mathbb{R}", r"\emptyset", r"\ne", r"\foo"),
    *("and", "or", "cm", "sqrt", "½", "²", "√", "−", "π", "≤", "∞", "°", "{,}", r"\,", "1e5", "\n", "percent", "square", "meters"),
    *("①", "٣", "个", " feet ", " to ", "million", "(C) ", r"\textbf{(C)} ", "12:00", "_{16}", "..", "é"),
]
Made = tuple[str, sympy.Expr, int]
"""A spelling, its value, and how tightly it binds (9 = never needs brackets)."""


def make(dice: random.Random, depth: int) -> Made:
    """A random expression in a random spelling, with the value that sympy gives it."""
    if depth == 0 or dice.random() < 0.15:
        number = dice.choice(["7", "12", "0.5", "3.25", "100"])
        return dice.choice([(number, sympy.Rational(number), 9), ("x", X, 9), ("y", Y, 9), (r"\pi", sympy.pi, 9), ("i", sympy.I, 9)])
    kinds: list[Callable[[Made, Made], Made]] = [
        lambda a, b: (f"{at(a, 1)}+{at(b, 2)}", a[1] + b[1], 1),
        lambda a, b: (f"{at(a, 1)} - {at(b, 2)}", a[1] - b[1], 1),
        lambda a, b: (f"{at(a, 3)}{dice.choice(['*', chr(92) + 'cdot ', chr(92) + 'times', '·'])} {at(b, 4)}", a[1] * b[1], 3),
        lambda a, b: (f"{at(a, 3)}/{at(b, 4)}", a[1] / b[1], 3),
        lambda a, b: (f"{at(a, 3)}({b[0]})", a[1] * b[1], 3),
        lambda a, b: (rf"\{dice.choice(['', 'd', 't'])}frac{{{a[0]}}}{{{b[0]}}}", a[1] / b[1], 9),
        lambda a, b: (f"{at(a, 9)}^{dice.choice(['2', '{2}', '(2)'])}", a[1] ** 2, 5),
        lambda a, b: (f"-{at(a, 3)}", -a[1], 2),
        lambda a, b: (dice.choice([r"\sqrt{%s}", "sqrt(%s)"]) % a[0], sympy.sqrt(a[1]), 9),
        lambda a, b: (dice.choice([r"\ln(%s)", "ln(%s)", r"\ln\left(%s\right)"]) % a[0], sympy.log(a[1]), 9),
        lambda a, b: (dice.choice([r"\log_2(%s)", r"\log_{2}(%s)"]) % a[0], sympy.log(a[1], 2), 9),
        lambda a, b: (dice.choice([r"|%s|", r"\left|%s\right|"]) % a[0], sympy.Abs(a[1]), 9),
        lambda a, b: (f"{at(a, 9)}^{dice.choice(['0.5', '{0.5}', '{1/2}'])}", sympy.sqrt(a[1]), 5),
        lambda a, b: (dice.choice(["e^{%s}", r"\exp(%s)", r"\mathrm{e}^{%s}"]) % a[0], sympy.exp(a[1]), 5),
        lambda a, b: (dice.choice([r"\sin(%s)", r"\sin\left(%s\right)", "sin(%s)"]) % a[0], sympy.sin(a[1]), 9),
    ]
    return dice.choice(kinds)(make(dice, depth - 1), make(dice, depth - 1))


def at(made: Made, binding: int) -> str:
    return made[0] if made[2] >= binding else f"({made[0]})"


def test_every_spelling_of_a_random_expression_has_the_value_that_it_says() -> None:
    dice = random.Random(3)
    compared = 0
    while compared < 200:
        spelling, value, _ = make(dice, dice.randint(1, 3))
        try:
            wanted = complex(value.subs(POINT).evalf())
            got = complex(expression(clean(spelling)).doit().subs(POINT).evalf())
            tolerance = 1e-9 * max(1.0, abs(wanted))
        except (TypeError, OverflowError):  # infinite, or too large for a float: nothing to compare
            continue
        assert abs(got - wanted) <= tolerance, spelling
        compared += 1


def test_whatever_a_text_is_reading_it_gives_a_shape_or_says_unreadable() -> None:
    dice = random.Random(5)
    read_at_all = 0
    for _ in range(4000):
        text = "".join(dice.choices(PIECES, k=dice.choice([1, 2, 3, 5, 8, 20])))
        find_answer(text)
        try:
            read(text)
            explicit(text)
        except Unreadable:
            continue
        read_at_all += 1
    assert read_at_all > 200


def test_comparing_is_symmetric_whatever_the_two_answers_are() -> None:
    dice = random.Random(7)
    corpus = ["(1,2)", "1,2", r"\{1,2\}", "x=2", "2x=4", "0<x<2", "(0,2)", "[0,2)", "x>1", r"5\text{ m}", "5 m", "5", r"5\%", "0.05", "x+1"]
    corpus += ["f(x)+1", r"\pm 1", "1,-1", "east", "C", "(C)", r"\emptyset", "2:4:6", "y=x+1", "2x+1>3", r"\sqrt{x^2}", "|x|", "i", "x,y"]
    corpus += [
        r"\textbf{(C)} 12",
        "C 12",
        "12:00",
        "12:00 pm",
        "1:10",
        "2e-1",
        "2e - 1",
        "0.2",
        "5 million",
        "AB_{16}",
        "x=y=2",
        "5 feet 2 inches",
    ]
    compared = equal = 0
    for _ in range(300):
        pair = [_mutated(dice, dice.choice(corpus)) for _ in range(2)]
        try:
            one, other = map(readable, pair)
            verdicts = [equal_forms(a, b, "loose") for a, b in ((one, other), (other, one))]
        except (Unreadable, Incomparable):
            continue
        assert verdicts[0] == verdicts[1], pair
        compared, equal = compared + 1, equal + verdicts[0]
    assert compared > 100
    assert equal > 2


def _mutated(dice: random.Random, text: str) -> str:
    at = dice.randrange(len(text) + 1)
    return text if dice.random() < 0.7 else text[:at] + dice.choice("12x+-,. ") + text[at + dice.randint(0, 1) :]


@pytest.mark.parametrize(
    ("text", "value", "unit", "percent"),
    [
        (r"36\text{ cm}^2", "36", "cm^2", False),
        ("36 square centimeters", "36", "cm^2", False),
        ("36cm", "36", "cm", False),
        (r"\$1.50", "1.50", "$", False),
        ("-€3", "-3", "€", False),
        (r"90^\circ", "90", "degree", False),
        (r"\cos 60^\circ", r"\cos 60^\circ", "", False),
        ("20%", "20", "", True),
        ("20 percent", "20", "", True),
        ("12 apples", "12", "apple", False),
        ("60 miles per hour", "60", "mi/h", False),
        (r"5\text{ m/s}^2", "5", "m/s^2", False),
        ("3个", "3", "个", False),
        ("5 squared", "5 squared", "", False),
        (r"\pi abc", r"\pi abc", "", False),
        ("1A_{16}", r"\overline{1A}", "base 16", False),
        ("A_1", "A_1", "", False),
        ("2ab", "2ab", "", False),
        ("2x + 4xy", "2x + 4xy", "", False),
        ("101_2", "101", "base 2", False),
    ],
)
def test_units_are_told_from_variables(text: str, value: str, unit: str, percent: bool) -> None:
    assert without_unit(text) == (value, unit, percent)


def test_a_plain_number_is_exact_and_anything_else_is_none() -> None:
    assert [plain_number(text) for text in ("1e-9", "0.1", "3/4", "-2 / 6")] == [
        sympy.Rational(1, 10**9),
        sympy.Rational(1, 10),
        sympy.Rational(3, 4),
        sympy.Rational(-1, 3),
    ]
    assert [plain_number(text) for text in ("1 1/2", "1/0", "x", "1/-2", "", "1e99999")] == [None] * 6


@pytest.mark.parametrize("text", ["x" * 2001, "(" * 31 + "1" + ")" * 31, r"\frac{" * 40])
def test_what_is_too_long_or_too_deep_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(Unreadable, match="too"):
        clean(text)
