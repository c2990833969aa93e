"""What a scene counts: groups that are not terminal, and instances that are up."""

from __future__ import annotations

FRESH, OPEN, JUDGED, READY, TAKEN = "fresh", "open", "judged", "ready", "taken"
"""A group was requested; has started; is serving-complete; is trainable; is with the trainer."""


class Group:
    """A group that is not terminal."""

    __slots__ = ("failures", "left", "low", "state")

    def __init__(self, size: int) -> None:
        self.state = FRESH
        self.left = size
        """Samples that wait to be admitted."""
        self.low = -1
        """Smallest version of any token of what has finished; -1 before."""
        self.failures: dict[int, int] = {}
        """Failed attempts by sample."""


class Seat:
    """An instance that is up."""

    __slots__ = ("barred", "loads", "running", "slots", "versions")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: set[int] = set()
        """Open Admits whose trajectories it runs."""
        self.versions: set[int] = set()
        self.loads: dict[int, int | None] = {}
        """Open LoadWeights -> the version that makes way."""
        self.barred = 0
        """Free slots that cannot be used because weights are missing or change."""

    @property
    def waits(self) -> bool:
        """Whether nothing can start here until weights arrive."""
        return self.versions <= set(self.loads.values())
