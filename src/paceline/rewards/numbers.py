"""Numbers in free text, read exactly: the notation, what is refused, and when two of them are equal.

Read: an attached sign (`-5`, `−5`), a currency sign before or between (`$18`, `-$5`), digits with English thousands (`1,234,567`) or
those of LaTeX (`1{,}234`, `1\\,234`, `1,\\!234`), a decimal point, an exponent (`1.5e3`), a fraction (`3/4`, `\\frac{3}{4}`, `½`), a mixed
number (`2 1/2`, `2½`), a percent sign or word, a word of scale (`5 million`), all of it fullwidth, too. Markdown, units, brackets and
punctuation around a number are not part of it. Not read: a number that follows a letter (`x2`), an exponent (`cm^2`), a power (`10^5`,
`10²`: found, but without a value). Commas that do not form groups of three separate numbers. A minus with a space after it is a dash
(`- 5` is a list item). Values are fractions, so nothing is rounded: 0.1 + 0.2 is 0.3, and 0.33 is not 1/3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Percent = Literal["loose", "strict"]

LONGEST = 20_000
"""Digits of one number, at most; a longer one has no value (arithmetic on it is no longer cheap)."""
_LONGEST_EXPONENT = 4

_DECIMAL = r"(?:[0-9]++(?:,[0-9]++)*+(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+]?[0-9]++(?![A-Za-z0-9]))?"
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMBER = re.compile(
    rf"""
    (?:(?P<sign>(?<![^\W_])(?<![)\]}}%])[-+\u2212\u2013])(?:\\?[$€£¥₹][ ]?)?)?
    (?:\\[dt]?frac[ ]?\{{[ ]?(?P<top>-?{_DECIMAL})[ ]?\}}[ ]?\{{[ ]?(?P<bottom>{_DECIMAL})[ ]?\}}
      |(?<![A-Za-z0-9^])(?<![0-9]\.)(?<!\^[ ])(?<!\^\{{)(?<!\^[-+])(?P<decimal>{_DECIMAL})(?:[ ]?/[ ]?(?P<under>{_DECIMAL}))?)
    (?P<power>[ ]?\^|[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b])?
    (?:(?P<percent>[ ]?\\?%|[ ]per[ ]?cent\b)|[ ](?P<scale>{"|".join(_SCALES)})\b(?!-))?
    """,
    re.VERBOSE,
)
_PARTS = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5", "⅙": "1/6", "⅚": "5/6",
    "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_PART = re.compile(rf"(?<!\^)[{''.join(_PARTS)}]")
_LATEX_THOUSANDS = re.compile(r"\{,\}|,\\!|\\,(?=[0-9]{3}(?![0-9]))")
_FULLWIDTH = {0xFF01 + place: 0x21 + place for place in range(94)}
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")


@dataclass(frozen=True, slots=True)
class Number:
    """One number as it stands in a text. `value` ignores a percent sign; None = found but without a value."""

    text: str
    value: Fraction | None
    percent: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """A number and where it stands; `kind` tells what may join into a mixed number."""

    number: Number
    start: int
    end: int
    kind: Literal["integer", "fraction", "other"]


def find_numbers(text: str) -> list[Number]:
    """All numbers of `text` in order; linear in its length."""
    text = _LATEX_THOUSANDS.sub(",", _PART.sub(lambda part: f" {_PARTS[part.group()]}", text.translate(_FULLWIDTH)))
    found: list[_Found] = []
    for match in _NUMBER.finditer(text):
        for item in _pieces(match):
            mixed = _mixed(found[-1], item, text) if found else None
            if mixed is not None:
                found[-1] = mixed
            else:
                found.append(item)
    return [item.number for item in found]


def equal(gold: Number, answer: Number, percent: Percent = "loose") -> bool:
    """Exact equality; symmetric. With a percent sign on one side only, 28% equals 0.28, and under `loose` 28 as well.

    Both without a value, or one of them, are never equal. 0.5 and 50 are never equal. `loose` is not transitive, by choice.
    """
    if gold.value is None or answer.value is None:
        return False
    if gold.percent == answer.percent:
        return gold.value == answer.value
    rate, plain = (gold.value, answer.value) if gold.percent else (answer.value, gold.value)
    return rate == plain * 100 or (percent == "loose" and rate == plain)


def _pieces(match: re.Match[str]) -> Iterator[_Found]:
    """The numbers of one match: one, or several where its commas are no thousands separators."""
    sign = "-" if match["sign"] in ("-", "\u2212", "\u2013") else ""
    percent = match["percent"] is not None
    if match["decimal"] is None:
        yield _fraction(match, sign, percent)
        return
    *separate, last = _split(match["decimal"])
    start = match.start()
    for piece in separate:
        yield _Found(Number(sign + piece, _signed(sign, exact_number(piece))), start, start, "other")
        sign, start = "", match.start("decimal")
    under = match["under"]
    body = last if under is None else f"{last}/{under}"
    value = None if match["power"] else _signed(sign, exact_number(last) if under is None else _ratio(last, under))
    yield _Found(_number(sign + body, value, percent, match["scale"]), start, match.end(), _kind(match, last))


def _kind(match: re.Match[str], last: str) -> Literal["integer", "fraction", "other"]:
    """What of a mixed number it may be."""
    if match["power"] or match["scale"]:
        return "other"
    if match["under"]:
        return "fraction"
    return "integer" if last.isdigit() and not match["percent"] else "other"


def _fraction(match: re.Match[str], sign: str, percent: bool) -> _Found:
    """`\\frac{1}{2}` and its kind, written with top and bottom."""
    top, bottom = match["top"], match["bottom"]
    value = None if match["power"] else _signed(sign, _ratio(top, bottom))
    kind: Literal["fraction", "other"] = "other" if match["scale"] else "fraction"
    return _Found(_number(f"{sign}{top}/{bottom}", value, percent, match["scale"]), match.start(), match.end(), kind)


def _number(body: str, value: Fraction | None, percent: bool, scale: str | None) -> Number:
    if scale is not None:
        return Number(f"{body} {scale}", None if value is None else value * _SCALES[scale])
    return Number(body + "%" * percent, value, percent)


def _mixed(whole: _Found, part: _Found, text: str) -> _Found | None:
    """`2 1/2` from its integer and its proper fraction, or None when the two do not belong together."""
    gap = text[whole.end : part.start]
    if whole.kind != "integer" or part.kind != "fraction" or gap not in ("", " ") or part.number.text.startswith("-"):
        return None
    first, second = whole.number.value, part.number.value
    if first is None or second is None or not 0 < second < 1:
        return None
    value = first - second if whole.number.text.startswith("-") else first + second
    return _Found(Number(f"{whole.number.text} {part.number.text}", value, part.number.percent), whole.start, part.end, "other")


def _split(decimal: str) -> list[str]:
    """`1,234.5` is one number; `1,2,3.5` is three."""
    if "," not in decimal or _GROUPED.match(decimal):
        return [decimal]
    return decimal.split(",")


def _signed(sign: str, value: Fraction | None) -> Fraction | None:
    return -value if sign and value is not None else value


def _ratio(top: str, bottom: str) -> Fraction | None:
    above, below = exact_number(top), exact_number(bottom)
    return above / below if above is not None and below else None


def exact_number(text: str) -> Fraction | None:
    """The exact value, through Decimal: Python refuses to turn more than 4,300 digits into an int directly."""
    plain = text.replace(",", "")
    exponent = re.search(r"[eE][-+]?([0-9]+)", plain)
    if len(plain) > LONGEST or (exponent is not None and len(exponent[1]) > _LONGEST_EXPONENT):
        return None
    return Fraction(Decimal(plain))
