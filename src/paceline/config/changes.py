"""What a configuration says differently from a resolved file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.config.faults import show
from paceline.config.load import dump
from paceline.config.schema import Config


def changes(before: Path, config: Config) -> list[str]:
    """`key: old -> new` of every key whose value differs from the resolved file `before`; nothing where that cannot be read."""
    try:
        old = dict(_flat("", tomllib.loads(before.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        return []
    new = dict(_flat("", tomllib.loads(dump(config))))
    return [f"{key}: {show(old.get(key))} -> {show(new.get(key))}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; lists of tables count their items from 0."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = enumerate(value)
    else:
        yield prefix, value
        return
    for key, item in items:
        yield from _flat(f"{prefix}.{key}".lstrip("."), item)
