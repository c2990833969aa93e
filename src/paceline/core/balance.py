"""How many instances each version gets: shares in proportion to remaining work, exact in sum. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(instances: int, work: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Instances per version for `work` = (version, remaining work > 0), oldest version first.

    The shares add up to `instances`. Every version keeps one while there are as many instances as versions; with fewer, the oldest
    get one each. What is left goes by largest remainder (of equal ones, to the older version).
    """
    amounts = dict(work)
    shares = {version: int(place < instances) for place, version in enumerate(amounts)}
    spare = instances - len(amounts)
    total = sum(amounts.values())
    if spare <= 0 or not total:
        return shares
    # Ideal shares of all instances; those whose ideal is below the guaranteed one take no part in the rest.
    above = {version: max(0.0, instances * amount / total - 1) for version, amount in amounts.items()}
    scale = spare / sum(above.values())
    exact = {version: extra * scale for version, extra in above.items()}
    for version, extra in exact.items():
        shares[version] += int(extra)
    missing = instances - sum(shares.values())
    by_remainder = sorted(exact, key=lambda version: (int(exact[version]) - exact[version], version))
    for version in by_remainder[:missing]:
        shares[version] += 1
    return shares
