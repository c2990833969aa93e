"""From a TOML file and dotted overrides to a checked `Config`, and back to TOML.

The order is: defaults < file < overrides, later overrides win. Nothing else is read: no environment variable can change a run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from paceline.config.checks import check
from paceline.config.faults import Fault, refuse, show
from paceline.config.keys import field_at, is_leaf, is_text, nearest
from paceline.config.schema import Config
from paceline.types.errors import ConfigError

COMMAND_LINE = "command line"


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read `path` (None = defaults only), apply overrides in order, validate strictly, refuse what has no effect or meaning.

    An override is `key=value` (the value in TOML; a text needs no quotes) or `~key`, which takes the key out so that its default holds.
    Raises one ConfigError that lists every fault.
    """
    data = {} if path is None else _read(path)
    subject = str(path) if path else "the configuration"
    touched, faults = _override(data, overrides)
    config = _validate(data)
    if isinstance(config, Config):
        # Combinations are judged only where every key is valid by itself.
        found = [] if faults else check(config)
        if not faults and not found:
            return config
    else:
        found = config
    raise refuse([*faults, *(_located(fault, touched, path) for fault in found)], subject)


def dump(config: Config) -> str:
    """The resolved configuration as TOML: every key with its value, keys without one (None) left out. `load` gives it back."""
    return "# Resolved configuration of a paceline run: every key that holds a value.\n" + tomli_w.dumps(
        config.model_dump(mode="python", exclude_none=True)
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error


def _override(data: dict[str, Any], overrides: Sequence[str]) -> tuple[set[str], list[Fault]]:
    """Put all overrides into the raw tree. Returns the keys they name, and the faults of those that cannot be applied."""
    applied = [_apply(data, text) for text in overrides]
    return {key for key, _ in applied}, [Fault(((key, ""),), rule, COMMAND_LINE) for key, rule in applied if rule]


def _apply(data: dict[str, Any], text: str) -> tuple[str, str]:
    """Put one override into the raw tree. Returns its key and, if it cannot be applied, the rule it breaks."""
    if text.startswith("~"):
        key = text[1:]
        return key, "" if _remove(data, key.split(".")) or field_at(key) else _unknown(key)
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not key:
        return text, "an override is key=value, or ~key for the default"
    if not raw:
        return key, f"no value given; write {key}='\"\"' for an empty text, ~{key} for the default"
    return key, _assign(data, key.split("."), _value(key, raw))


def _value(key: str, raw: str) -> Any:
    """The value of an override: TOML where it is TOML, the text itself otherwise and for keys that hold a text."""
    quoted = raw[0] in "\"'"
    if is_text(key) and not quoted:
        return raw
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _assign(data: dict[str, Any], parts: Sequence[str], value: Any) -> str:
    """Set a nested value, making tables and list items on the way; the rule it breaks if there is no such place."""
    here: Any = data
    for depth, part in enumerate(parts):
        slot = _slot(here, part)
        if slot is None:
            held = f"a list of {len(here)} (positions start at 0, the next free one appends)" if isinstance(here, list) else show(here)
            return f"there is no {part} in {held}"
        if depth == len(parts) - 1:
            here[slot] = value
        elif here[slot] is None:
            here[slot] = [] if parts[depth + 1].isdecimal() else {}
        here = here[slot]
    return ""


def _slot(here: Any, part: str) -> str | int | None:
    """Where a part of a key lies in a table or a list, made with None if it is new; None if it cannot be there."""
    if isinstance(here, dict):
        here.setdefault(part, None)
        return part
    if not isinstance(here, list) or not part.isdecimal() or int(part) > len(here):
        return None
    if int(part) == len(here):
        here.append(None)
    return int(part)


def _remove(data: dict[str, Any], parts: Sequence[str]) -> bool:
    """Take a key out of the raw tree; False if it is not there."""
    here: Any = data
    for part in parts[:-1]:
        here = here.get(part) if isinstance(here, dict) else here[int(part)] if _is_position(here, part) else None
    if isinstance(here, dict) and parts[-1] in here:
        del here[parts[-1]]
        return True
    if _is_position(here, parts[-1]):
        del here[int(parts[-1])]
        return True
    return False


def _is_position(here: Any, part: str) -> bool:
    return isinstance(here, list) and part.isdecimal() and int(part) < len(here)


def _validate(data: dict[str, Any]) -> Config | list[Fault]:
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        return list(_faults(error))


def _faults(error: ValidationError) -> Iterable[Fault]:
    """One fault per key; the alternatives of a union are one rule joined by `or`."""
    rules: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for one in error.errors(include_url=False, include_context=False):
        if one["type"] == "extra_forbidden":
            found = {key: (value, _unknown(key)) for key, value in _leaves(".".join(map(str, one["loc"])), one["input"])}
        else:
            found = {_key(one["loc"]): (one["input"], one["msg"].removeprefix("Input ").removeprefix("Value error, "))}
        for key, (value, rule) in found.items():
            values.setdefault(key, value)
            if rule not in rules.setdefault(key, []):
                rules[key].append(rule)
    return [Fault(((key, show(values[key])),), " or ".join(broken)) for key, broken in rules.items()]


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The dotted keys below an unknown one, with their values: the sections of other trainers have names of their own."""
    if not isinstance(value, dict) or not value:
        yield key, value
    else:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)


def _key(loc: Sequence[str | int]) -> str:
    """The dotted key of pydantic's location: names of union branches, which follow a leaf, are left out."""
    key = ""
    for part in loc:
        if key and isinstance(part, str) and is_leaf(key):
            break
        key = f"{key}.{part}" if key else str(part)
    return key


def _unknown(key: str) -> str:
    near = nearest(key)
    return f"unknown key; nearest: {', '.join(near)}" if near else "unknown key"


def _located(fault: Fault, touched: Iterable[str], path: Path | None) -> Fault:
    """Say whether the value came from the command line or from the file."""
    overridden = any(f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.") for key, _ in fault.items for other in touched)
    origin = COMMAND_LINE if overridden else str(path or "")
    return Fault(fault.items, fault.rule, origin, fault.name)
