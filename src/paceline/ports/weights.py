"""Weights of live versions lie in a store outside the engines; a transport prepares, sends and commits them."""

from __future__ import annotations

from typing import Protocol

from paceline.types.weights import WeightsRef


class WeightStore(Protocol):
    """Keeps every live version until it is retired."""

    def prepare(self, version: int) -> str:
        """A location the trainer writes the version to."""

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole: from now on `location` finds it. Returns the final location."""

    def retire(self, version: int) -> None:
        """Forget a version."""


class Locates(Protocol):
    """The receiving side of a store."""

    def location(self, version: int) -> str:
        """Where a committed version lies; KeyError naming the versions held otherwise."""
