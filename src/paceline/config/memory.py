"""An estimate of each process's memory, with its formulas. Libraries, allocator overhead and file caches come on top.

Symbols: P parameters; L layers; w width; H, K heads and key-value heads; d head size; i width of the MLP; V vocabulary; b bytes of the
compute dtype; m bytes of a master weight, and of what the KV cache holds: float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.inspect import ModelShape
from paceline.config.schema import Config

BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
KV_PAGE = 32
"""Tokens per page of the engine's KV memory."""


def kv_tokens_needed(prompt_tokens: int, max_tokens: int, samples: int = 1, page: int = KV_PAGE) -> int:
    """KV capacity in tokens with which `samples` trajectories of one prompt run side by side to their full length.

    Whole pages. The last token sampled is never written.
    """
    return (-(-prompt_tokens // page) + samples * -(-(max_tokens - 1) // page)) * page


@dataclass(frozen=True, slots=True)
class Memory:
    """One item of a process."""

    process: str
    what: str
    bytes: int
    formula: str


def memory(config: Config, shape: ModelShape) -> tuple[Memory, ...]:
    """Items of one engine process and of the trainer. Items are summed per process; engines are alike."""
    return (*_engine(config, shape), *_trainer(config, shape))


def _engine(config: Config, shape: ModelShape) -> tuple[Memory, ...]:
    rollout, size = config.rollout, BYTES[config.model.dtype]
    tokens = rollout.kv_tokens or rollout.slots * kv_tokens_needed(rollout.max_prompt_tokens, rollout.max_tokens)
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * max(4, size)
    pages = f"slots x (max_prompt_tokens + max_tokens, in pages of {KV_PAGE})"
    capacity = "kv_tokens" if rollout.kv_tokens else pages
    return (
        Memory("engine", "weights", rollout.versions_held * shape.parameters * size, "versions_held x P b"),
        Memory("engine", "KV cache", tokens * per_token, f"2 L K d m x {capacity}"),
        Memory("engine", "logits", 2 * rollout.slots * shape.vocabulary * 4, "slots x V x 4 bytes, twice (logits, probabilities)"),
    )


def _trainer(config: Config, shape: ModelShape) -> tuple[Memory, ...]:
    size = BYTES[config.model.dtype]
    master = max(4, size)
    rows = max(config.trainer.micro_batch_tokens, config.rollout.max_prompt_tokens + config.rollout.max_tokens)
    kept = 4 * shape.width + 2 * (shape.heads + shape.kv_heads) * shape.head_dim + 4 * shape.intermediate
    items = [
        Memory("trainer", "master weights", shape.parameters * master, "P m"),
        Memory("trainer", "gradients", shape.parameters * master, "P m"),
        Memory("trainer", "AdamW moments", 2 * shape.parameters * master, "2 P m"),
        Memory("trainer", "activations", rows * shape.layers * kept * size, "micro-batch rows x L x (4 w + 2 (H + K) d + 4 i) x b"),
        Memory(
            "trainer", "logits chunk", 3 * config.trainer.head_chunk * shape.vocabulary * master, "3 x head_chunk x V x m (with gradient)"
        ),
    ]
    if size < master:
        items.insert(1, Memory("trainer", "compute weights", shape.parameters * size, "P b"))
    if config.algorithm.kl != "none":
        items.append(Memory("trainer", "reference model", shape.parameters * size, "P b"))
    return tuple(items)
