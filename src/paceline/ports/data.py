"""Where prompts come from, how answers are judged, where metrics go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from paceline.types.records import Prompt, Score, Trajectory


class Task(Protocol):
    """A finite, ordered set of rows. The order of an epoch is a pure function of (seed, epoch)."""

    def __len__(self) -> int:
        """Rows per epoch, after rows that were refused or skipped."""

    def prompt(self, index: int) -> Prompt:
        """The prompt at a position of the run's data order; epochs follow each other (index // len is the epoch)."""

    def every_row(self) -> Sequence[Prompt]:
        """Every row once, also those that an epoch leaves out; their `index` means nothing."""

    def fingerprint(self) -> str:
        """Changes when rows, their order, the mapping or the template change."""


class Reward(Protocol):
    """One reward function over a batch of trajectories of any prompts; order and length are kept."""

    name: str

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order. Raises RewardError naming the row; never hides an error as 0."""


class Tracker(Protocol):
    """A sink for metrics with one axis per kind (`update`, `publish`, `eval`)."""

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """Record values at `step` of `axis`. Steps of an axis ascend within a lineage; those of different axes have no order.

        ValueError: these values cannot be recorded, whatever is tried. Any other error: not now.
        """

    def close(self) -> None:
        """Flush and release."""
