"""Counter-based uniforms: the number of a token is a pure function of what the token is, never of when it is drawn.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11): ten rounds of 32-bit multiply and xor
over a 128-bit counter under a 64-bit key. It passes BigCrush, needs integer arithmetic only (so every platform agrees), and has
published answers to test against. Two levels hold everything that names a token:

    stream  = Philox(key = run seed,  counter = (group low, group high, sample, purpose))   first two words become a key
    numbers = Philox(key = stream,    counter = (position low, position high, lane, 0))     first word becomes the uniform
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.types.records import Purpose

PURPOSES: dict[Purpose, int] = {"train": 0, "eval": 1, "draft": 2}
"""Number of each purpose in the counter. Values are part of a run's identity: never renumber, only append."""

_ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


def philox(counter: npt.ArrayLike, key: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Philox4x32-10. counter [..., 4] and key [..., 2] are 32-bit words of any integer type; leading shapes broadcast. Returns [..., 4]."""
    words = np.asarray(counter, dtype=np.uint64)
    keys = np.asarray(key, dtype=np.uint64)
    a, b, c, d = (words[..., i] for i in range(4))
    left, right = keys[..., 0], keys[..., 1]
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ left, second & _MASK, (first >> _HALF) ^ d ^ right, first & _MASK
        left, right = (left + _KEY_STEPS[0]) & _MASK, (right + _KEY_STEPS[1]) & _MASK
    return np.stack(np.broadcast_arrays(a, b, c, d), axis=-1).astype(np.uint32)


def stream_key(seed: int, purpose: Purpose, group: int, sample: int) -> npt.NDArray[np.uint32]:
    """Key of one trajectory's numbers, [2]. `seed` and `group` count modulo 2^64, `sample` modulo 2^32."""
    counter = (group & 0xFFFFFFFF, (group >> 32) & 0xFFFFFFFF, sample & 0xFFFFFFFF, PURPOSES[purpose])
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    return philox(counter, key)[:2]


def uniforms(keys: npt.ArrayLike, positions: npt.ArrayLike, lane: npt.ArrayLike = 0) -> npt.NDArray[np.float32]:
    """Uniform numbers on the grid k / 2^24, 0 <= k < 2^24, exact in float32.

    keys [..., 2] from `stream_key`, positions [...] (index of the token among the sampled ones, 0-based), lane [...]; shapes broadcast.
    `lane` separates several numbers of one token (0: the token itself; others: drafts and acceptance tests).
    """
    place, side = np.broadcast_arrays(np.asarray(positions, dtype=np.uint64), np.asarray(lane, dtype=np.uint64))
    counter = np.stack([place & _MASK, place >> _HALF, side, np.zeros_like(place)], axis=-1)
    return ((philox(counter, keys)[..., 0] >> np.uint32(8)) * np.float32(2.0**-24)).astype(np.float32)
