"""What stands beside a value and is no part of it: units, currency and percent signs. Letters beside a variable are variables."""

from __future__ import annotations

import re
from string import ascii_lowercase

from paceline.rewards.spelling import FUNCTIONS, SCALES

_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km", "millimeter": "mm",
    "millimetre": "mm", "inche": "inch", "inch": "inch", "in": "inch", "feet": "foot", "ft": "foot", "second": "s", "sec": "s",
    "minute": "min", "hour": "h", "hr": "h", "kilogram": "kg", "gram": "g", "liter": "l", "litre": "l", "L": "l", "dollar": "$", "usd": "$",
    "degree": "degree", "deg": "degree", "percent": "%", "unit": "", "mile": "mi", "year": "yr", "pound": "lb", "euro": "€", "mph": "mi/h",
    "kph": "km/h", "kmh": "km/h",
}  # fmt: skip
_OTHER_UNITS = {"mg", "ml", "oz", "cent", "day", "week", "month", "am", "pm"}
_KNOWN = (_OTHER_UNITS | set(_UNITS) | set(_UNITS.values())) - {""}
"""Units that are read beside a number without `\\text` and without a space."""
_PART_OF_THE_NUMBER = {
    *SCALES, "squared", "cubed", "factorial", "half", "halve", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "hundredth", "thousandth", "millionth", "or", "and", "to", "plus", "minus",
}  # fmt: skip
"""Words behind a number that begin no unit: without them it would be another number."""

_POWER = r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?$"
_IN_TEXT = re.compile(r"\s*\\text\{\s*([A-Za-z\u4e00-\u9fff][A-Za-z\u4e00-\u9fff .'/^0-9]*?)[\s.]*\}" + _POWER)
_CHINESE = re.compile(r"\s*([\u4e00-\u9fff]+)$")
_CHINESE_NUMBERS = frozenset("一二三四五六七八九十百千万亿兆半成倍折分之点又多余几")
_DEGREE = re.compile(r"\s*\^\\circ\s*(?:\\text\{\s*[CF]\s*\})?$")
_WORD = re.compile(r"(\s*)(?<![A-Za-z\\])((?:(?:square|sq|cubic)\s+)?[A-Za-z]{2,}(?:(?:\s+(?:per|of)\s+|/)[A-Za-z]+)?)" + _POWER)
_ENDS_A_VALUE = re.compile(r"(?:[\d})\]!]|\\pi)\s*$")
_SQUARED = re.compile(r"(square|sq|cubic)\.?\s+(.*)|(.*?)\^([23])")
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|([€£¥₹]))\s*")
_PERCENT = re.compile(r"\s*(?:%|\\text\{\s*%\s*\}|(?<![A-Za-z])per\s?cent)\s*$")
_BASE = re.compile(r"^([-+]?)(?:\\text\{\s*)?([0-9A-Z]+|[0-9][0-9a-z]*)\s*\}?\s*_\s*\{?\s*([0-9]{1,2})\s*\}?$")
_APPLICATION = re.compile(rf"\\(?:{'|'.join(FUNCTIONS)})(?![A-Za-z])")


def without_unit(text: str) -> tuple[str, str, bool]:
    """(expression, unit in one spelling or "", whether it is a percentage). A base, as in `101_2`, counts as a unit."""
    money = _CURRENCY.match(text)
    if money:
        return money[1] + _unit(text[money.end() :])[0], money[2] or "$", False  # $5 per hour is $5
    rate = _PERCENT.search(text)
    if rate:
        return text[: rate.start()], "", True
    text, unit = _unit(text)
    if unit == "%":
        return text, "", True
    return (*_based(text), False) if not unit else (text, unit, False)


def _based(text: str) -> tuple[str, str]:
    """A numeral and its base: `101_2`, `1A_{16}`; with letters among its digits a name of its own, since no product. `A_1` is neither."""
    match = _BASE.match(text)
    if match is None or not 2 <= int(match[3]) <= 36 or not _digits_of(match[2], int(match[3])):
        return text, ""
    return match[1] + (match[2] if match[2].isdigit() else rf"\overline{{{match[2].upper()}}}"), f"base {match[3]}"


def _digits_of(numeral: str, base: int) -> bool:
    return all(int(digit, 36) < base for digit in numeral) and (len(numeral) > 1 or numeral.isdigit())


def _unit(text: str) -> tuple[str, str]:
    return _degrees(text) or _chinese(text) or _in_text(text) or _by_word(text) or (text, "")


def _degrees(text: str) -> tuple[str, str] | None:
    degree = _DEGREE.search(text)
    inside = degree and degree.start() and not _APPLICATION.search(text)  # cos 60 degrees is a number
    return (text[: degree.start()], "degree") if degree and inside else None


def _chinese(text: str) -> tuple[str, str] | None:
    word = _CHINESE.search(text)
    if word is None or not word.start():
        return None
    return (text, "") if _CHINESE_NUMBERS & set(word[1]) else (text[: word.start()], word[1])


def _in_text(text: str) -> tuple[str, str] | None:
    named = _IN_TEXT.search(text)
    if named is None or not named.start() or _CHINESE_NUMBERS & set(named[1]) or _counts(named[1]):
        return None
    return text[: named.start()], _one_spelling(named[1], named[2])


def _by_word(text: str) -> tuple[str, str] | None:
    word = _WORD.search(text)
    value = text[: word.start()] if word else ""
    if word and _ENDS_A_VALUE.search(value) and not _has_variables(value) and _is_unit(word):
        return value, _one_spelling(word[2], word[3])
    return None


def _is_unit(word: re.Match[str]) -> bool:
    """A known unit, or any word of three letters after a space, unless it belongs to the number or is a product such as `abc`."""
    if _counts(word[2]):
        return False
    first = re.split(r"[/^]", _one_spelling(word[2], word[3]))[0]
    a_word = bool(word[1]) and len(word[2]) >= 3 and word[2] not in ascii_lowercase
    return first in _KNOWN or word[2].casefold() in _KNOWN or a_word


def _counts(words: str) -> bool:
    """Whether the first of some words belongs to the number."""
    first = re.split(r"[\s/^.]", words.strip(), maxsplit=1)[0].casefold()
    return bool({first, first.removesuffix("s")} & _PART_OF_THE_NUMBER)


def _has_variables(text: str) -> bool:
    return re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)) is not None


def _one_spelling(words: str, power: str | None) -> str:
    squared = _SQUARED.fullmatch(words)
    if squared and squared[1]:
        words, power = squared[2], "3" if squared[1] == "cubic" else "2"
    elif squared:
        words, power = squared[3], squared[4]
    name = re.sub(r"\sof\s.*", "", words.replace(".", "").strip())  # 3 cups of flour are 3 cups
    unit = "/".join(_singular(part) for part in re.split(r"\s*/\s*|\s+per\s+", name))
    return f"{unit}^{power}" if power and unit else unit


def _singular(name: str) -> str:
    folded = name if len(name) == 1 else name.casefold()
    single = folded.removesuffix("s") if len(folded) > 2 and not folded.endswith("ss") else folded
    return _UNITS.get(single, _UNITS.get(folded, single))
