"""Records of a long run without a machine: as many trajectories as asked for, made in a second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.types.weights import InstanceInfo

SIZE, INSTANCES, PER_UPDATE, LASTS = 16, 8, 4, 10


class Flood:
    """Groups of 16 trajectories on 8 instances: one starts every second and takes 10; every 4 make an update and a publish."""

    def __init__(self) -> None:
        self.number = count(1)

    def records(self, groups: int) -> Iterator[tuple[float, Any]]:
        """All records of a run of so many groups, each beside its time."""
        yield from ((0.0, record) for record in self._begin())
        flying: dict[int, list[c.Admit]] = {}
        ready: list[int] = []
        version = 0
        for now in range(groups + LASTS):
            if (old := now - LASTS) in flying:
                yield from ((float(now), record) for record in self._end(old, flying.pop(old)))
                ready.append(old)
            if len(ready) == PER_UPDATE:
                version += 1
                yield from ((now + 0.5, record) for record in self._train(version, ready))
                ready = []
            if now < groups:
                started = list(self._start(now, version))
                flying[now] = [record for record in started if isinstance(record, c.Admit)]
                yield from ((now + 0.75, record) for record in started)

    def _begin(self) -> Iterator[Any]:
        yield e.Started()
        for instance in range(INSTANCES):
            yield e.InstanceUp(InstanceInfo(f"i{instance}", 2 * SIZE))
        yield from self._publish(0)

    def _publish(self, version: int) -> Iterator[Any]:
        command = c.Publish(next(self.number), version, version)
        yield command
        yield e.Published(command.id, version, "f")
        for instance in range(INSTANCES):
            load = c.LoadWeights(next(self.number), f"i{instance}", version, "keep", version - 1 if version else None)
            yield load
            yield e.WeightsLive(load.id, load.instance, version, "f", 0.0, 1.0)

    def _start(self, group: int, version: int) -> Iterator[Any]:
        request = c.RequestPrompts(next(self.number), 1)
        yield request
        yield e.PromptsArrived(request.id, (group,))
        for sample in range(SIZE):
            yield c.Admit(next(self.number), group, sample, 0, f"i{group % INSTANCES}", version)

    def _end(self, group: int, admits: list[c.Admit]) -> Iterator[Any]:
        for a in admits:
            yield e.TrajectoryFinished(a.id, group, a.sample, 0, a.instance, 100, a.version, a.version)
        judge = c.Materialize(next(self.number), group, tuple(range(SIZE)))
        yield judge
        yield e.GroupMaterialized(judge.id, group, True, SIZE)

    def _train(self, update: int, ready: list[int]) -> Iterator[Any]:
        ones = (1,) * len(ready)
        dispatch = c.Dispatch(next(self.number), tuple(ready), True, update, tuple(ready), ones, ones)
        yield dispatch
        yield e.DispatchConsumed(dispatch.id)
        yield e.UpdateFinished(dispatch.id, update)
        for group in ready:
            yield c.Terminal(next(self.number), group, "trained")
        yield from self._publish(update)
