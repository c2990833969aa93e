"""Instances: slots, weights, and who runs where. A lane is the set of instances that take the same work."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from paceline.core.records import Instance
from paceline.core.versions import Versions
from paceline.types.weights import InstanceInfo


class Fleet:
    """All instances that are up, and per lane a heap of those with free slots (stale entries are dropped when they surface)."""

    __slots__ = ("_heaps", "_index", "_indexed", "_pinned", "_versions", "assigned", "holders", "instances", "leaving", "sizes")

    def __init__(self, pinned: bool, versions: Versions) -> None:
        self._pinned = pinned
        self._versions = versions
        self._index = 0
        self._indexed: dict[int, Instance] = {}
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        self.instances: dict[str, Instance] = {}
        self.sizes: dict[int, int] = {}
        """Instances per lane."""
        self.holders: dict[int, int] = {}
        """Instances that serve each version."""
        self.assigned: dict[int, int] = {}
        """Instances meant to serve each version."""
        self.leaving: dict[int, dict[Instance, None]] = {}
        """By lane: instances meant for other versions that still run trajectories of this one."""

    def up(self, info: InstanceInfo) -> Instance:
        """An instance joined; it holds nothing."""
        assert info.instance not in self.instances
        instance = Instance(info, self._index)
        self._index += 1
        self.instances[info.instance] = instance
        self._indexed[instance.index] = instance
        return instance

    def lost(self, instance: Instance) -> None:
        """An instance ended. Its jobs are the caller's to place again."""
        self.aim(instance, ())
        for version in list(instance.held):
            self.drop(instance, version)
        if instance.loading is not None:
            self._versions.release(instance.loading)
            instance.loading = None
        del self.instances[instance.name], self._indexed[instance.index]

    def aim(self, instance: Instance, versions: tuple[int, ...]) -> None:
        """Say which versions an instance is meant to serve."""
        for version in instance.target:
            decrement(self.assigned, version)
        for version in versions:
            self.assigned[version] = self.assigned.get(version, 0) + 1
        instance.target = versions
        self.refresh(instance)

    def begin_load(self, instance: Instance, version: int, replaces: int | None) -> None:
        """A load is commanded."""
        assert instance.loading is None
        instance.loading, instance.replaces = version, replaces
        self._versions.hold(version)
        self.refresh(instance)

    def live(self, instance: Instance) -> None:
        """The load arrived: the instance serves the version, with all work of the one it replaces."""
        version, old = instance.loading, instance.replaces
        assert version is not None
        instance.loading = instance.replaces = None
        carried = 0
        if old is not None:
            carried = instance.held[old]
            self.drop(instance, old)
            for sample in instance.jobs:
                if sample.version == old:
                    sample.version = version
        instance.held[version] = carried
        self.holders[version] = self.holders.get(version, 0) + 1
        self.refresh(instance)

    def drop(self, instance: Instance, version: int) -> None:
        """An instance serves a version no longer."""
        del instance.held[version]
        decrement(self.holders, version)
        self._versions.release(version)
        self._left(instance, version)

    def _left(self, instance: Instance, version: int) -> None:
        leaving = self.leaving.get(version)
        if leaving is not None:
            leaving.pop(instance, None)
            if not leaving:
                del self.leaving[version]

    def lane_of(self, version: int) -> int:
        """Pinned work has a lane per version; other work shares lane 0."""
        return version if self._pinned else 0

    def refresh(self, instance: Instance) -> None:
        """Recompute the lanes of an instance after its weights, aim or heat changed."""
        served = self._served(instance)
        for lane in instance.lanes:
            decrement(self.sizes, lane)
            if lane not in self.sizes and lane not in served:
                del self._heaps[lane]
        for lane in served:
            self._heaps.setdefault(lane, [])
            self.sizes[lane] = self.sizes.get(lane, 0) + 1
        instance.lanes = served
        if self._pinned:
            self._note_leaving(instance)
        self._offer(instance)

    def _served(self, instance: Instance) -> tuple[int, ...]:
        """Lanes of the versions that an instance serves and is meant to keep; none while it is hot."""
        if instance.hot:
            return ()
        return tuple(sorted({self.lane_of(v) for v in instance.held if v in instance.target and v != instance.replaces}))

    def _note_leaving(self, instance: Instance) -> None:
        for version, used in instance.held.items():
            if used and version not in instance.target:
                self.leaving.setdefault(version, {})[instance] = None
            else:
                self._left(instance, version)

    def _offer(self, instance: Instance) -> None:
        if not instance.free:
            return
        for lane in instance.lanes:
            heap = self._heaps[lane]
            heappush(heap, (-instance.free, instance.index))
            if len(heap) > 64 + 4 * self.sizes[lane]:
                self._compact(lane, heap)

    def _compact(self, lane: int, heap: list[tuple[int, int]]) -> None:
        heap[:] = {entry for entry in heap if self._valid(entry, lane)}
        heapify(heap)

    def _valid(self, entry: tuple[int, int], lane: int) -> bool:
        instance = self._indexed.get(entry[1])
        return instance is not None and instance.free == -entry[0] and lane in instance.lanes

    def pick(self, lane: int, home: Instance | None) -> Instance | None:
        """The instance of a lane for the next trajectory: `home` if it has room, else the one with the most free slots."""
        if home is not None and home.free and lane in home.lanes:
            return home
        heap = self._heaps.get(lane)
        while heap:
            if self._valid(heap[0], lane):
                return self._indexed[heap[0][1]]
            heappop(heap)
        return None

    def newest_lane(self) -> int | None:
        """The lane with the newest weights that anything serves; None when nothing does."""
        return max(self.sizes, default=None)

    def occupy(self, instance: Instance, version: int) -> None:
        """One slot is taken under a version."""
        assert instance.free > 0, instance.name
        instance.free -= 1
        instance.held[version] += 1
        self._offer(instance)

    def vacate(self, instance: Instance, version: int) -> None:
        """One slot is free again."""
        instance.free += 1
        left = instance.held[version] - 1
        assert left >= 0, instance.name
        instance.held[version] = left
        if not left:
            self._left(instance, version)
        if instance.hot and instance.idle:
            instance.hot = False
            self.refresh(instance)
        else:
            self._offer(instance)


def decrement(counts: dict[int, int], key: int) -> None:
    """One less of `key`, which is forgotten at 0."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
