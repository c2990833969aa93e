"""From the text of an answer to its shape. Computes nothing and needs no algebra; time is linear but for nesting, which is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from paceline.rewards.forms import Choice, Form, Listing, Ranges, Relation, Row, Value, Words, as_ranges
from paceline.rewards.numbers import LONGEST, exact_number
from paceline.rewards.spelling import GREEK, Unreadable, clean, closing, prose, without_thousands
from paceline.rewards.units import without_unit

MOST_PARTS = 60
"""Elements of a list, set, tuple or matrix, at most."""

_PLAIN = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_NAME = re.compile(
    rf"(?:[A-Za-z]|\\(?:{'|'.join(sorted(GREEK, key=len, reverse=True))}))\s*'*\s*(?:_\s*(?:\{{[^{{}}]*\}}|[A-Za-z0-9]))?"
    r"(?:\^\{-1\})?(?:\s*\(\s*[A-Za-z]\s*(?:,\s*[A-Za-z]\s*)*\))?|\([A-Za-z](?:\s*,\s*[A-Za-z])+\)|\\text\{[^{}]*\}"
    r"|[fghFGHPQ]\s*\(\s*-?[0-9]+\s*\)|[A-Z]{2,4}|m?\s*\\angle\s*\{?\s*[A-Z]{1,3}\s*\}?|\\overline\s*\{\s*[A-Z]{2}\s*\}|[A-Za-z]{4,}(?:\s+[A-Za-z]{2,})*"
)
"""What an equation may give a value to: a letter, a function, a point, a segment, an angle, words."""
_SEPARATOR = re.compile(r"[,;]|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_COMMA = re.compile("[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_RELATION = re.compile(r"\\(?:le|ge|ne|in)(?![A-Za-z])|[<>=]")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_RATIO = re.compile(":")
_COMMAND = re.compile(r"\\begin\{(\w+)\}.*?\\end\{\1\}|\\langle.*?\\rangle|\\[A-Za-z]+|\\.", re.DOTALL)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|['-])*(?:[\s,]+[^\W\d_](?:[^\W\d_]|['-])*)*")
_SHORT_WORDS = frozenset({"no", "or", "on", "at", "up"})
_SENTENCE = re.compile(r"[\w\s.,'-]+")
_CHOICE = re.compile(
    r"(?:\\text\{\s*\(?([A-J])[.)]\s*\}\s*|\(?\s*(?:\\text\{)?([A-J])(?:\}?\s*\)|\.)\s+)"
    r"(?![-+*/^=<>:!|,;]|(?:and|or)(?![A-Za-z])|\\text\{\s*(?:and|or)|\\(?:cdot|cup|cap|le|ge|ne|in)(?![A-Za-z]))(\S.*)",
    re.DOTALL,
)
_LABEL = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-5][0-9])")
_MATRIX = re.compile(r"[(\[]?\s*\\begin\{([pbB]?matrix)\}(.*)\\end\{\1\}\s*[)\]]?", re.DOTALL)
_HOLE = re.compile(r"\\mathbb\s*\{?R\}?\s*(?:\\setminus|\\backslash|-)\s*\\\{([^{},;]*(?:\{[^{}]*\}[^{},;]*)*)\\\}")
_BUILDER = re.compile(r"([A-Za-z])(?:\s*\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid(?![A-Za-z])|\||:)(.*)", re.DOTALL)
_INFINITE = Row("(", ")", (Value(r"-\infty"), Value(r"\infty")))
_KNOWN: dict[str, Form] = {
    r"\emptyset": Listing(()),
    r"\mathbb{R}": Ranges((_INFINITE,)),
    r"\mathbb R": Ranges((_INFINITE,)),
    **{rf"\mathbb{{{letter}}}": Words(rf"\mathbb{letter}") for letter in "NZQC"},
}


def read(text: str) -> Form:
    """The shape of an answer. Raises Unreadable when it has none."""
    number = read_number(text)
    if number is not None:
        return number
    cleaned = clean(text).strip()
    if cleaned.endswith(".."):
        raise Unreadable("an ellipsis")
    cleaned = cleaned.rstrip(".;,:").strip()
    exactly = re.split(r"\\approx", cleaned)[0].strip()
    if not exactly:
        raise Unreadable("empty")
    return _read(_unwrapped(exactly).rstrip(".;,:").strip())


def read_number(text: str) -> Value | None:
    """A text that is one number with nothing beside it; None for anything else. Needs no algebra, whatever its length."""
    plain = text.strip()
    if len(plain) > LONGEST or not (_PLAIN.fullmatch(plain) or _GROUPED.fullmatch(plain)):
        return None
    return Value(plain.replace(",", "").rstrip("."))


def plain_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number or a fraction of two integers, else None."""
    top, slash, bottom = (part.strip() for part in text.partition("/"))
    if not _PLAIN.fullmatch(top):
        return None
    above = exact_number(top)
    if not slash:
        return above
    below = exact_number(bottom) if re.fullmatch("[0-9]+", bottom) else None
    return above / below if above is not None and below else None


def clock(text: str) -> tuple[int, int] | None:
    """Hours and minutes of a text that can be a time of day, `3:05`; such a text can be a ratio, too."""
    match = _CLOCK.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def _unwrapped(text: str) -> str:
    """Without a `\\text{...}` or braces around everything."""
    while True:
        start = 5 if text.startswith(r"\text{") else 0 if text.startswith("{") else None
        if start is None or closing(text, start) != len(text) - 1:
            return text
        text = text[start + 1 : -1].strip()


def _read(text: str) -> Form:
    written = _words(text) or _choice(text)
    if written is not None:
        return written
    parts, marks = _cut(text, _SEPARATOR)
    if marks:
        return _listing(_spliced(part for part in parts if part), "".join(marks))  # `1, 2, and 3` has an empty part
    sides, signs = _cut(text, _RELATION)
    if signs:
        return _relation(sides, signs)
    unions, marks = _cut(text, _UNION)
    if marks:
        return _union([_read(part) for part in unions])
    return _bracketed(text) or _plus_minus(text) or _told(text) or _value(text)


def _choice(text: str) -> Choice | None:
    """A choice and what it stands for; refused where that could be another choice: `(A) (B)` must not be each of them."""
    choice = _CHOICE.fullmatch(text)
    if choice is None:
        return None
    form = _read(_unwrapped(choice[3]))
    if _LABEL.search(choice[3]) or _is_label(form):
        raise Unreadable("several choices")
    return Choice((choice[1] or choice[2]).casefold(), form)


def _is_label(form: Form) -> bool:
    if isinstance(form, Listing):
        return any(map(_is_label, form.items))
    if isinstance(form, Relation):
        return _is_label(form.right)
    return isinstance(form, Choice) or (isinstance(form, (Value, Words)) and len(form.text) == 1 and form.text.isalpha())


def _words(text: str) -> Words | None:
    """Letters only and no product of variables: three letters or more in a word, letters of another script, a choice such as `(B)`, or
    text by its markup."""
    choice = re.fullmatch(r"\(?\s*(?:\\text\{)?\s*([A-Z])\s*\}?\s*\)", text)
    if choice:
        return Words(choice[1].casefold())
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip(" .")
    if not _WORDS.fullmatch(bare):
        return None
    longest = max((len(word) for word in re.split(r"[\s,]+", bare) if word.casefold() not in ("and", "or")), default=0)
    if longest >= 3 or bare.casefold() in _SHORT_WORDS or not bare.isascii() or (r"\text" in text and bare.isalpha()):
        return _said(bare.replace(",", " "))
    return None


def _told(text: str) -> Words | None:
    """Words with numbers among them, such as `5 feet 11 inches`: text, since no reading of them as one expression is right."""
    return _said(text) if _SENTENCE.fullmatch(text) and prose(without_unit(text)[0]) else None


def _said(text: str) -> Words:
    return Words(" ".join(text.casefold().split()))


def _cut(text: str, mark: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The parts between marks outside all brackets, and the marks. A comma that groups digits is none."""
    parts, marks, start, i = [], [], 0, 0
    while i < len(text):
        match = mark.match(text, i)
        if match is None or (match.group() == "," and _groups_digits(text, i)):
            i = _after(text, i)
            continue
        parts.append(text[start:i].strip())
        marks.append(match.group())
        start = i = match.end()
    parts.append(text[start:].strip())
    if len(parts) > MOST_PARTS:
        raise Unreadable("too many parts")
    return parts, marks


def _after(text: str, i: int) -> int:
    """Where the next piece begins: behind a bracket with its content, a command, or a character."""
    if text[i] in "([{":
        return closing(text, i) + 1
    if text.startswith(r"\{", i):
        return _set_end(text, i)
    command = _COMMAND.match(text, i)
    return command.end() if command else i + 1


def _set_end(text: str, i: int) -> int:
    depth = 0
    for match in re.compile(r"\\[{}]").finditer(text, i):
        depth += 1 if match.group() == r"\{" else -1
        if depth == 0:
            return match.end()
    raise Unreadable("unbalanced brackets")


def _groups_digits(text: str, i: int) -> bool:
    """Whether the comma at `i` is a thousands separator: one to three digits or whole groups before it, whole groups after it."""
    before = re.search(r"(?<![\d.])([1-9]\d{0,2}(?:,\d{3})*)$", text[max(0, i - 40) : i])
    return before is not None and re.match(r",\d{3}(?:,\d{3})*(?!\d|,\d)", text[i:]) is not None


def _spliced(parts: Iterable[str]) -> list[Form]:
    """The shapes of several parts; the two values of a plus-minus sign count as two."""
    forms: list[Form] = []
    for part in parts:
        form = _read(part)
        forms.extend(form.items if isinstance(form, Listing) and _PLUS_MINUS.search(part) else (form,))
    return forms


def _listing(items: Sequence[Form], marks: str) -> Form:
    if not items:
        raise Unreadable("empty list")
    either, both = "or" in marks, "and" in marks
    if all(isinstance(item, Ranges) for item in items) and (either or both):
        if either and both:
            raise Unreadable("inequalities joined by and, and by or")
        return _union(items) if either else _overlap(_union(items))
    return _named(items) or (Listing(tuple(items)) if len(items) > 1 else items[0])


def _overlap(halves: Ranges) -> Ranges:
    """`x > 1 and x < 3`: an interval from two half-lines that face each other."""
    minus, plus = _INFINITE.items
    if len(halves.items) == 2 and halves.name:
        for low, high in (halves.items, halves.items[::-1]):
            if low.items[1] == plus and high.items[0] == minus:
                return Ranges((Row(low.left, high.right, (low.items[0], high.items[1])),), halves.name)
    raise Unreadable("inequalities that are no interval")


def _named(items: Sequence[Form]) -> Relation | None:
    """The list as values of one name: `x = 2, x = 3` and `x = 2, 3`."""
    first = items[0]
    if not isinstance(first, Relation) or not first.name or first.sign != "=":
        return None
    values = [value for item in items if (value := _value_of(item, first.name)) is not None]
    return Relation("=", first.left, Listing(tuple(values)), "", first.name) if len(values) == len(items) else None


def _union(items: Sequence[Form]) -> Ranges:
    ranges = [one for item in items if (one := as_ranges(item)) is not None]
    if len(ranges) < len(items):
        raise Unreadable("union of something else than intervals")
    names = {one.name for one in ranges}
    return Ranges(tuple(part for one in ranges for part in one.items), names.pop() if len(names) == 1 else "")


def _value_of(item: Form, name: str) -> Form | None:
    """The value that one part of `x = 2, x = 3` or `x = 2, 3` gives to `name`; None for another equation."""
    if isinstance(item, Relation):
        return item.right if item.sign == "=" and item.name == name else None
    return item


def _relation(sides: Sequence[str], signs: Sequence[str]) -> Form:
    """An equation or inequality, a chain of them, or `x \\in set`."""
    if not all(sides):
        raise Unreadable("relation without a side")
    if list(signs) == [r"\in"]:
        return _member(sides[0], _read(sides[1]))
    if set(signs) == {"="}:
        return _equation(sides)
    if len(signs) == 2 and (set(signs) <= {"<", r"\le"} or set(signs) <= {">", r"\ge"}):
        return _between(sides, signs)
    if len(signs) > 1 or signs[0] == r"\in":
        raise Unreadable("chain of relations")
    return _inequality(sides[0], signs[0], sides[1])


def _member(left: str, right: Form) -> Form:
    ranges = as_ranges(right)
    if ranges is not None:
        return Ranges(ranges.items, _name(left))
    if isinstance(right, Listing):
        return Relation("=", left, right, "", _name(left))
    raise Unreadable("membership")


def _equation(sides: Sequence[str]) -> Form:
    first, last = sides[0], sides[-1]
    if not _name(first) and _name(last) and len(sides) == 2:
        first, last = last, first
    name = _name(first)
    if not name and not re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", "".join(sides[:-1]))):
        return _read(last)  # 1 + 1 = 2: a calculation, whose value is its end
    if len(sides) > 2 and (chain := _chain(sides)):
        return chain
    return Relation("=", first, _read(last) if name else Value(last), last, name)


def _chain(sides: Sequence[str]) -> Form | None:
    """Of names, all of its equations (`x = y = 2` says more than `x = 2`); None for a calculation behind a name."""
    if all(map(_name, sides[:-1])):
        return Listing(tuple(_equation((side, sides[-1])) for side in sides[:-1]))
    if not _name(sides[0]) or _name(sides[-1]):
        raise Unreadable("a chain of equations")
    return None


def _between(sides: Sequence[str], signs: Sequence[str]) -> Form:
    if signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    low, middle, high = sides
    if not _name(middle):
        raise Unreadable("chain of relations")
    left, right = ("(" if signs[0] == "<" else "["), (")" if signs[1] == "<" else "]")
    return Ranges((Row(left, right, (_value(low), _value(high))),), _name(middle))


def punctured(relation: Relation) -> Ranges:
    """`x \\ne 2` as what it leaves of the line."""
    return _line_without(relation.right, relation.name)


def _line_without(point: Form, name: str) -> Ranges:
    low, high = _INFINITE.items
    return Ranges((Row("(", ")", (low, point)), Row("(", ")", (point, high))), name)


def _inequality(left: str, sign: str, right: str) -> Form:
    if not _name(left) and _name(right):
        left, sign, right = right, _FLIPPED[sign], left
    name = _name(left)
    if not name or sign == r"\ne":
        return Relation(sign, left, Value(right), right, name)
    low, high = _INFINITE.items
    if sign in (">", r"\ge"):
        return Ranges((Row("(" if sign == ">" else "[", ")", (_value(right), high)),), name)
    return Ranges((Row("(", ")" if sign == "<" else "]", (low, _value(right))),), name)


def _name(text: str) -> str:
    """The text without spaces and braces where it is just a name: a letter with its subscript, `f(x)`, `(x, y)`, words."""
    match = _NAME.fullmatch(text.strip())
    return re.sub(r"\\text|[\s{}]|^m(?=\s*\\angle)", "", match.group()) if match else ""


def _bracketed(text: str) -> Form | None:
    """What stands between one pair of brackets: a set, a tuple or interval, a matrix; a ratio of several; None otherwise."""
    if text in _KNOWN:
        return _KNOWN[text]
    hole = _HOLE.fullmatch(text)
    if hole:
        return _line_without(_value(hole[1].strip()), "")
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix[2])
    if text.startswith(r"\langle") and text.endswith(r"\rangle"):
        return _set_or_tuple(f"({text[7:-7].strip()})")
    if text.startswith((r"\{", "(", "[")) and _after(text, 0) == len(text):
        return _set_or_tuple(text)
    ratio, marks = _cut(text, _RATIO)
    return Row(":", ":", tuple(_value(part) for part in ratio)) if len(marks) > 1 else None


def _set_or_tuple(text: str) -> Form | None:
    if text.startswith("\\"):
        inner = text[2:-2].strip()
        builder = _BUILDER.fullmatch(inner)
        return _condition(builder[1], _read(builder[2].strip())) if builder else Listing(_elements(inner) if inner else ())
    if _PLUS_MINUS.search(text):  # (3, +-2) are two points, not one of three numbers
        return Listing(tuple(_read(signed) for signed in _signed(text)))
    items = _elements(text[1:-1])
    return Row(text[0], text[-1], items) if len(items) > 1 else None


def _condition(name: str, form: Form) -> Ranges:
    """`\\{x \\mid x > 2\\}`: the interval of its condition."""
    if isinstance(form, Ranges) and form.name == name:
        return form
    raise Unreadable("set with a condition")


def _matrix(inner: str) -> Row:
    lines = re.split(r"\\\\", inner.strip().removesuffix("\\\\"))
    rows = tuple(Row("row", "row", tuple(_value(cell.strip()) for cell in line.split("&"))) for line in lines)
    if len({len(row.items) for row in rows}) > 1 or sum(len(row.items) for row in rows) > MOST_PARTS:
        raise Unreadable("matrix")
    return Row("matrix", "matrix", rows)


def _elements(inner: str) -> tuple[Form, ...]:
    """Elements between brackets. There every comma separates, unless others have a space after them: then `1,234` is one number."""
    if not re.search(r",\s", inner):
        inner = re.sub(r"(?<!\{),(?!\})", ", ", inner)
    return tuple(_spliced(_cut(inner, _COMMA)[0]))


def _plus_minus(text: str) -> Form | None:
    if not _PLUS_MINUS.search(text):
        return None
    return Listing(tuple(_value(signed) for signed in _signed(text)))


def _signed(text: str) -> tuple[str, str]:
    """A text with its plus-minus signs as their upper and as their lower signs."""
    upper, lower = ((r"\pm", r"\mp"), (r"\mp", r"\pm"))
    return _with_signs(text, upper), _with_signs(text, lower)


def _with_signs(text: str, plus_and_minus: tuple[str, str]) -> str:
    plus, minus = (re.escape(name) + "(?![A-Za-z])" for name in plus_and_minus)
    return re.sub(minus, "-", re.sub(plus, "+", text))


def _value(text: str) -> Value:
    bare, unit, percent = without_unit(text)
    expression = without_thousands(_unwrapped(bare.strip()))
    if not expression:
        raise Unreadable("no value")
    return Value(expression, unit, percent)
