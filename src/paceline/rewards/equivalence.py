"""Whether two answers are the same mathematics: shapes here, expressions by math-verify's grammar and exact numerics.

Run this in a process that can be replaced (`rewards.bench`): an expression can be cheap to write and endless to compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy.core.evalf import PrecisionExhausted

from paceline.rewards.forms import Choice, Form, Listing, Ranges, Relation, Row, Value, Words, as_ranges
from paceline.rewards.numbers import Percent
from paceline.rewards.reading import clock, plain_number, punctured, read
from paceline.rewards.spelling import Unreadable, explicit

_DIGITS = 20
_WORKING_DIGITS = 200
_AGREEMENT = sympy.Rational(1, 10**15)
_NOTHING = sympy.Rational(1, 10**100)
"""What is smaller than this after 200 working digits is rounding."""
_LETTERS = re.compile(r"[A-Za-z](?:/[A-Za-z])?(?:\^[23])?")
_EITHER = re.compile(r"([-+]?[0-9]+)e([-+][0-9]+)")
"""`2e-1`: 0.2, or 2e - 1 with the number e."""
_ENOUGH = 3
_READING = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_POINTS = (
    (Fraction(17, 11), Fraction(29, 13), Fraction(41, 17), Fraction(59, 19)),
    (Fraction(83, 23), Fraction(71, 31), Fraction(139, 37), Fraction(101, 43)),
    (Fraction(7, 19), Fraction(11, 29), Fraction(13, 53), Fraction(31, 47)),
    (Fraction(23, 41), Fraction(5, 37), Fraction(29, 43), Fraction(3, 31)),
    (Fraction(-17, 13), Fraction(-37, 11), Fraction(-29, 17), Fraction(-61, 23)),
    (Fraction(47, 17), Fraction(-43, 19), Fraction(-13, 7), Fraction(37, 29)),
    (Fraction(-31, 9), Fraction(53, 21), Fraction(19, 12), Fraction(-67, 15)),
    (Fraction(-5, 23), Fraction(-9, 31), Fraction(-11, 47), Fraction(-8, 59)),
)
"""Where expressions with variables are compared: large, small, negative and mixed values; a fifth variable starts over, shifted."""


def same(gold: str, answer: str, percent: Percent = "loose") -> bool:
    """Whether two answers are equal under the written policy; `same(a, b) == same(b, a)`. Raises Unreadable, or what sympy raises."""
    return equal_forms(read(gold), read(answer), percent)


class Incomparable(Exception):
    """The algebra raised while it computed with an answer; the message names the exception."""


def readable(text: str) -> Form:
    """The shape of an answer with every expression in it read. Raises Unreadable."""
    form = read(text)
    for piece in _expressions(form):
        if plain_number(piece) is None:
            expression(piece)
    return form


def check(gold: str) -> None:
    """Raise Unreadable unless every expression in `gold` can be read and has values to compare."""
    for piece in _expressions(readable(gold)):
        if plain_number(piece) is None and clock(piece) is None and not _has_values(expression(piece)):
            raise Unreadable("an expression without a value")


def equal_forms(a: Form, b: Form, percent: Percent) -> bool:
    """Equality of two shapes; symmetric."""
    if isinstance(a, Choice) or isinstance(b, Choice):
        return _choices(a, b, percent)
    if isinstance(a, Relation) or isinstance(b, Relation):
        return _relations(a, b, percent)
    if isinstance(a, Ranges) or isinstance(b, Ranges):
        return _ranges(as_ranges(a), as_ranges(b), percent)
    if isinstance(a, Words) or isinstance(b, Words):
        return _as_words(a) == _as_words(b) != ""
    if isinstance(a, Listing) or isinstance(b, Listing):
        return _naming(a) == _naming(b) and _unordered(_elements(a), _elements(b), percent)
    return _alike(a, b, percent)


def _choices(a: Form, b: Form, percent: Percent) -> bool:
    """Of two choices label and answer count, against anything else one of them is enough."""
    if isinstance(a, Choice) and isinstance(b, Choice):
        return a.label == b.label and equal_forms(a.form, b.form, percent)
    choice, other = (a, b) if isinstance(a, Choice) else (b, a)
    assert isinstance(choice, Choice), "one of the two is"
    return equal_forms(Words(choice.label), other, percent) or equal_forms(choice.form, other, percent)


def _alike(a: Form, b: Form, percent: Percent) -> bool:
    if isinstance(a, Value) and isinstance(b, Value):
        return _values(a, b, percent)
    if isinstance(a, Row) and isinstance(b, Row):
        return (a.left, a.right) == (b.left, b.right) and _ordered(a.items, b.items, percent)
    return False


def _ranges(a: Ranges | None, b: Ranges | None, percent: Percent) -> bool:
    """Equality of unions, interval by interval; the variable counts where both name one."""
    if a is None or b is None or (a.name and b.name and a.name != b.name):
        return False
    return _unordered(a.items, b.items, percent)


def _ordered(a: Sequence[Form], b: Sequence[Form], percent: Percent) -> bool:
    return len(a) == len(b) and all(equal_forms(x, y, percent) for x, y in zip(a, b, strict=True))


def _unordered(a: Sequence[Form], b: Sequence[Form], percent: Percent) -> bool:
    """Equality as sets: every element has its equal on the other side, however often it stands there."""

    def _covered(some: Sequence[Form], others: Sequence[Form]) -> bool:
        return all(any(equal_forms(x, y, percent) for y in others) for x in some)

    return _covered(a, b) and _covered(b, a)


def _elements(form: Form) -> Sequence[Form]:
    return form.items if isinstance(form, Listing) else (form,)


def _naming(form: Form) -> bool:
    """Whether a list gives values to several names: `x = 1, y = 2` has an order that `2, 1` does not have."""
    return len({item.name for item in _elements(form) if isinstance(item, Relation) and item.name}) > 1


def _as_words(form: Form) -> str:
    if isinstance(form, Words):
        return form.text
    return form.text.replace(" ", "").casefold() if isinstance(form, Value) and form.text.isalpha() else ""


def _values(a: Value, b: Value, percent: Percent) -> bool:
    """Equality of two expressions with what stands beside them; for percent see `numbers.equal`. Of two that can be times of day, hours
    and minutes count and not their quotient."""
    if not _same_measure(a, b):
        return False
    if None not in (times := (clock(a.text), clock(b.text))):
        return times[0] == times[1]
    if a.percent == b.percent:
        return equal(a.text, b.text) or _spelled_out(a, b) or _spelled_out(b, a)
    rate, plain = (a.text, b.text) if a.percent else (b.text, a.text)
    return equal(rate, f"({plain})\\cdot 100") or (percent == "loose" and equal(rate, plain))


def _same_measure(a: Value, b: Value) -> bool:
    """A unit that only one side has is left out; two units must be one, and a percent sign is one."""
    if a.percent != b.percent:
        return not (a.unit or b.unit)
    return a.unit == b.unit or not (a.unit and b.unit)


def _spelled_out(a: Value, b: Value) -> bool:
    """Whether `5\\text{ m}` stands against `5 m`, which without markup reads as a product."""
    return bool(_LETTERS.fullmatch(a.unit)) and not b.unit and equal(f"{a.text} {a.unit}", b.text)


def _relations(a: Form, b: Form, percent: Percent) -> bool:
    """Two relations, or one against something else: `x = 3` is 3, since a name is all that it adds, and `x \\ne 3` the line without 3."""
    if isinstance(a, Relation) and isinstance(b, Relation):
        if a.name and a.name == b.name and a.sign == b.sign:
            return equal_forms(a.right, b.right, percent)
        return _proportional(a, b)
    relation, other = (a, b) if isinstance(a, Relation) else (b, a)
    assert isinstance(relation, Relation), "one of the two is"
    return bool(relation.name) and _named_value(relation, other, percent)


def _named_value(relation: Relation, other: Form, percent: Percent) -> bool:
    if isinstance(other, Ranges):
        return relation.sign == r"\ne" and _ranges(punctured(relation), other, percent)
    return relation.sign == "=" and equal_forms(relation.right, other, percent)


def _proportional(a: Relation, b: Relation) -> bool:
    """Whether one relation is the other times a number: 2x = 4 and x = 2; for `<` and its kind a positive number, or turned around."""
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
    if not (a.right_text and b.right_text):
        return False
    try:
        first, second = (expression(f"({r.left})-({r.right_text})") for r in (a, b))
    except Unreadable:  # a side that is a name in words, a tuple, a list
        return False
    ratio = _ratio(first, second)
    if ratio is None or ratio == 0:
        return False
    if a.sign == b.sign:
        return a.sign in ("=", r"\ne") or bool(ratio > 0)
    return turned.get(a.sign) == b.sign and bool(ratio < 0)


def _ratio(a: Any, b: Any) -> Any:
    """The real number r with a = r b wherever both are defined, or None."""
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if a.free_symbols != b.free_symbols or not names:
        return None
    for point in _points(names):
        x, y = (side.subs(point) for side in (a, b))
        if x.is_finite and y.is_finite and y.is_zero is False and x.is_zero is False:
            ratio = x / y
            return ratio if ratio.is_real and _equal_expressions(a, ratio * b) else None
    return None


def equal(a: str, b: str) -> bool:
    """Equality of two expressions: exact for numbers, by value at fixed points with variables. Raises Unreadable."""
    return any(_equal_texts(x, y) for x in _readings(a) for y in _readings(b))


def _readings(text: str) -> tuple[str, ...]:
    either = _EITHER.fullmatch(text)
    return (text, f"{either[1]} e {either[2]}") if either and not either[2][1:].startswith("0") else (text,)


def _equal_texts(a: str, b: str) -> bool:
    if a == b:
        return True
    x, y = plain_number(a), plain_number(b)
    if x is not None and y is not None:
        return x == y
    return _equal_expressions(expression(a), expression(b))


@lru_cache(maxsize=256)
def expression(text: str) -> Any:
    """The sympy expression that a cleaned text denotes. Raises Unreadable."""
    latex = explicit(text)
    try:
        read_as = latex2sympy(latex, is_real=True, normalization_config=None, conversion_config=_READING)
    except RecursionError:
        raise Unreadable("too deep") from None
    # The grammar raises bare Exceptions, and AttributeErrors of its own, for what it cannot read.
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}") from error
    if not isinstance(read_as, sympy.Expr):
        raise Unreadable("no expression")
    return read_as


def _equal_expressions(a: Any, b: Any) -> bool:
    try:
        return bool(a == b) or _equal_values(a, b)
    except (MemoryError, RecursionError):
        raise
    # A computer algebra raises what it likes on odd expressions: it is told as the answer's, unlike what our own code raises.
    except Exception as error:
        raise Incomparable(type(error).__name__) from error


def _has_values(expression: Any) -> bool:
    try:
        value = _computed(expression)
        names = sorted(value.free_symbols, key=str)
        if value.atoms(sympy.core.function.AppliedUndef):
            return True
        points = _points(names) if names else [{}]
        return sum(_agree(value, value, point) is not None for point in points) >= (_ENOUGH if names else 1)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - as above
        return False


def _equal_values(a: Any, b: Any) -> bool:
    a, b = _computed(a), _computed(b)
    if a == b:
        return True
    if any(side.has(sympy.nan, sympy.zoo) for side in (a, b)):
        return False
    if a.is_Rational and b.is_Rational:
        return False
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if any(side.atoms(sympy.core.function.AppliedUndef) for side in (a, b)):
        return _symbolically(a, b)
    if not names:
        return _agree(a, b, {}) is True
    verdicts = [verdict for point in _points(names) if (verdict := _agree(a, b, point)) is not None]
    return len(verdicts) >= _ENOUGH and all(verdicts)


def _computed(expression: Any) -> Any:
    """What the algebra makes of an expression, with the real odd roots of negative numbers in place of the principal ones."""
    return expression.doit().replace(_is_odd_root, lambda root: (-1) ** root.exp.p * (-root.base) ** root.exp)


def _is_odd_root(piece: Any) -> bool:
    odd = piece.is_Pow and piece.exp.is_Rational and piece.exp.q > 1 and piece.exp.q % 2 == 1
    return bool(odd and piece.base.is_number and piece.base.is_negative)


def _agree(a: Any, b: Any, point: dict[Any, Any]) -> bool | None:
    """Whether two expressions have one value at a point; None where exactly one is not real, or one is not defined."""
    values = [side.evalf(_DIGITS, subs=point) for side in (a, b)]
    if not all(value.is_number for value in values) or any(value.has(sympy.nan, sympy.zoo) for value in values):
        return None
    if any(value.has(sympy.oo, -sympy.oo) for value in values):
        return bool(values[0] == values[1])
    if point and values[0].is_real != values[1].is_real:
        return None
    try:
        difference = (a - b).evalf(_DIGITS, maxn=_WORKING_DIGITS, subs=point, strict=True)
    except PrecisionExhausted:
        return _indistinguishable(a, b, point)
    return bool(difference == 0)


def _indistinguishable(a: Any, b: Any, point: dict[Any, Any]) -> bool:
    """Whether a difference of which no digit is certain is none: each side has certain digits of its own and they agree, or both are
    nothing but rounding. So an answer that is too ill-conditioned to have a value equals nothing, and not everything."""
    try:
        x, y = (side.evalf(_DIGITS, maxn=_WORKING_DIGITS, subs=point, strict=True) for side in (a, b))
    except PrecisionExhausted:
        return all(abs(side.evalf(_DIGITS, maxn=_WORKING_DIGITS, subs=point)).evalf() < _NOTHING for side in (a, b))
    return bool(abs(x - y).evalf() <= abs(x).evalf() * _AGREEMENT)


def _points(names: Sequence[Any]) -> list[dict[Any, Any]]:
    return [{name: sympy.Rational(*(row[i % 4] + i // 4).as_integer_ratio()) for i, name in enumerate(names)} for row in _POINTS]


def _symbolically(a: Any, b: Any) -> bool:
    """An unknown function has no values: math-verify's own comparison, asked both ways, since it is not symmetric."""
    compare: Callable[..., bool] = math_verify.verify
    return any(compare(x, y, timeout_seconds=None, raise_on_error=True) for x, y in ((a, b), (b, a)))


def _expressions(form: Form) -> list[str]:
    """Every expression in a shape."""
    if isinstance(form, Value):
        return [form.text]
    if isinstance(form, Words):
        return []
    if isinstance(form, Choice):
        return _expressions(form.form)
    if isinstance(form, Relation):
        return ([] if form.name else [form.left]) + _expressions(form.right)
    return [text for item in form.items for text in _expressions(item)]
