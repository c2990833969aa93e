"""Whether a group can teach anything: one rule for the group filter (torch-free) and for the advantages."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

RELATIVE_ROUNDING = 16 * sys.float_info.epsilon
"""Values closer than this, relative to the largest magnitude, are equal: 0.1 + 0.2 and 0.3 differ by the order of a sum only."""


def has_signal(values: Sequence[float]) -> bool:
    """False when all values of a group are equal (up to the rounding of a weighted sum), so that no sample is better than another.

    `values` are the raw outcomes for the group filter, never shaped rewards: an all-wrong group whose length bonus varies has no
    signal. An empty group and a group of one have none. ValueError for a value that is not finite.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"outcomes and rewards must be finite, got {list(values)}")
    if len(values) < 2:
        return False
    low, high = min(values), max(values)
    return high - low > RELATIVE_ROUNDING * max(abs(low), abs(high))
