"""Weights of live versions lie in a store outside the engines; a transport prepares, sends and commits them."""

from __future__ import annotations

from typing import Protocol

from paceline.types.weights import WeightsRef


class WeightStore(Protocol):
    """Keeps every live version until it is retired."""

    def prepare(self, version: int) -> str:
        """A location the trainer writes the version to."""

    def commit(self, ref: WeightsRef) -> str:
        """The version is whole. Returns where receivers find it until it is retired."""

    def retire(self, version: int) -> None:
        """Forget a version; one that is not there is no error."""
