"""Where the answer of a mathematical completion stands: its last box, what follows a marker, or the last line.

Linear in the text; nothing is read as mathematics here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.rewards.spelling import LONGEST

_BOX = re.compile(r"\\f?boxed(?![A-Za-z])[ \t]*|\\fbox(?![A-Za-z])[ \t]*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\s{}$\\,;.]+(?:\.[0-9]+)?|\\[A-Za-z]+")
_PHRASE = re.compile(r"\banswer[*_`]{0,3}[ \t]*(?:is\b[ \t]*:?|:|=)|####", re.IGNORECASE)
_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s,;.!:*_`]|\band\b|\bor\b)*", re.IGNORECASE)
_AROUND = " \t\n*`"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found: `text`, or None with the reason."""

    text: str | None
    reason: str = ""


def find_answer(text: str, marker_line: str | None = None) -> Answer:
    """The answer in a completion, as it is written.

    The last `\\boxed` or `\\fbox` counts, and nothing else once there is one: left open or empty, there is no answer. Without a box it is
    the rest of the line after the last "answer is", "answer:" or `####`, else the last line with text; there, formulas between math
    delimiters count if the line has any (all of them when only commas, "and" and "or" stand between them, else the last one). Markdown
    and a sentence's punctuation around it are left out. marker_line: the line after the user's marker, searched in place of `text`.
    """
    scope = text if marker_line is None else marker_line
    box = last_box(scope)
    if box is not None:
        return box
    line = scope.strip(_AROUND) if marker_line is not None else _line(scope)
    plain = _bare(_formulas(line), sentence=line != text.strip())
    return Answer(plain) if plain else Answer(None, "no answer")


def last_box(text: str) -> Answer | None:
    """The content of the last box with its braces balanced (`\\{` does not count), or why there is none; None without any box."""
    last = None
    for last in _BOX.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    if last is None:
        return None
    start = last.end()
    if text[start : start + 1] != "{":
        bare = _BARE.match(text, start)
        return Answer(bare.group()) if bare else Answer(None, "empty box")
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            content = text[start + 1 : brace.start()].strip()
            return Answer(content) if content else Answer(None, "empty box")
    return Answer(None, "unterminated box")


def _line(text: str) -> str:
    ends = [match.end() for match in _PHRASE.finditer(text)]
    lines = text[ends[-1] :].splitlines() if ends else reversed(text.splitlines())
    return next((line for line in lines if line.strip(_AROUND)), "")


def _formulas(line: str) -> str:
    found = list(_MATHS.finditer(line)) if len(line) <= LONGEST else []  # what is longer is only read if it is one number
    if not found:
        return line
    if _BETWEEN.fullmatch(_MATHS.sub(" ", line)):
        return _MATHS.sub(_inner, line)
    return _inner(found[-1])


def _inner(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _bare(text: str, sentence: bool) -> str:
    """Without markdown and the end of a sentence. An exclamation mark ends a sentence (`... is 73!` is 73), but not a bare formula."""
    ends = (".,;:!" if sentence else ".,;:") + _AROUND
    plain = text.lstrip(_AROUND).rstrip(ends)
    if plain.startswith("__") and plain.endswith("__"):
        plain = plain.strip("_").lstrip(_AROUND).rstrip(ends)
    return plain


def after_marker(text: str, marker: str | None) -> str | None:
    """The first line with text after the last `marker` that does not start inside a word; the whole text without one; None if absent."""
    if marker is None:
        return text
    inside = r"(?<![^\W_])" if marker[0].isalnum() else ""
    ends = [match.end() for match in re.finditer(inside + re.escape(marker), text)]
    if not ends:
        return None
    return next((line for line in text[ends[-1] :].splitlines() if line.strip()), "")
