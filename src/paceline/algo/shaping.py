"""Rules about the length of a sample: the soft overlong penalty and what the logs say of lengths. No torch."""

from __future__ import annotations

from collections.abc import Sequence


def overlong_penalty(tokens: int, *, max_tokens: int, buffer: int, penalty: float = 1.0) -> float:
    """What to add to the reward of a sample of `tokens` sampled tokens: 0 or negative (DAPO, equation 13, with a free scale).

    0 up to max_tokens - buffer, then falling in a straight line to -penalty at max_tokens. A buffer of 0 switches it off.
    ValueError when the buffer does not fit into max_tokens, for a negative penalty, or for more tokens than max_tokens.
    """
    if not 0 <= buffer <= max_tokens:
        raise ValueError(f"overlong_buffer must be between 0 and max_tokens ({max_tokens}), got {buffer}")
    if not penalty >= 0:
        raise ValueError(f"overlong_penalty must be >= 0, got {penalty}")
    if not 0 <= tokens <= max_tokens:
        raise ValueError(f"tokens must be between 0 and max_tokens ({max_tokens}), got {tokens}")
    excess = tokens - (max_tokens - buffer)
    return -penalty * excess / buffer if buffer and excess > 0 else 0.0


def length_metrics(lengths: Sequence[int], truncated: Sequence[bool]) -> dict[str, float]:
    """Lengths as sampled, in tokens, whatever a mask later leaves out of the loss.

    `completions/*_length` over all samples, `*_terminated_length` over those that ended by themselves (absent if none did),
    `clipped_ratio` = share of truncated samples. Empty input gives no metrics; ValueError when the two lengths differ.
    """
    if len(lengths) != len(truncated):
        raise ValueError(f"one truncation flag per length: got {len(lengths)} lengths and {len(truncated)} flags")
    if not lengths:
        return {}
    finished = [length for length, cut in zip(lengths, truncated, strict=True) if not cut]
    metrics = _three("length", lengths) | {"completions/clipped_ratio": 1 - len(finished) / len(lengths)}
    return metrics | (_three("terminated_length", finished) if finished else {})


def _three(name: str, values: Sequence[int]) -> dict[str, float]:
    return {
        f"completions/mean_{name}": sum(values) / len(values),
        f"completions/min_{name}": float(min(values)),
        f"completions/max_{name}": float(max(values)),
    }
