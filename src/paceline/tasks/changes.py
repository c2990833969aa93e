"""Which rows of a task differ from those that a run was begun with, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

NAMED = 8
"""Row numbers that are told of each kind, at most."""


def changed_rows(before: Mapping[int, str], now: Mapping[int, str]) -> str:
    """What happened between two `RowTask.digests`. Rows that hold the same count as the same one, wherever they stand."""
    gone, new = _beyond(before, now), _beyond(now, before)
    changed = gone & new
    moved = {row for row in before.keys() & now.keys() if before[row] != now[row]} - gone - new
    kinds = {"changed": changed, "gone": gone - changed, "new": new - changed, "now elsewhere": moved}
    return "; ".join(f"{_rows(rows)} {kind}" for kind, rows in kinds.items() if rows) or "no row differs"


def _beyond(some: Mapping[int, str], others: Mapping[int, str]) -> set[int]:
    """Rows of `some` that `others` do not have, each of equal ones counted."""
    left, found = Counter(others.values()), set()
    for row, digest in sorted(some.items()):
        if left[digest]:
            left[digest] -= 1
        else:
            found.add(row)
    return found


def _rows(rows: Iterable[int]) -> str:
    ordered = sorted(rows)
    more = f" and {len(ordered) - NAMED:,} more" if len(ordered) > NAMED else ""
    return f"row{'s' if len(ordered) > 1 else ''} {', '.join(map(str, ordered[:NAMED]))}{more}"
