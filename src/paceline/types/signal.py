"""Whether a group can teach anything: one rule for the group filter (torch-free) and for the advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDING = 1e-12
"""Values closer than this, absolutely or relative to the larger, are equal: 0.1 + 0.2 and 0.3 differ by the rounding of a sum only."""

RIGHT = 1.0
"""A function that tells right from wrong says right from this value on; partial credit is wrong."""


def has_signal(values: Sequence[float]) -> bool:
    """False when all values of a group are equal (up to the rounding of a weighted sum), so that no sample is better than another.

    `values` are the raw outcomes for the group filter, never shaped rewards: an all-wrong group whose length bonus varies has no
    signal. An empty group and a group of one have none. ValueError for a value that is not finite.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"outcomes and rewards must be finite, got {list(values)}")
    return len(values) > 1 and not math.isclose(min(values), max(values), rel_tol=ROUNDING, abs_tol=ROUNDING)
