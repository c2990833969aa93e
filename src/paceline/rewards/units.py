"""What stands beside a value and is no part of it: units, currency and percent signs. Letters beside a variable are variables."""

from __future__ import annotations

import re

from paceline.rewards.spelling import FUNCTIONS

_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km", "millimeter": "mm",
    "millimetre": "mm", "inche": "inch", "inch": "inch", "in": "inch", "feet": "foot", "ft": "foot", "second": "s", "sec": "s",
    "minute": "min", "hour": "h", "hr": "h", "kilogram": "kg", "gram": "g", "liter": "l", "litre": "l", "L": "l", "dollar": "$", "usd": "$",
    "degree": "degree", "deg": "degree", "percent": "%", "unit": "", "mile": "mi", "year": "yr", "pound": "lb", "euro": "€",
}  # fmt: skip
_OTHER_UNITS = {"mg", "ml", "oz", "mph", "kph", "kmh", "cent", "day", "week", "month", "am", "pm"}
_KNOWN = (_OTHER_UNITS | set(_UNITS) | set(_UNITS.values())) - {""}
"""Units that are read beside a number without `\\text` and without a space."""

_POWER = r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?$"
_IN_TEXT = re.compile(r"\s*\\text\{\s*([A-Za-z][A-Za-z .'/^0-9]*?)[\s.]*\}" + _POWER)
_DEGREE = re.compile(r"\s*\^\\circ\s*(?:\\text\{\s*[CF]\s*\})?$")
_WORD = re.compile(r"(\s*)(?<![A-Za-z\\])((?:(?:square|sq|cubic)\s+)?[A-Za-z]{2,}(?:(?:\s+(?:per|of)\s+|/)[A-Za-z]+)?)" + _POWER)
_ENDS_A_VALUE = re.compile(r"(?:[\d})\]!]|\\pi)\s*$")
_SQUARED = re.compile(r"(square|sq|cubic)\.?\s+(.*)|(.*?)\^([23])")
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|([€£¥₹]))\s*")
_PERCENT = re.compile(r"\s*(?:%|\\text\{\s*%\s*\}|(?<![A-Za-z])per\s?cent)\s*$")
_BASE = re.compile(r"^([-+]?[0-9A-F]+)\s*_\s*\{?\s*([0-9]+)\s*\}?$")
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
    base = _BASE.match(text)
    return (base[1], f"base {base[2]}", False) if base and not unit else (text, unit, False)


def _unit(text: str) -> tuple[str, str]:
    degree = _DEGREE.search(text)
    if degree and degree.start() and not _APPLICATION.search(text):  # cos 60 degrees is a number
        return text[: degree.start()], "degree"
    named = _IN_TEXT.search(text)
    if named and named.start():
        return text[: named.start()], _one_spelling(named[1], named[2])
    word = _WORD.search(text)
    value = text[: word.start()] if word else ""
    if word and _ENDS_A_VALUE.search(value) and not _has_variables(value) and _is_unit(word):
        return value, _one_spelling(word[2], word[3])
    return text, ""


def _is_unit(word: re.Match[str]) -> bool:
    """A known unit, or any word of three letters after a space."""
    first = re.split(r"[/^]", _one_spelling(word[2], word[3]))[0]
    return first in _KNOWN or word[2].casefold() in _KNOWN or (bool(word[1]) and len(word[2]) >= 3)


def _has_variables(text: str) -> bool:
    return re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)) is not None


def _one_spelling(words: str, power: str | None) -> str:
    squared = _SQUARED.fullmatch(words)
    if squared and squared[1]:
        words, power = squared[2], "3" if squared[1] == "cubic" else "2"
    elif squared:
        words, power = squared[3], squared[4]
    name = words.strip(" .")
    folded = name if len(name) == 1 else name.casefold()
    single = folded.removesuffix("s") if len(folded) > 2 and not folded.endswith("ss") else folded
    unit = _UNITS.get(single, _UNITS.get(folded, single))
    return f"{unit}^{power}" if power and unit else unit
