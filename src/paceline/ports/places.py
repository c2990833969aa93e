"""Which policy versions an engine holds, and which place the next one takes: the rules of `HoldsWeights.load`, for every engine."""

from __future__ import annotations

from collections.abc import Callable

from paceline.ports.rollout import Unfinished
from paceline.types.errors import ConfigError, EngineError
from paceline.types.weights import WeightsRef


class Places:
    """`count` places for versions. The weights an engine starts with are version 0 and hold no place: the first load overwrites them."""

    def __init__(self, instance: str, count: int) -> None:
        """Raises ConfigError for less than one place."""
        if count < 1:
            raise ConfigError(f"versions_held = {count}: an engine needs a place for one policy version at least")
        self._instance, self.count = instance, count
        self._held: dict[int, int] = {0: 0}
        self._initial = True
        self._last = 0

    @property
    def held(self) -> tuple[int, ...]:
        """Versions that can be asked for, ascending."""
        return tuple(sorted(self._held))

    def named(self) -> str:
        """The versions held, in words."""
        return ", ".join(map(str, self.held)) or "none"

    def find(self, version: int | None) -> tuple[int, int]:
        """(version, place); None = the version loaded last. Raises EngineError for one that is not held."""
        wanted = self._last if version is None else version
        if wanted not in self._held:
            raise EngineError(f"{self._instance} holds version {self.named()}, not {wanted}")
        return wanted, self._held[wanted]

    def make_way(self, ref: WeightsRef, unfinished: Unfinished, replaces: int | None, work: Callable[[int], int]) -> tuple[int, int | None]:
        """The place for `ref`, and the version that leaves it. That one is gone from here on; the new one is held after `arrived`.

        work: trajectories unfinished under a version. Raises EngineError, with nothing changed, where the protocol does not allow the load.
        """
        leaving = 0 if self._initial and replaces is None else replaces
        refusal = self._refusal(ref.version, replaces, leaving)
        busy = work(leaving) if refusal is None and leaving is not None else 0
        if busy and (unfinished == "none" or replaces is None):
            refusal = f"{busy} trajectories are unfinished under version {leaving}"
        if refusal is not None:
            raise EngineError(f"{self._instance}: cannot load version {ref.version}: {refusal}")
        self._initial = False
        if leaving is not None:
            return self._held.pop(leaving), leaving
        return min(set(range(self.count)) - set(self._held.values())), None

    def arrived(self, version: int, place: int) -> None:
        """The weights of a version lie complete in the place that `make_way` gave."""
        self._held[version] = place
        self._last = version

    def _refusal(self, version: int, replaces: int | None, leaving: int | None) -> str | None:
        """Why the places do not allow it, or None."""
        if replaces is not None and (self._initial or replaces not in self._held):
            return f"version {replaces}, which it replaces, holds no place (held: {'none' if self._initial else self.named()})"
        if version in self._held and version != leaving:
            return "it is held already"
        if leaving is None and len(self._held) >= self.count:
            return f"no place is empty (held: {self.named()}; versions_held = {self.count})"
        return None
