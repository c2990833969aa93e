"""Groups and their samples from request to terminal state, with every counter that a decision reads."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from paceline.core.fleet import decrement
from paceline.core.records import Group
from paceline.core.versions import Versions

Shelf = tuple[bool, int]
"""Where a trainable group stands in the buffer: whether it may get too old, and its version. The smallest goes first."""


class Groups:
    """All groups that are not terminal. Every operation is O(1), or O(log n) where a heap is touched."""

    __slots__ = (
        "_in_order",
        "_line",
        "_order",
        "_paced",
        "_pinned",
        "_ready",
        "_size",
        "_versions",
        "coming",
        "counts",
        "flying",
        "fresh",
        "live",
        "open",
        "promised",
        "ready",
        "taken",
        "unfinished",
        "waiting",
    )

    def __init__(self, size: int, in_order: bool, pinned: bool, paced: bool, versions: Versions) -> None:
        """paced: no group may get older than the bound; else only those that are generated anew may not."""
        self._size = size
        self._in_order = in_order
        self._pinned = pinned
        self._paced = paced
        self._versions = versions
        self._order = 0
        self._line: deque[Group] = deque()
        self._ready: dict[Shelf, deque[Group]] = {}
        self.ready = 0
        """Groups the trainer may take now."""
        self.live: dict[int, Group] = {}
        self.fresh: deque[Group] = deque()
        self.waiting: dict[int, list[tuple[int, Group]]] = {}
        """By lane: started groups with waiting samples, in order of submission."""
        self.counts: dict[int, int] = {}
        """Started and unconsumed groups by version."""
        self.promised: dict[int, int] = {}
        """Of these, the groups that must not get older than the bound, by version."""
        self.unfinished: dict[int, int] = {}
        """Trajectories of started groups that have neither finished nor been given up, by version."""
        self.coming = 0
        """Groups that are not trainable yet."""
        self.open = 0
        """Groups that have started and are not serving-complete."""
        self.flying = 0
        """Trajectories that hold a slot."""
        self.taken = 0
        """Groups with the trainer."""

    @property
    def unconsumed(self) -> int:
        """Groups that are neither terminal nor with the trainer."""
        return len(self.live) - self.taken

    def add(self, index: int, refills: int) -> None:
        """A prompt arrived."""
        assert index not in self.live, index
        group = Group(index, self._order, self._size, refills, self._paced)
        self._order += 1
        self.live[index] = group
        self.fresh.append(group)
        self.coming += 1
        if self._in_order:
            self._line.append(group)

    def start(self, group: Group, version: int, lane: int) -> None:
        """The first sample is about to be admitted under `version`."""
        assert self.fresh[0] is group, group.id
        self.fresh.popleft()
        group.start()
        group.lane = lane
        self.open += 1
        self._enter(group, version, self._size)

    def _enter(self, group: Group, version: int, unfinished: int) -> None:
        group.version = version
        self.counts[version] = self.counts.get(version, 0) + 1
        self.unfinished[version] = self.unfinished.get(version, 0) + unfinished
        if group.promised:
            self.promised[version] = self.promised.get(version, 0) + 1
        if self._pinned:
            self._versions.hold(version)

    def _leave(self, group: Group, unfinished: int) -> None:
        version = group.version
        left = self.counts[version] - 1
        self.unfinished[version] -= unfinished
        if left:
            self.counts[version] = left
        else:
            assert not self.unfinished[version], version
            del self.counts[version], self.unfinished[version]
        if group.promised:
            decrement(self.promised, version)
        if self._pinned:
            self._versions.release(version)

    def reversion(self, group: Group, version: int) -> None:
        """The smallest version of the group's tokens turned out to be another one."""
        unfinished = self._unfinished(group)
        self._leave(group, unfinished)
        self._enter(group, version, unfinished)

    def _unfinished(self, group: Group) -> int:
        return len(group.waiting) + group.running if group.state == "open" else 0

    def queue(self, group: Group) -> None:
        """A started group has a waiting sample."""
        if not group.queued:
            group.queued = True
            heappush(self.waiting.setdefault(group.lane, []), (group.order, group))

    def next_waiting(self, lane: int) -> Group | None:
        """The started group of a lane, first in order of submission, that has a waiting sample."""
        heap = self.waiting.get(lane)
        while heap:
            group = heap[0][1]
            if group.waiting and group.state == "open":
                return group
            heappop(heap)
            group.queued = False
        if heap is not None:
            del self.waiting[lane]
        return None

    def serve(self, group: Group) -> None:
        """Every sample finished or was given up."""
        group.state = "served"
        self.open -= 1

    def make_ready(self, group: Group) -> None:
        """The group is trainable: the trainer may take it, in deterministic mode after all submitted before it."""
        assert group.state == "served"
        group.state = "ready"
        self.coming -= 1
        if self._in_order:
            self._advance_line()
        else:
            self._push(group)

    def _push(self, group: Group) -> None:
        self._ready.setdefault((not group.promised, group.version), deque()).append(group)
        self.ready += 1

    def _advance_line(self) -> None:
        line = self._line
        while line and line[0].state in ("ready", "gone"):
            group = line.popleft()
            if group.state == "ready":
                self._push(group)

    def overstale(self, newest: int, bound: int) -> Shelf | None:
        """Where a trainable group stands that got older than the bound; None when there is none."""
        shelf = min((shelf for shelf in self._ready if shelf[0]), default=None)
        return shelf if shelf is not None and newest - shelf[1] > bound else None

    def batch(self, count: int) -> list[Shelf]:
        """Where the `count` trainable groups stand that go first: those that must not get too old, oldest version, first trainable."""
        shelves: list[Shelf] = []
        for shelf in sorted(self._ready):
            shelves += [shelf] * min(count - len(shelves), len(self._ready[shelf]))
        return shelves

    def pop(self, shelf: Shelf) -> Group:
        """Take the first trainable group of a shelf out of the buffer; `take`, `again` or `end` follows."""
        queue = self._ready[shelf]
        group = queue.popleft()
        self.ready -= 1
        if not queue:
            del self._ready[shelf]
        return group

    def take(self, group: Group) -> None:
        """A popped group goes to the trainer: it is consumed."""
        self._leave(group, 0)
        group.state = "taken"
        self.taken += 1

    def again(self, group: Group) -> None:
        """A popped group is generated anew, before all that have not started, and must not get too old a second time."""
        self._leave(group, 0)
        group.restart()
        group.promised = True
        group.state = "fresh"
        for sample in group.samples:
            sample.attempt += 1
        self.coming += 1
        self.fresh.appendleft(group)

    def end(self, group: Group) -> None:
        """The group is terminal (a trainable one must have been popped)."""
        state = group.state
        if state == "taken":
            self.taken -= 1
        else:
            if state == "open":
                self.open -= 1
            if state != "ready":
                self.coming -= 1
            self._leave(group, self._unfinished(group))
        group.state = "gone"
        del self.live[group.id]
        if self._in_order:
            self._advance_line()
