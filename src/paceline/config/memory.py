"""An estimate of each process's largest memory, with its formulas: of the slim decoder, with answers of full length.

Why these items and no others: docs/design/trainer.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.inspect import ModelShape
from paceline.config.schema import Config, RolloutConfig

SYMBOLS = {
    "P": "parameters",
    "L": "layers",
    "w": "width",
    "H": "heads",
    "K": "key-value heads",
    "d": "head size",
    "i": "width of the MLP",
    "V": "vocabulary",
    "R": "rows (tokens) of the largest micro-batch",
    "b": "bytes of model.dtype",
    "m": "bytes of a master weight, and of what torch's operators keep in the KV cache: float32 at least",
}
"""Letters of the formulas."""
BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
KV_PAGE = 32
"""Tokens per page of the engine's KV memory."""


LIBRARIES, LIBRARIES_BYTES = "libraries", 400_000_000
"""What a process holds that has loaded torch and transformers and nothing else."""


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


def memory(
    config: Config, shape: ModelShape, groups_per_dispatch: int, *, panels: bool, trainer_panels: bool, reference: ModelShape | None = None
) -> tuple[Memory, ...]:
    """Items of one engine process and of the trainer, summed per process; engines are alike. groups_per_dispatch: the schedule's D.

    panels: the engine multiplies by compiled kernels (`native.machine`). trainer_panels: the trainer does so. reference: of a reference
    model that is not the starting weights.
    """
    narrow = BYTES[config.model.dtype] < 4
    trainer = _trainer(config, shape, groups_per_dispatch, trainer_panels, reference or shape)
    return (*_with_overhead(_engine(config, shape, panels), 10), *_with_overhead(trainer, 10 if narrow else 5))


def _with_overhead(items: Sequence[Memory], part: int) -> list[Memory]:
    """With what lies unused between the blocks that an allocator has given out, a `part`-th of them.

    A trainer in float32 leaves more: gradients take the places of activations there, and are a little larger or smaller.
    """
    given = sum(item.bytes for item in items if item.what != LIBRARIES)
    return [*items, Memory(items[0].process, "allocator", given // part, f"1/{part} of all but the libraries")]


def _engine(config: Config, shape: ModelShape, panels: bool) -> tuple[Memory, ...]:
    rollout, size = config.rollout, BYTES[config.model.dtype]
    tokens = rollout.kv_tokens or rollout.slots * kv_tokens_needed(rollout.max_prompt_tokens, rollout.max_tokens)
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * (size if panels else max(4, size))
    pages = f"slots x (max_prompt_tokens + max_tokens, in pages of {KV_PAGE})"
    capacity = "kv_tokens" if rollout.kv_tokens else pages
    packed = [Memory("engine", "head to be packed", 4 * shape.vocabulary * shape.width, "V w x 4 bytes")] if size < 4 and not panels else []
    served, formula = (
        (2 * shape.parameters * size, "2 P b, once more in panels") if panels else (_served(shape, size), _served_formula(size))
    )
    return (
        Memory("engine", LIBRARIES, LIBRARIES_BYTES, "Python, torch, transformers"),
        Memory("engine", "weights", rollout.versions_held * served, f"versions_held x {formula}"),
        *packed,
        Memory("engine", "KV cache", tokens * per_token, f"2 L K d {'b' if panels else 'm'} x {capacity}"),
        Memory("engine", "logits", 2 * rollout.slots * shape.vocabulary * 4, "slots x V x 4 bytes, twice (logits, probabilities)"),
    )


def _served(shape: ModelShape, size: int) -> int:
    """Bytes of weights that compute without gradients: they are packed again for the CPU's kernels, the head in float32."""
    plain = shape.parameters * size
    return plain if size == BYTES["float64"] else 2 * plain + shape.vocabulary * shape.width * (4 - size)


def _served_formula(size: int) -> str:
    return "P b" if size == BYTES["float64"] else "(2 P b + V w (4 - b)), once more in the layout of the kernels, the head in float32"


def _trainer(config: Config, shape: ModelShape, groups_per_dispatch: int, panels: bool, reference: ModelShape) -> tuple[Memory, ...]:
    """What stays, and what comes on top of it at the worse of two moments."""
    size = BYTES[config.model.dtype]
    master, head = max(4, size), shape.vocabulary * shape.width
    stays = [
        Memory("trainer", LIBRARIES, LIBRARIES_BYTES, "Python, torch, transformers"),
        Memory("trainer", "master weights", shape.parameters * master, "P m"),
        Memory("trainer", "AdamW moments", 2 * shape.parameters * master, "2 P m"),
    ]
    if size < master:
        stays.append(Memory("trainer", "rounded head", *_rounded_head(head, size, panels, _filtered(config.rollout))))
    if config.algorithm.kl != "none":
        stays.append(Memory("trainer", "reference model", _served(reference, size), f"{_served_formula(size)} (of its own sizes)"))
    moments = _head_phase(config, shape, groups_per_dispatch, panels), _step_phase(shape, master)
    return (*stays, *max(moments, key=lambda items: sum(item.bytes for item in items)))


def _rounded_head(head: int, size: int, panels: bool, filtered: bool) -> tuple[int, str]:
    """Of as many numbers: what updates multiply by, and with panels the probe, which knows no filter."""
    if not panels:
        return 4 * head, "V w m"
    return (head * (4 + size), "V w (m + b)") if filtered else (2 * head * size, "V w b, once more in panels")


def _filtered(rollout: RolloutConfig) -> bool:
    """Whether log-probs of kept sets are asked for, which torch's operators find."""
    return rollout.top_p < 1 or rollout.top_k > 0


def _head_phase(config: Config, shape: ModelShape, groups_per_dispatch: int, panels: bool) -> list[Memory]:
    """When the backward pass of the last micro-batch begins: everything is kept, and nothing of it released."""
    size, rollout, schedule = BYTES[config.model.dtype], config.rollout, config.schedule
    master, head = max(4, size), shape.vocabulary * shape.width
    group = rollout.max_prompt_tokens + schedule.group_size * (rollout.max_tokens - 1)
    together = 1 if config.run.deterministic else groups_per_dispatch
    budget = config.trainer.micro_batch_tokens
    rows = min(together * group, max(budget, rollout.max_prompt_tokens + rollout.max_tokens - 1))
    several = schedule.groups_per_update * group > min(together * group, budget)
    layer = 2 * shape.width + 2 * (shape.heads + shape.kv_heads) * shape.head_dim + 2 * shape.intermediate
    kept, formula = shape.layers * layer, "R L (2 w + 2 (H + K) d + 2 i) b"
    if config.trainer.checkpoint_activations:
        kept, formula = shape.layers * shape.width + layer, "R (L w + 2 w + 2 (H + K) d + 2 i) b"
    chunk = min(config.trainer.head_chunk, together * schedule.group_size * rollout.max_tokens) * shape.vocabulary
    items = [
        Memory("trainer", "activations", rows * kept * size, formula),
        _logits(rollout, chunk, size, panels),
        *_head_in_a_chunk(head, size, fused=panels and not _filtered(rollout)),
    ]
    if several:
        return [Memory("trainer", "gradients", shape.parameters * master, "P m"), *items]
    return [Memory("trainer", "gradient of the head", head * master, "V w m"), *items]


def _head_in_a_chunk(head: int, size: int, fused: bool) -> list[Memory]:
    """Matrices of the head's size that a chunk needs beside what is kept. fused: by kernels, which make its gradient where it grows."""
    narrow = size < 4
    if fused and narrow:
        return []
    weights = Memory("trainer", "head in bfloat16", head * size, "V w b (weights, for the gradient of a chunk)")
    return [Memory("trainer", "head in a chunk", head * size, "V w b (gradient)"), *([weights] if narrow else [])]


def _logits(rollout: RolloutConfig, chunk: int, size: int, panels: bool) -> Memory:
    """Of a chunk of as many numbers, and what is made of them."""
    master, filtered = max(4, size), _filtered(rollout)
    if panels and not filtered:
        return Memory("trainer", "logits", chunk * (master + size), "head_chunk V (m + b) (logits, their gradient)")
    copies = 2 + (rollout.temperature != 1) + 2 * filtered
    return Memory("trainer", "logits", copies * chunk * master, f"{copies} head_chunk V m (logits, probabilities)")


def _step_phase(shape: ModelShape, master: int) -> list[Memory]:
    """When the backward pass ends: all gradients."""
    return [Memory("trainer", "gradients", shape.parameters * master, "P m")]
