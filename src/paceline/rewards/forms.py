"""The shape of an answer: value with unit, list, set, tuple, interval, union, matrix, equation, inequality, words.

`read` finds the shape and leaves expressions as text for `equivalence`; it computes nothing and imports no algebra.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.rewards.numbers import LONGEST, exact_number
from paceline.rewards.spelling import FUNCTIONS, GREEK, Unreadable, clean, closing, without_thousands

MOST_PARTS = 60
"""Elements of a list, set, tuple or matrix, at most."""

_PLAIN = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_NAME = re.compile(
    rf"(?:[A-Za-z]|\\(?:{'|'.join(sorted(GREEK, key=len, reverse=True))}))\s*'*\s*(?:_\s*(?:\{{[^{{}}]*\}}|[A-Za-z0-9]))?"
    r"(?:\s*\(\s*[A-Za-z]\s*(?:,\s*[A-Za-z]\s*)*\))?|\([A-Za-z](?:\s*,\s*[A-Za-z])+\)|\\text\{[^{}]*\}"
)
_RELATION = re.compile(r"\\(?:le|ge|ne|in)(?![A-Za-z])|[<>=]")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]*(?:[\s,]+[A-Za-z][A-Za-z'-]*)*")
_SHORT_WORDS = frozenset({"no", "or", "on", "at", "up"})
_UNIT_TEXT = re.compile(
    r"\s*\\text\{\s*([A-Za-z][A-Za-z .'/^0-9]*?)[\s.]*\}\s*(?:\^\s*\{?\s*([23])\s*\}?)?$|\s*(\^\\circ)\s*(?:\\text\{\s*[CF]\s*\})?$"
)
_UNIT_WORD = re.compile(
    r"(?P<gap>\s*)(?<![A-Za-z\\])((?:(?:square|sq|cubic)\s+)?[A-Za-z]{2,}(?:(?:\s+(?:per|of)\s+|/)[A-Za-z]+)?)\s*(?:\^\s*\{?\s*([23])\s*\}?)?$"
)
_APPLICATION = rf"\\(?:{'|'.join(FUNCTIONS)})(?![A-Za-z])"
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|([€£¥₹]))\s*")
_BASE = re.compile(r"^([-+]?[0-9A-F]+)_\{?([0-9]+)\}?$")
_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km", "millimeter": "mm",
    "millimetre": "mm", "inche": "inch", "inch": "inch", "in": "inch", "feet": "foot", "ft": "foot", "second": "s", "sec": "s",
    "minute": "min", "hour": "h", "hr": "h", "kilogram": "kg", "gram": "g", "liter": "l", "litre": "l", "L": "l", "dollar": "$", "usd": "$",
    "degree": "degree", "deg": "degree", "percent": "%", "unit": "", "mile": "mi", "year": "yr", "pound": "lb", "euro": "€",
}  # fmt: skip
_OTHER_UNITS = {"mg", "ml", "oz", "mph", "kph", "kmh", "cent", "day", "week", "month", "am", "pm"}
_KNOWN = (_OTHER_UNITS | set(_UNITS) | set(_UNITS.values())) - {""}
"""Units that are read beside a number without `\\text` and without a space."""


@dataclass(frozen=True, slots=True)
class Value:
    """One expression. `text` is cleaned LaTeX; `unit` one spelling of what stood beside it ("" = none); `percent`: a percent sign."""

    text: str
    unit: str = ""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or a choice letter: compared as text, without case."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """Elements between brackets, in order: a tuple, a vector, or the interval that is written alike. `left` `right`: `(`, `[`, `:`, ..."""

    left: str
    right: str
    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Elements without order: a set, a bare list, the two values of a plus-minus sign."""

    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Intervals joined by unions, each a Row of two. `name`: the variable of the inequality it was written as, or ""."""

    items: tuple[Row, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of expressions; all of one length."""

    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """`left sign right`, where the sign is `=`, `<`, `>`, `\\le`, `\\ge` or `\\ne`. `name`: the left side where it is just a name."""

    sign: str
    left: str
    right: Form
    right_text: str
    name: str = ""


Form = Value | Words | Row | Listing | Ranges | Matrix | Relation


def read(text: str) -> Form:
    """The shape of an answer. Raises Unreadable when it has none."""
    number = read_number(text)
    if number is not None:
        return number
    cleaned = clean(text).strip().rstrip(".;,:").strip()
    cleaned = re.split(r"\\approx", cleaned)[0].strip()
    if not cleaned:
        raise Unreadable("empty")
    return _read(_unwrapped(cleaned))


def read_number(text: str) -> Value | None:
    """A text that is one number with nothing beside it; None for anything else. Needs no algebra, whatever its length."""
    plain = text.strip()
    if len(plain) > LONGEST or not (_PLAIN.fullmatch(plain) or _GROUPED.fullmatch(plain)):
        return None
    return Value(plain.replace(",", "").rstrip("."))


def plain_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number or a fraction of two integers, else None."""
    top, slash, bottom = text.partition("/")
    if not _PLAIN.fullmatch(top.strip()):
        return None
    above = exact_number(top.strip())
    if not slash:
        return above
    below = exact_number(bottom.strip()) if re.fullmatch("[0-9]+", bottom.strip()) else None
    return above / below if above is not None and below else None


def _unwrapped(text: str) -> str:
    """Without a `\\text{...}` or braces around everything."""
    while True:
        start = 5 if text.startswith(r"\text{") else 0 if text.startswith("{") else None
        if start is None or closing(text, start) != len(text) - 1:
            return text
        text = text[start + 1 : -1].strip()


def _read(text: str) -> Form:
    words = _words(text)
    if words is not None:
        return words
    parts = _split(text, (",", ";", r"\text", "and", "or"))
    if len(parts) > 1:
        return _listing(parts)
    relation = _relation(text)
    if relation is not None:
        return relation
    unions = _split(text, (r"\cup",))
    if len(unions) > 1:
        return Ranges(tuple(_interval(_read(part)) for part in unions))
    return _grouped(text) or _plus_minus(text) or _value(text)


def _words(text: str) -> Words | None:
    """Letters only, and not a product of variables: three letters or more, or several words, or a choice such as `(B)`."""
    choice = re.fullmatch(r"\(\s*(?:\\text\{)?\s*([A-Z])\s*\}?\s*\)", text)
    if choice:
        return Words(choice[1].casefold())
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip(" .")
    if not _WORDS.fullmatch(bare):
        return None
    longest = max(len(word) for word in re.split(r"[\s,]+", bare))
    if longest >= 3 or bare.casefold() in _SHORT_WORDS or (r"\text" in text and bare.isalpha()):
        return Words(" ".join(bare.casefold().replace(",", " ").split()))
    return None


def _split(text: str, marks: Sequence[str]) -> list[str]:
    """Parts between marks outside all brackets; `\\text` stands for a `\\text{and}` or `\\text{or}`."""
    parts, start, i = [], 0, 0
    while i < len(text):
        length = _mark(text, i, marks)
        if length:
            parts.append(text[start:i].strip())
            start = i = i + length
        elif text[i] in "([{":
            i = closing(text, i) + 1
        elif text.startswith(r"\{", i):
            i = _set_end(text, i)
        elif text[i] == "\\":
            command = re.match(r"\\begin\{(\w+)\}.*?\\end\{\1\}|\\langle.*?\\rangle|\\[A-Za-z]+|\\.", text[i:])
            i += command.end() if command else 1
        else:
            i += 1
    parts.append(text[start:].strip())
    if len(parts) > 1:
        parts = [part for part in parts if part or not {",", "or", "and"} & set(marks)]
    if not all(parts):
        raise Unreadable("empty part")
    if len(parts) > MOST_PARTS:
        raise Unreadable("too many parts")
    return parts


def _mark(text: str, i: int, marks: Sequence[str]) -> int:
    for mark in marks:
        if mark == r"\text":
            match = re.compile(r"\\text\{\s*,?\s*(?:and|or)\s*\}").match(text, i)
        elif mark.isalpha():
            match = re.compile(rf"(?<![A-Za-z\\]){mark}(?![A-Za-z])").match(text, i)
        elif mark.startswith("\\"):
            match = re.compile(re.escape(mark) + r"(?![A-Za-z])").match(text, i)
        else:
            match = re.compile(re.escape(mark)).match(text, i) if mark != "," or not _thousands_at(text, i) else None
        if match:
            return match.end() - i
    return 0


def _thousands_at(text: str, i: int) -> bool:
    """Whether the comma at `i` groups digits: up to three before it, exactly three after it, no space."""
    if text[i] != ",":
        return False
    if text[i - 1 : i] == "{" and text[i + 1 : i + 2] == "}":
        return True
    before = re.search(r"(?<![\d.])([1-9]\d{0,2}(?:,\d{3})*)$", text[max(0, i - 40) : i])
    after = re.match(r",\d{3}(?:,\d{3})*(?!\d|,\d)", text[i:])
    return before is not None and after is not None


def _set_end(text: str, i: int) -> int:
    depth = 0
    for match in re.compile(r"\\[{}]").finditer(text, i):
        depth += 1 if match.group() == r"\{" else -1
        if depth == 0:
            return match.end()
    raise Unreadable("unbalanced brackets")


def _listing(parts: Sequence[str]) -> Form:
    items = [_read(part) for part in parts]
    if all(isinstance(item, (Row, Ranges)) and _is_range(item) for item in items) and any(isinstance(item, Ranges) for item in items):
        names = {item.name for item in items if isinstance(item, Ranges)}
        return Ranges(tuple(part for item in items for part in _interval_parts(item)), names.pop() if len(names) == 1 else "")
    first = items[0]
    if isinstance(first, Relation) and first.name and first.sign == "=":
        values = [_same_name(item, first.name) for item in items]
        if all(value is not None for value in values):
            value = Listing(tuple(value for value in values if value is not None))
            return Relation("=", first.left, value, "", first.name)
    return Listing(tuple(items))


def _same_name(item: Form, name: str) -> Form | None:
    if isinstance(item, Relation):
        return item.right if item.sign == "=" and item.name == name else None
    return item


def _relation(text: str) -> Form | None:
    """An equation or inequality, a chain of them, or `x \\in set`."""
    sides, signs, start, i = [], [], 0, 0
    while i < len(text):
        match = _RELATION.match(text, i)
        if match:
            sides.append(text[start:i].strip())
            signs.append(match.group())
            start = i = match.end()
        elif text[i] in "([{":
            i = closing(text, i) + 1
        elif text.startswith(r"\{", i):
            i = _set_end(text, i)
        else:
            i += 2 if text[i] == "\\" else 1
    if not signs:
        return None
    sides.append(text[start:].strip())
    if not all(sides):
        raise Unreadable("relation without a side")
    if signs == [r"\in"]:
        return _member(sides[0], _read(sides[1]))
    if set(signs) == {"="}:
        return _equation(sides)
    if len(signs) == 2 and (set(signs) <= {"<", r"\le"} or set(signs) <= {">", r"\ge"}):
        return _between(sides, signs)
    if len(signs) > 1:
        raise Unreadable("chain of relations")
    return _inequality(sides[0], signs[0], sides[1])


def _member(left: str, right: Form) -> Form:
    if isinstance(right, (Row, Ranges)) and _is_range(right):
        return Ranges(_interval_parts(right), _name(left))
    if isinstance(right, Listing):
        return Relation("=", left, right, "", _name(left))
    raise Unreadable("membership")


def _equation(sides: Sequence[str]) -> Form:
    first, last = sides[0], sides[-1]
    if not _name(first) and _name(last) and len(sides) == 2:
        first, last = last, first
    name = _name(first)
    if not name and not re.search(r"(?<![\\A-Za-z])[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", "".join(sides[:-1]))):
        return _read(last)  # 1 + 1 = 2: a calculation, whose value is its end
    return Relation("=", first, _read(last) if name else Value(last), last, name)


def _between(sides: Sequence[str], signs: Sequence[str]) -> Form:
    if signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    low, middle, high = sides
    left, right = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
    if not _name(middle):
        raise Unreadable("chain of relations")
    return Ranges((Row(left, right, (_value(low), _value(high))),), _name(middle))


def _inequality(left: str, sign: str, right: str) -> Form:
    if not _name(left) and _name(right):
        left, sign, right = right, _FLIPPED[sign], left
    name = _name(left)
    if not name or sign == r"\ne":
        return Relation(sign, left, Value(right), right, name)
    if sign in (">", r"\ge"):
        return Ranges((Row("(" if sign == ">" else "[", ")", (_value(right), Value(r"\infty"))),), name)
    return Ranges((Row("(", ")" if sign == "<" else "]", (Value(r"-\infty"), _value(right))),), name)


def _name(text: str) -> str:
    """The text without spaces and braces where it is just a name: a letter with its subscript, `f(x)`, `(x, y)`, words."""
    match = _NAME.fullmatch(text.strip())
    return re.sub(r"\\text|[\s{}]", "", match.group()) if match else ""


def _grouped(text: str) -> Form | None:
    """What stands between one pair of brackets: a set, a tuple or interval, a matrix; None otherwise."""
    if text.startswith(r"\{") and _set_end(text, 0) == len(text):
        inner = text[2:-2].strip()
        return Listing(tuple(_read(part) for part in _elements(inner)) if inner else ())
    if text in (r"\emptyset", r"\text{\emptyset}"):
        return Listing(())
    if text in (r"\mathbb{R}", r"\mathbb R"):
        return Ranges((Row("(", ")", (Value(r"-\infty"), Value(r"\infty"))),))
    matrix = re.fullmatch(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", text, re.DOTALL)
    if matrix:
        rows = tuple(
            tuple(_read(cell.strip()) for cell in row.split("&")) for row in re.split(r"\\\\", matrix[2].strip().removesuffix("\\\\"))
        )
        if len({len(row) for row in rows}) > 1 or sum(map(len, rows)) > MOST_PARTS:
            raise Unreadable("matrix")
        return Matrix(rows)
    angle = re.fullmatch(r"\\langle(.*)\\rangle", text)
    if angle:
        return Row("(", ")", tuple(_read(part) for part in _elements(angle[1])))
    if text[0] in "([" and closing(text, 0) == len(text) - 1:
        items = _elements(text[1:-1])
        if len(items) > 1:
            return Row(text[0], text[-1], tuple(_read(item) for item in items))
    ratio = text.split(":")
    if len(ratio) > 2 and len(ratio) <= MOST_PARTS:
        return Row(":", ":", tuple(_value(part.strip()) for part in ratio))
    return None


def _elements(inner: str) -> list[str]:
    """Elements between brackets. There every comma separates, unless others have a space after them: then `1,234` is one number."""
    if not re.search(r",\s", inner):
        inner = re.sub(r"(?<!\{),(?!\})", ", ", inner)
    return _split(inner, (",", ";"))


def _plus_minus(text: str) -> Form | None:
    if r"\pm" not in text and r"\mp" not in text:
        return None
    return Listing(
        tuple(
            _value(re.sub(r"\\pm(?![A-Za-z])", plus, re.sub(r"\\mp(?![A-Za-z])", minus, text))) for plus, minus in (("+", "-"), ("-", "+"))
        )
    )


def _value(text: str) -> Value:
    text, unit = _currency(text)
    text, percent = _percent(text)
    if not unit and not percent:
        text, unit = _unit(text)
        text, percent = (text, True) if unit == "%" else _percent(text)
        unit = "" if unit == "%" else unit
    text = without_thousands(_unwrapped(text))
    base = _BASE.match(text.replace(" ", ""))
    if base and not unit:
        text, unit = base[1], f"base {base[2]}"
    if not text:
        raise Unreadable("unit without a value")
    return Value(text, unit, percent)


def _currency(text: str) -> tuple[str, str]:
    match = _CURRENCY.match(text)
    return (match[1] + text[match.end() :], match[2] or "$") if match else (text, "")


def _percent(text: str) -> tuple[str, bool]:
    match = re.search(r"\s*(?:%|\\text\{\s*%\s*\}|(?<![A-Za-z])per\s?cent)\s*$", text)
    return (text[: match.start()], True) if match else (text, False)


def _unit(text: str) -> tuple[str, str]:
    """An expression and the unit after it, in one spelling: `36\\text{ cm}^2`, `36 cm^2`, `90^\\circ`, `5 apples`."""
    match = _UNIT_TEXT.search(text)
    if match and match.start() > 0 and not (match[3] and re.search(_APPLICATION, text)):
        return text[: match.start()].strip(), "degree" if match[3] else _one_unit(match[1], match[2])
    match = _UNIT_WORD.search(text)
    value = text[: match.start()].strip() if match else ""
    if match is None or not value or re.search(r"(?<![A-Za-z\\])[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", value)):
        return text, ""  # beside a variable, letters are variables
    unit = _one_unit(match[2], match[3])
    known = re.split(r"[/^]", unit)[0] in _KNOWN or match[2].casefold() in _KNOWN
    return (value, unit) if known or (match["gap"] and len(match[2]) >= 3) else (text, "")


def _one_unit(words: str, power: str | None) -> str:
    squared = re.fullmatch(r"\s*(square|sq|cubic)\.?\s+(.*)|(.*?)\^([23])", words)
    if squared and squared[1]:
        words, power = squared[2], "3" if squared[1] == "cubic" else "2"
    elif squared:
        words, power = squared[3], squared[4]
    name = words.strip(" .")
    folded = name if len(name) == 1 else name.casefold()
    single = folded.removesuffix("s") if len(folded) > 2 and not folded.endswith("ss") else folded
    unit = _UNITS.get(single, _UNITS.get(folded, single))
    return f"{unit}^{power}" if power and unit else unit


def _is_range(form: Row | Ranges) -> bool:
    return isinstance(form, Ranges) or (len(form.items) == 2 and form.left in "([" and form.right in ")]")


def _interval(form: Form) -> Row:
    if isinstance(form, Row) and _is_range(form):
        return form
    raise Unreadable("union of something else than intervals")


def _interval_parts(form: Form) -> tuple[Row, ...]:
    return form.items if isinstance(form, Ranges) else (_interval(form),)


def as_ranges(form: Form) -> Ranges | None:
    """An interval or union as Ranges; None for anything else."""
    if isinstance(form, Ranges):
        return form
    return Ranges((form,)) if isinstance(form, Row) and _is_range(form) else None
