"""Which policy versions an engine holds, and which place the next one takes: the rules of `HoldsWeights.load`, for every engine."""

from __future__ import annotations

from collections.abc import Callable

from paceline.types.errors import ConfigError, EngineError
from paceline.types.weights import Unfinished, WeightsRef


class Places:
    """`count` places for versions. The weights an engine starts with are version 0 and hold no place: the first load overwrites them."""

    def __init__(self, instance: str, count: int) -> None:
        """Raises ConfigError for less than one place."""
        if count < 1:
            raise ConfigError(f"versions_held = {count}: an engine needs a place for one policy version at least")
        self._instance, self.count = instance, count
        self._loaded: dict[int, int] = {}
        self._initial = True
        self._last = 0

    @property
    def held(self) -> tuple[int, ...]:
        """Versions that can be asked for, ascending."""
        return (0,) if self._initial else tuple(sorted(self._loaded))

    def named(self) -> str:
        """The versions held, in words."""
        return ", ".join(map(str, self.held)) or "none"

    def find(self, version: int | None) -> tuple[int, int]:
        """(version, place); None = the version loaded last. Raises EngineError for one that is not held."""
        wanted = self._last if version is None else version
        if wanted not in self.held:
            raise EngineError(f"{self._instance} holds version {self.named()}, not {wanted}")
        return wanted, self._loaded.get(wanted, 0)

    def make_way(
        self, ref: WeightsRef, unfinished: Unfinished, replaces: int | None, work: Callable[[int | None], int]
    ) -> tuple[int, int | None]:
        """The place for `ref`, and the version that leaves it. That one is gone from here on; the new one is held after `arrived`.

        work: trajectories unfinished under a version, 0 for None. Raises EngineError, with nothing changed, for a load that may not be.
        """
        leaving = 0 if self._initial else replaces
        goes_on = unfinished != "none" and not self._initial
        refusal = self._without_place(ref.version, replaces) or _at_work(leaving, work(leaving), goes_on)
        if refusal:
            raise EngineError(f"{self._instance}: cannot load version {ref.version}: {refusal}")
        self._initial = False
        if replaces is not None:
            return self._loaded.pop(replaces), leaving
        return min(set(range(self.count)) - set(self._loaded.values())), leaving

    def arrived(self, version: int, place: int) -> None:
        """The weights of a version lie complete in the place that `make_way` gave."""
        self._loaded[version] = place
        self._last = version

    def _without_place(self, version: int, replaces: int | None) -> str:
        """Why there is no place for a version, or nothing."""
        places = f"places hold: {', '.join(map(str, sorted(self._loaded))) or 'none'}"
        if replaces is not None and replaces not in self._loaded:
            return f"version {replaces}, which it replaces, holds no place ({places})"
        if version in self._loaded and version != replaces:
            return f"it is held already ({places})"
        if replaces is None and len(self._loaded) >= self.count:
            return f"no place is empty ({places}; versions_held = {self.count})"
        return ""


def _at_work(leaving: int | None, busy: int, goes_on: bool) -> str:
    """Why a version may not leave, or nothing."""
    return f"{busy} trajectories are unfinished under version {leaving}" if busy and not goes_on else ""
