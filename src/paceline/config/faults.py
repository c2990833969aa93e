"""What is wrong with a configuration, and how it is told: all faults at once, each with key, value, rule and origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule that does not hold."""

    items: tuple[tuple[str, str], ...]
    """(dotted key, value as shown); several for a rule about a combination."""
    rule: str
    """What should hold, and why."""
    origin: str = ""
    """File, `command line`, or empty."""
    name: str = ""
    """Name of the rule in the guide, for combinations."""

    def __str__(self) -> str:
        what = ", ".join(f"{key} = {value}" if value else key for key, value in self.items)
        return f"{what}{f' ({self.origin})' if self.origin else ''}: {self.rule}{f' [{self.name}]' if self.name else ''}"


def show(value: Any) -> str:
    """A value as one would write it in TOML, shortened to 80 characters; None is `unset`."""
    text = _toml(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _toml(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def refuse(faults: Sequence[Fault], subject: str) -> ConfigError:
    """The one error that lists every fault of `subject` (a file, or `the configuration`)."""
    count = f"{len(faults)} faults" if len(faults) > 1 else "1 fault"
    return ConfigError("\n".join([f"{count} in {subject}:", *(f"  {fault}" for fault in faults)]))
