"""pass@k: the chance that at least one of k answers is right, estimated from n >= k answers of which c are right."""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the share of all k-subsets of the n answers that hold a right one.

    Unbiased (Chen et al., 2021, arXiv 2107.03374, section 2.1), unlike 1 - (1 - c / n)^k. Raises ValueError unless 0 <= c <= n and
    1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n = {n}, c = {c}, k = {k}")
    return 1.0 - comb(n - c, k) / comb(n, k)
