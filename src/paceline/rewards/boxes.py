"""Where the answer of a mathematical completion stands: its last box, what follows a marker, or the last line.

Linear in the text; nothing is read as mathematics here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.rewards.spelling import LONGEST

_BOX = re.compile(r"\\f?boxed(?![A-Za-z])[ \t]*|\\fbox(?![A-Za-z])[ \t]*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"(?>(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])|[^\s{}$\\,;.]+)(?:\.[0-9]+)?|\\[A-Za-z]+)(?!\{|\\[A-Za-z]|,?[0-9])")
_PHRASE = re.compile(r"\banswer[*_`]{0,3}[ \t]*(?:is\b[ \t]*:?|:|=)|####|答案[*_`]{0,3}[ \t]*(?:[是为][ \t]*[:：]?|[:：])", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?][*_`]*\s+(?=[A-Z])|。")
_NOTHING = re.compile(r"(?:[\s*`$]++|\\[\[\]()])*+")
_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s,;.!:*_`]|\band\b|\bor\b)*", re.IGNORECASE)
_AROUND = " \t\n*`"
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found: `text`, or None with the reason."""

    text: str | None
    reason: str = ""


def find_answer(text: str, marker_line: str | None = None) -> Answer:
    """The answer in a completion, as it is written.

    The last `\\boxed` or `\\fbox` counts, and nothing else once there is one: left open or empty, there is no answer. Without a box it is
    the rest of the sentence after the last "answer is", "answer:" (also in Chinese) or `####`, else the last line with text; there,
    formulas between math delimiters count if the line has any (all of them when only commas, "and" and "or" stand between them, else the
    last one). Markdown and a sentence's punctuation around it are left out. What stands in a thought is no answer, see `spoken`.
    marker_line: the line after the user's marker, searched in place of `text`.
    """
    scope = spoken(text) if marker_line is None else marker_line
    box = last_box(scope)
    if box is not None:
        return box
    line = scope.strip(_AROUND) if marker_line is not None else _line(scope)
    plain = _bare(_formulas(line), sentence=line != scope.strip() or marker_line is not None)
    return Answer(plain) if plain else Answer(None, "no answer")


def spoken(text: str) -> str:
    """What a completion says after its thought: the text behind the last `</think>`, up to a `<think>` that is never closed.

    A thought that the prompt opened and that is not closed cannot be told from an answer, and counts as one.
    """
    return text.rpartition(_THOUGHT_ENDS)[2].partition(_THOUGHT)[0]


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
            content = text[start + 1 : brace.start()].strip(_AROUND)
            return Answer(content) if content else Answer(None, "empty box")
    return Answer(None, "unterminated box")


def _line(text: str) -> str:
    ends = [match.end() for match in _PHRASE.finditer(text)]
    if ends:
        line = next((line for line in text[ends[-1] :].splitlines() if not _NOTHING.fullmatch(line)), "")
        return _SENTENCE.split(line, maxsplit=1)[0] if len(line) <= LONGEST else line
    return next((line for line in reversed(text.splitlines()) if not _NOTHING.fullmatch(line)), "")


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
    """Without markdown and the end of a sentence. An exclamation mark ends a sentence (`... is 73!` is 73), but not a bare formula; an
    ellipsis ends neither: it stands for digits."""
    ends = "" if text.rstrip(_AROUND).endswith("..") else ".,;:。，!" if sentence else ".,;:。，"
    ends += _AROUND
    plain = text.lstrip(_AROUND).rstrip(ends)
    if plain.startswith("__") and plain.endswith("__"):
        plain = plain.strip("_").lstrip(_AROUND).rstrip(ends)
    return plain


def after_marker(text: str, marker: str | None) -> str | None:
    """The first line with text after the last `marker` that does not start inside a word; all of it without one; None if absent. A
    thought is left out first, see `spoken`."""
    text = spoken(text)
    if marker is None:
        return text
    inside = r"(?<![^\W_])" if marker[0].isalnum() else ""
    ends = [match.end() for match in re.finditer(inside + re.escape(marker), text)]
    if not ends:
        return None
    return next((line for line in text[ends[-1] :].splitlines() if line.strip()), "")
