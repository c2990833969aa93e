"""What a rule is. Rules look at values only, so a key that is set to its default is never at fault and a resolved file passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from paceline.config.keys import value_at
from paceline.config.section import Section

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """A combination of keys that is refused, or warned of."""

    name: str
    """Unique, stable: errors and the guide name it."""
    keys: tuple[str, ...]
    """Keys it looks at, relative to its section; an error shows their values."""
    why: str
    """What must hold and why, to be read after the values."""
    broken: Callable[[S], bool]
    level: Literal["refuse", "warn"] = "refuse"


def changed(section: Section, key: str) -> bool:
    """Whether a value differs from its default, i.e. whether the user wants something of it."""
    return bool(value_at(section, key) != value_at(type(section)(), key))


def only(keys: str, where: Callable[[S], bool], why: str, name: str = "") -> list[Rule[S]]:
    """One rule `KEY_no_effect` for each of `keys` (separated by blanks): away from its default it needs `where`."""

    def _one(key: str) -> Rule[S]:
        return Rule(
            name or f"{key.replace('.', '_')}_no_effect", (key,), f"has no effect: {why}", lambda s: changed(s, key) and not where(s)
        )

    return [_one(key) for key in keys.split()]
