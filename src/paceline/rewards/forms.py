"""Shapes of an answer: value with unit, list or set, tuple or interval, union, matrix, equation, inequality, words.

Expressions stay text here; `rewards.reading` makes shapes, `rewards.equivalence` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """One expression. `text` is cleaned LaTeX; `unit`: one spelling of what stood beside it, "" = none; `percent`: a percent sign."""

    text: str
    unit: str = ""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or a choice letter: compared as text, without case."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """Elements in order, between `left` and `right`: a tuple, a vector, the interval that is written alike; `:` = a ratio of three or
    more, `row` and `matrix` = a matrix and its rows."""

    left: str
    right: str
    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Elements without order: a set, a bare list, the two values of a plus-minus sign."""

    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Intervals joined by unions, each a Row of two. `name`: the variable of the inequality that it was written as, or ""."""

    items: tuple[Row, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """`left sign right`, the sign one of `=` `<` `>` `\\le` `\\ge` `\\ne`. `name`: the left side where that is just a name, or "".
    `right_text`: the right side as an expression, "" where it is more than one."""

    sign: str
    left: str
    right: Form
    right_text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice with what it stands for, `(C) 12`: either of them alone is the same answer. `label` without case."""

    label: str
    form: Form


Form = Value | Words | Row | Listing | Ranges | Relation | Choice


def as_ranges(form: Form) -> Ranges | None:
    """An interval or a union of them; None for anything else."""
    if isinstance(form, Ranges):
        return form
    interval = isinstance(form, Row) and len(form.items) == 2 and form.left in "([" and form.right in ")]"
    return Ranges((form,)) if isinstance(form, Row) and interval else None
