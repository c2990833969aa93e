"""The reference of all keys and rules, made from the models: `python -m paceline.config.reference [GUIDE.md]`.

Prints it; with a guide, writes it between the guide's two markers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from paceline.config.checks import RULES
from paceline.config.faults import show
from paceline.config.keys import section_of
from paceline.config.schema import Config
from paceline.config.section import Section

BEGIN, END = "<!-- reference: begin (made by python -m paceline.config.reference) -->", "<!-- reference: end -->"
TITLES = {"eval.task": "", "mix.N": "", "task": "[task], [[mix]] and [eval.task]", "reward.N": "[[reward]]", "": "Across sections"}
"""Headings of sections that are not simply their name in brackets; empty = left out, since it repeats another."""


def render() -> str:
    """Tables of all keys, then of all rules, as Markdown."""
    parts = ["## Keys", ""]
    for name, field in Config.model_fields.items():
        section = section_of(field.annotation)
        assert section is not None, f"{name} is no section"
        title = f"[[{name}]]" if get_origin(field.annotation) is tuple else f"[{name}]"
        keys = ["The keys of `[task]`."] if name == "mix" else [*_doc(section), "", *_keys(section)]
        parts += [f"### {title}", "", *keys, ""]
    parts += ["## Rules", "", *_rules()]
    return "\n".join(parts).rstrip() + "\n"


def insert(guide: str) -> str:
    """A guide's text with the reference between its markers. Raises ValueError when a marker is missing."""
    if guide.count(BEGIN) != 1 or guide.count(END) != 1:
        raise ValueError(f"a guide needs each marker once: {BEGIN} and {END}")
    before, _, rest = guide.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n{END}{rest.partition(END)[2]}"


def _doc(section: type[Section]) -> list[str]:
    return (section.__doc__ or "").strip().splitlines()


def _keys(section: type[Section]) -> list[str]:
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        default = show(field.get_default(call_default_factory=True))
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{name}` | {_cell(_values(field))} | `{default}` | {_cell(meaning)} |")
    return rows


def _values(field: FieldInfo) -> str:
    """Kind and limits of a value; limits follow the first of several kinds."""
    first, *others = _kinds(field.annotation)
    return " \\| ".join([" ".join([first, *filter(None, map(_limit, field.metadata))]), *others])


_WORDS: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true \\| false", type(None): "unset", dict: "table"}


def _kinds(annotation: Any) -> list[str]:
    """An annotation in words of TOML, one per alternative."""
    origin, inner = get_origin(annotation), get_args(annotation)
    word = _WORDS.get(annotation) or _WORDS.get(origin)
    if word or section_of(annotation) is annotation:
        return [word or "table"]
    if origin is Literal:
        return [f"`{value}`" for value in inner]
    return _compound(annotation, inner)


def _compound(annotation: Any, inner: Sequence[Any]) -> list[str]:
    """Lists, values with limits of their own, and alternatives."""
    if get_origin(annotation) is tuple:
        count = "" if inner[-1] is Ellipsis else f"{len(inner)}: "
        return [f"list of {count}{' or '.join(_kinds(inner[0]))}"]
    if hasattr(annotation, "__metadata__"):
        return [f"{_kinds(inner[0])[0]} {_limits(annotation.__metadata__)}".strip()]
    return [kind for part in inner for kind in _kinds(part)]


def _limits(metadata: Sequence[Any]) -> str:
    """All constraints of an Annotated item."""
    return " ".join(filter(None, (_limit(item) for part in metadata for item in getattr(part, "metadata", [part]))))


def _limit(item: Any) -> str:
    """A constraint of a field as a sign and a number."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [f"{sign} {getattr(item, name)}" for name, sign in signs.items() if getattr(item, name, None) is not None]
    return " ".join(["not empty"] if hasattr(item, "min_length") else found)


def _cell(text: str) -> str:
    """Text in a table cell: bars escaped once."""
    return text.replace("\\|", "|").replace("|", "\\|")


def _rules() -> list[str]:
    lines: list[str] = []
    for where, rules in RULES.items():
        title = TITLES.get(where, f"[{where}]")
        if not title:
            continue
        lines += [f"### {title}", "", "| rule | keys | why |", "|---|---|---|"]
        for rule in rules:
            keys = ", ".join(f"`{key}`" for key in rule.keys)
            lines.append(f"| `{rule.name}` | {keys} | {'(warning) ' if rule.level == 'warn' else ''}{_cell(rule.why)} |")
        lines.append("")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print the reference, or write it into the guide named."""
    if not arguments:
        sys.stdout.write(render())
        return
    guide = Path(arguments[0])
    guide.write_text(insert(guide.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
