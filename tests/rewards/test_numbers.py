"""Which numbers a text holds, and when two are equal."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.rewards.numbers import LONGEST, Number, equal, find_numbers


def values(text: str) -> list[Fraction | None]:
    return [number.value for number in find_numbers(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", [18]),
        ("$1,234.50.", [Fraction(2469, 2)]),
        ("1,200,000 dollars", [1200000]),
        ("-5", [-5]),
        ("\u22125", [-5]),
        ("\u20135", [-5]),
        ("(-5)", [-5]),
        ("_-5_", [-5]),
        ("-$5", [-5]),
        ("$-5", [-5]),
        ("\\$18", [18]),
        ("€ 7", [7]),
        (".5", [Fraction(1, 2)]),
        ("-.5", [Fraction(-1, 2)]),
        ("3/4", [Fraction(3, 4)]),
        ("-3/4", [Fraction(-3, 4)]),
        ("48 / 2 = 24", [24, 24]),
        ("2 1/2", [Fraction(5, 2)]),
        ("-2 1/2", [Fraction(-5, 2)]),
        ("5 10/2", [5, 5]),
        ("\\frac{1}{3}", [Fraction(1, 3)]),
        ("\\dfrac{-1}{3}", [Fraction(-1, 3)]),
        ("2\\frac{1}{2}", [Fraction(5, 2)]),
        ("\\boxed{18}", [18]),
        ("1.5e3", [1500]),
        ("3:30", [3, 30]),
        ("答案是18个", [18]),
        ("18/hour", [18]),
        ("18km", [18]),
        ("½ cup", [Fraction(1, 2)]),
        ("5½", [Fraction(11, 2)]),
        ("-2¾ m", [Fraction(-11, 4)]),
        ("1{,}234{,}567", [1234567]),
        (r"12\,345", [12345]),
        (r"3,\!000", [3000]),
        (r"5\,\text{cm}", [5]),
        ("１８．５", [Fraction(37, 2)]),
        ("5 million people", [5000000]),
        ("$2.5 billion", [2500000000]),
        (r"\frac{1}{2} million", [500000]),
        ("2 thousand-dollar bills", [2]),
    ],
)
def test_a_number_is_read_in_its_usual_notations(text: str, expected: list[Fraction]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3.5", [1, 2, Fraction(7, 2)]),
        ("-1,2", [-1, 2]),
        ("12,345,67", [12, 345, 67]),
        ("1234,567", [1234, 567]),
        ("0,123", [0, 123]),
    ],
)
def test_commas_that_do_not_form_thousands_separate_numbers(text: str, expected: list[Fraction]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("5-3", [5, 3]), ("x-5", [5]), ("$10-$12", [10, 12]), ("5%-10%", [5, 10]), ("- 5", [5])])
def test_a_minus_that_is_a_dash_or_an_operator_is_no_sign(text: str, expected: list[Fraction]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("text", ["x2", "CO2", "v1.2.3", "x^{12}", "x^2", ""])
def test_digits_inside_a_name_or_an_exponent_are_no_numbers(text: str) -> None:
    assert values(text) == []


@pytest.mark.parametrize("text", ["10^5", "10 ^ 5", "10²", "10⁻³", "10^½", "1/0", "1e99999", "9" * (LONGEST + 1)])
def test_a_number_whose_value_is_not_read_is_found_without_a_value(text: str) -> None:
    assert values(text) == [None]
    assert not equal(find_numbers(text)[0], find_numbers(text)[0])


@pytest.mark.parametrize("text", ["28%", "28 %", "28\\%", "28 percent", "28 per cent"])
def test_a_percent_sign_or_word_belongs_to_its_number(text: str) -> None:
    assert find_numbers(text) == [Number("28%", Fraction(28), percent=True)]


def test_numbers_are_compared_exactly() -> None:
    third, rounded, sixth = find_numbers("1/3 and 0.33 and 2/6")
    assert equal(third, sixth)
    assert not equal(third, rounded)
    assert values("0.1")[0] == Fraction(1, 10)


@given(st.fractions(max_denominator=10**6), st.sampled_from(["", "**", "__", "`", "$ ", "("]))
def test_a_fraction_survives_being_written_and_read(value: Fraction, around: str) -> None:
    assert values(f"so it is {around}{value}{around[:2].replace('(', ')').replace('$ ', '')}.") == [value]


@given(st.integers(-(10**30), 10**30), st.sampled_from(["{}", "{:,}", "${:,}", "**{:,}**", "{:,}.", "= {:,} apples", "{:,}.00"]))
def test_an_integer_survives_every_way_of_writing_it(value: int, form: str) -> None:
    assert values(form.format(value)) == [value]


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=6))
def test_a_decimal_survives_being_written_with_thousands(value: object) -> None:
    assert values(f"{value:,f}!") == [Fraction(str(value))]


@given(st.text(alphabet="0123456789,.-/%^eE$ {}\\fracx", max_size=60))
@settings(max_examples=500)
def test_no_text_makes_the_reader_fail(text: str) -> None:
    for number in find_numbers(text):
        assert equal(number, number) == (number.value is not None)


@pytest.mark.parametrize("piece", ["1,234,", "1,", "-", "1/", "\\frac{", "1 1/2 ", "9", "1e", "$", "1.2."])
def test_reading_takes_time_linear_in_the_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.perf_counter()
    find_numbers(text)
    assert time.perf_counter() - start < 5.0
