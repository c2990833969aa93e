"""Which instance serves which version, and which trajectories move: decided at publishes, on idle or full instances, on a timer."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from math import ceil
from typing import NamedTuple

from paceline.core.balance import apportion
from paceline.core.commands import Migrate
from paceline.core.events import InstanceReport, Migrated
from paceline.core.fleet import decrement
from paceline.core.intake import Intake
from paceline.core.loading import Loading
from paceline.core.records import Instance, Sample
from paceline.core.serving import Serving
from paceline.core.state import Machinery


class _Move(NamedTuple):
    """A trajectory on its way to another instance, as it was when the migration was commanded."""

    sample: Sample
    admission: int
    attempt: int

    @property
    def runs(self) -> bool:
        """Whether the attempt still counts as running."""
        return self.sample.command == self.admission

    @property
    def given_up(self) -> bool:
        """Whether the attempt was lost or aborted meanwhile."""
        return self.sample.attempt != self.attempt or self.sample.group.state == "gone"


class Placement:
    """Aims instances at versions (the loads follow when they can), and moves trajectories of one version between its instances."""

    def __init__(self, shared: Machinery, intake: Intake, loading: Loading, serving: Serving) -> None:
        self._m = shared
        self._intake = intake
        self._loading = loading
        self._serving = serving
        self._moves: dict[int, tuple[Instance, list[_Move]]] = {}
        """Open migrations: the target, where each trajectory has a slot reserved, and what moves."""
        self._goal = shared.versions.newest
        """Version that the whole fleet is meant to serve, unless several live side by side."""
        self._paused = False
        """A move failed since the newest version arrived: nothing moves before the next one does."""

    def all_to(self, version: int) -> None:
        """One version in the fleet: everything is meant to serve `version`, which may not be available yet."""
        self._goal = version
        for instance in self._m.fleet.instances.values():
            self._m.fleet.aim(instance, (version,))

    def arrived(self) -> None:
        """A version is available: serve it."""
        self._paused = False
        if not self._m.traits.balanced:
            self.all_to(self._m.versions.available)
        self.load()

    def load(self) -> None:
        """Something that held loads back is over: load what may be loaded, shared out anew where versions live side by side."""
        if self._m.traits.balanced:
            self.rebalance()
        else:
            self._loading.load_all()

    def rebalance(self) -> None:
        """Give each live version its share of the instances, with as few and as cheap changes as possible; O(instances)."""
        m = self._m
        live = self._work()
        single = [i for i in m.fleet.instances.values() if i.info.versions_held == 1]
        for instance in m.fleet.instances.values():
            if instance.info.versions_held > 1:
                m.fleet.aim(instance, _oldest(live, instance.info.versions_held))
        self._reassign(single, apportion(len(single), live))
        self._loading.load_all()

    def _reassign(self, single: list[Instance], shares: dict[int, int]) -> None:
        """Aim instances so that each version has its share: those that give are the ones that lose least by it."""
        by_version: dict[int, list[Instance]] = defaultdict(list)
        for instance in single:
            by_version[_meant(instance)].append(instance)
        lacking = {v: n - len(by_version[v]) for v, n in shares.items() if n > len(by_version[v])}
        givers: list[Instance] = []
        for version, group in by_version.items():
            givers += _spare(group, len(group) - shares.get(version, 0), lacking)
        for instance in givers:  # what it still serves comes first: its work stays where it is; else the oldest version
            version = min(lacking.keys() & instance.held.keys(), default=min(lacking))
            self._m.fleet.aim(instance, (version,))
            decrement(lacking, version)

    def settle(self, instance: Instance) -> None:
        """An instance has nothing to do, or is new: aim it where most is lacking and load; O(live versions)."""
        if self._m.traits.balanced:
            self._aim_at_work(instance)
        elif not instance.target:
            self._m.fleet.aim(instance, (self._goal,))
        self._loading.load(instance)

    def _aim_at_work(self, instance: Instance) -> None:
        fleet = self._m.fleet
        live = self._work()
        held = instance.info.versions_held
        if held > 1:
            fleet.aim(instance, _oldest(live, held))
            return
        # Instances that serve several versions at once count for each; they only make the others' shares safer.
        shares = apportion(len(fleet.instances), live)
        present = _meant(instance)
        if present < 0 or fleet.assigned.get(present, 0) > shares.get(present, 0):
            lacking = [v for v in shares if shares[v] > fleet.assigned.get(v, 0)]
            fleet.aim(instance, (min(lacking, default=self._m.versions.available),))

    def _work(self) -> list[tuple[int, int]]:
        """Live versions with their unfinished trajectories, oldest first; the newest with those that may still start on it."""
        m = self._m
        newest = m.versions.available
        work = {version: n for version, n in m.groups.unfinished.items() if n}
        new = (len(m.groups.fresh) + self._intake.wanted()) * m.schedule.group_size
        if new or self._intake.open_ended or self._loading.due or not work:
            work[newest] = work.get(newest, 0) + max(1, new)
        return sorted(work.items())

    def pull(self, lane: int) -> None:
        """Free slots of a version take trajectories from instances that are meant for another one."""
        for source in list(self._m.fleet.leaving.get(lane, ())):
            if source.info.exports_kv and not self._move(source, lane, len(source.jobs)):
                return

    def relieve(self, event: InstanceReport) -> bool:
        """Note how full an instance is, and move work away when it is too full. True when it may take work again."""
        m = self._m
        instance = m.fleet.instances.get(event.instance)
        if instance is None or not m.traits.balanced or not instance.info.kv_tokens:
            return False
        share = event.kv_used / instance.info.kv_tokens
        hot = share > m.schedule.high_kv_use and bool(instance.jobs)
        cooled = instance.hot and not hot
        if hot != instance.hot:
            instance.hot = hot
            m.fleet.refresh(instance)
        if hot:
            self._shed(instance, 1 - m.schedule.high_kv_use / share)
        return cooled

    def _shed(self, instance: Instance, part: float) -> None:
        """Move this part of an instance's work away, where it can be moved."""
        if instance.info.exports_kv:
            surplus = ceil(len(instance.jobs) * part)
            for version in sorted(instance.held):
                self._move(instance, version, surplus)

    def _move(self, source: Instance, lane: int, most: int) -> bool:
        """Command moves of up to `most` trajectories of a version to free slots elsewhere. False when the free slots ran out."""
        if self._paused:
            return False
        fleet = self._m.fleet
        moves: dict[Instance, list[Sample]] = {}
        found_room = True
        for sample in islice(source.staying(lane), most):
            target = fleet.pick(lane, None)
            if target is None or target is source or not target.info.exports_kv:
                found_room = False
                break
            fleet.occupy(target, lane)
            sample.moving = True
            moves.setdefault(target, []).append(sample)
        for target, samples in moves.items():
            self._command(source, target, samples, lane)
        return found_room

    def _command(self, source: Instance, target: Instance, samples: list[Sample], lane: int) -> None:
        m = self._m
        command = m.out.next_id()
        for sample in samples:
            source.last(sample)
        self._moves[command] = (target, [_Move(sample, sample.command, sample.attempt) for sample in samples])
        keys = tuple((s.group.id, s.index) for s in samples)
        m.out.ask(Migrate(command, keys, source.name, target.name, lane))

    def failed(self, command: Migrate, error: str) -> None:
        """A move failed. Where both instances are up, what moves need is amiss (their directory): trying at once would go on for ever."""
        instances = self._m.fleet.instances
        if not self._paused and command.source in instances and command.target in instances:
            self._paused = True
            what = f"moving trajectories from {command.source} to {command.target} failed, and none is moved before the next version"
            self._m.out.warn(f"{what}: {error}")

    def migrated(self, event: Migrated) -> list[Instance]:
        """A migration ended: every reserved slot is used or freed. The instances whose slots changed hands."""
        migration = self._m.out.close(Migrate, event.command)
        if migration is None:
            return []
        moved = set(event.moved)
        assert moved <= set(migration.trajectories), f"{event!r} cannot answer {migration!r}"
        target, moves = self._moves.pop(event.command)
        touched = {target: None}
        for move in moves:
            sample = move.sample
            if move.runs:
                assert sample.instance is not None
                touched[sample.instance] = None
                sample.moving = False
            self._end_move(move, target, migration.version, (sample.group.id, sample.index) in moved)
        return [i for i in touched if self._is_up(i)]

    def _is_up(self, instance: Instance) -> bool:
        return self._m.fleet.instances.get(instance.name) is instance

    def _end_move(self, move: _Move, target: Instance, version: int, came: bool) -> None:
        """A trajectory came to its target, or did not: its slot there is used or freed, unless the target is gone."""
        up = self._is_up(target)
        if came and move.runs:
            self._arrive(move.sample, target if up else None)
        elif came and up and move.given_up:
            self._serving.abort_ghost(move.sample, move.attempt, target, version)
        elif up:
            self._m.fleet.vacate(target, version)

    def _arrive(self, sample: Sample, target: Instance | None) -> None:
        """A trajectory runs on the instance it moved to, or is lost with it."""
        source = sample.instance
        assert source is not None
        if target is None:
            self._serving.displace(sample)
            return
        del source.jobs[sample]
        self._m.fleet.vacate(source, sample.version)
        sample.instance = target
        target.jobs[sample] = None


def _meant(instance: Instance) -> int:
    """The version that an instance of one version is meant to serve; -1 for none."""
    return instance.target[0] if instance.target else -1


def _spare(group: list[Instance], count: int, lacking: dict[int, int]) -> list[Instance]:
    """Up to `count` instances of a version that lose least by another one: those that serve a lacking one anyway, then the emptiest."""
    # One that is loading finishes that first: otherwise short periods could keep it loading for ever.
    free = [i for i in group if i.loading is None]
    free.sort(key=lambda i: (lacking.keys().isdisjoint(i.held), len(i.jobs), i.index))
    return free[: max(0, count)]


def _oldest(live: list[tuple[int, int]], held: int) -> tuple[int, ...]:
    """Versions for an instance that serves `held` at once: newer ones wait for a place, or work that has begun would wait for one."""
    return tuple(version for version, _ in live[:held])
