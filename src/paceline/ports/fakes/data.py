"""In-memory fakes of Task, Reward and Tracker: small, deterministic, and held to the same contract tests as the real adapters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.types.errors import DataError, RewardError
from paceline.types.records import Prompt, Score, Trajectory


class MemoryTask:
    """A Task over (question, gold) pairs; a prompt's ids are the UTF-8 bytes of its question. Epochs keep the order of the pairs.

    With a seed, epoch e begins at another row (the order rotates by a hash of seed and epoch).
    """

    def __init__(self, pairs: Sequence[tuple[str, str | None]], *, seed: int | None = None, name: str = "memory") -> None:
        """Raises DataError without pairs."""
        if not pairs:
            raise DataError("a task has at least one row")
        self._pairs = tuple(pairs)
        self._seed = seed
        self._name = name

    def __len__(self) -> int:
        """Rows per epoch."""
        return len(self._pairs)

    def prompt(self, index: int) -> Prompt:
        """The prompt at a position of the data order, >= 0."""
        if index < 0:
            raise DataError(f"prompt index {index}: positions start at 0")
        epoch, position = divmod(index, len(self._pairs))
        shift = 0 if self._seed is None else int.from_bytes(_hash(f"{self._seed}/{epoch}")[:4], "big")
        row = (position + shift) % len(self._pairs)
        question, gold = self._pairs[row]
        ids = np.frombuffer(question.encode(), dtype=np.uint8).astype(np.int32)
        return Prompt(index, row, ids, question, gold, {}, self._name)

    def every_row(self) -> Sequence[Prompt]:
        """The pairs in their order."""
        return sorted((self.prompt(index) for index in range(len(self))), key=lambda prompt: prompt.row)

    def fingerprint(self) -> str:
        """A hash of pairs and seed."""
        return _hash(repr((self._seed, self._pairs))).hex()


class ByteTokenizer:
    """A tokenizer with a chat template: ids 0-255 are UTF-8 bytes, 256-259 the role markers, 260 ends a message.

    The text of a marker (`<user>`) encodes to bytes, never to the marker: rendering to text and encoding again gives other ids.
    """

    ROLES = ("system", "user", "assistant", "tool")
    END = 260

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool, **arguments: Any
    ) -> Any:
        """Marker, content bytes and END per message, then the assistant's marker. Raises ValueError for two user messages in a row."""
        roles = [message["role"] for message in conversation]
        if any(first == second == "user" for first, second in pairwise(roles)):
            raise ValueError("roles must alternate")
        ids: list[int] = []
        for message in conversation:
            ids += [256 + self.ROLES.index(message["role"]), *self.encode(message["content"]), self.END]
        ids += [256 + self.ROLES.index("assistant")] * add_generation_prompt
        assert tokenize, "only ids are ever asked for"
        return {"input_ids": ids} if return_dict else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text without markers."""
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


@dataclass
class ConstantReward:
    """A Reward that gives every trajectory the same value; `by_text` overrides it for completions with that text."""

    value: float | None = 1.0
    name: str = "constant"
    by_text: Mapping[str, float | None] = field(default_factory=dict)

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order."""
        return [Score(self.by_text.get(t.text, self.value)) for _, t in zip(prompts, trajectories, strict=True)]


@dataclass
class ComputedReward:
    """A Reward from a function of (prompt, trajectory); what it raises becomes a RewardError that names the row."""

    function: Callable[[Prompt, Trajectory], float | None]
    name: str = "computed"

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order."""
        return [self._one(prompt, trajectory) for prompt, trajectory in zip(prompts, trajectories, strict=True)]

    def _one(self, prompt: Prompt, trajectory: Trajectory) -> Score:
        try:
            return Score(self.function(prompt, trajectory))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise RewardError(f"reward {self.name} raised {type(error).__name__} on row {prompt.row}: {error}") from error


class MemoryTracker:
    """A Tracker that keeps everything in `rows` as (axis, step, values) and, like real services, refuses a step that does not ascend."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, dict[str, Any]]] = []
        self.closed = False

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Keep the values. Raises DataError for a step that does not ascend on its axis."""
        last = max((s for a, s, _ in self.rows if a == axis), default=step - 1)
        if step <= last:
            raise DataError(f"axis {axis!r}: step {step} after step {last}")
        self.rows.append((axis, step, dict(values)))

    def close(self) -> None:
        """Mark as closed; idempotent."""
        self.closed = True


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
