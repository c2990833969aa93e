"""What becomes of trajectories: finished, failed, lost, aborted; and of groups, until they are trainable or terminal."""

from __future__ import annotations

from typing import Literal

from paceline.core.commands import Abort, Admit, Materialize, Terminal
from paceline.core.events import GroupMaterialized, TrajectoryFailed, TrajectoryFinished
from paceline.core.intake import Intake
from paceline.core.records import Group, Instance, Sample
from paceline.core.state import Machinery


class Serving:
    """Consumes the answers to Admit and Materialize; produces Materialize, Terminal and Abort."""

    def __init__(self, shared: Machinery, intake: Intake) -> None:
        self._m = shared
        self._intake = intake
        self._aborting: dict[int, Sample] = {}
        self._ghosts: dict[int, tuple[Instance, int]] = {}
        """Aborts of attempts that count as ended already, with the instance and the version whose slot they hold."""

    def claim(self, event: TrajectoryFinished | TrajectoryFailed) -> tuple[Sample, Instance] | None:
        """The sample whose present attempt the event answers, and the instance it ran on, its slot freed; None for an earlier attempt."""
        command = self._m.out.close(Admit, event.command)
        if command is None:
            return None
        asked = (command.group, command.sample, command.attempt)
        assert asked == (event.group, event.sample, event.attempt), f"{event!r} cannot answer {command!r}"
        sample = self._m.groups.live[command.group].samples[command.sample]
        return sample, self.release(sample)

    def release(self, sample: Sample) -> Instance:
        """Free the slot of a sample; one reserved for it elsewhere is freed when its migration is answered."""
        m = self._m
        instance = sample.instance
        assert instance is not None
        del instance.jobs[sample]
        m.fleet.vacate(instance, sample.version)
        sample.moving = False
        sample.instance = None
        sample.command = 0
        m.groups.flying -= 1
        sample.group.running -= 1
        return instance

    def finished(self, sample: Sample, event: TrajectoryFinished) -> bool:
        """A sample is done. True when its group is serving-complete."""
        group = sample.group
        assert group.version <= event.version_min, f"{event!r}: admitted under version {group.version}"
        assert event.version_max <= self._m.versions.newest, f"{event!r}: no such version"
        group.finished.append(sample.index)
        group.oldest = event.version_min if group.oldest < 0 else min(group.oldest, event.version_min)
        self._m.groups.unfinished[group.version] -= 1
        return self._complete(group)

    def failed(self, sample: Sample, error: str) -> bool:
        """An attempt failed: try again, or apply the failure policy. True when the group is serving-complete or terminal."""
        group, policy = sample.group, self._m.schedule.on_failure
        sample.failures += 1
        if sample.failures < self._m.schedule.attempts:
            self._wait_again(sample)
            return False
        what = f"group {group.id} sample {sample.index} failed {sample.failures} times, the last time with: {error}"
        if policy == "stop":
            self._m.fail_run(what)
            self._wait_again(sample)
            return False
        self._m.groups.unfinished[group.version] -= 1
        group.lost += 1
        if policy == "drop_group":
            self.end(group, "failed", what)
            return True
        return self._complete(group)

    def _wait_again(self, sample: Sample) -> None:
        sample.attempt += 1
        sample.group.waiting.append(sample.index)
        self._m.groups.queue(sample.group)

    def displaced(self, instance: Instance) -> None:
        """An instance is gone: its trajectories wait to be admitted again."""
        for sample in list(instance.jobs):
            self.displace(sample)
        for command in [c for c, (where, _) in self._ghosts.items() if where is instance]:
            self._m.out.close(Abort, command)
            del self._ghosts[command]

    def displace(self, sample: Sample) -> None:
        """A running attempt is lost without being a failure: it is admitted again."""
        out = self._m.out
        if out.close(Abort, sample.command) is not None:
            del self._aborting[sample.command]
            self.release(sample)
        else:
            out.close(Admit, sample.command)
            self.release(sample)
            self._wait_again(sample)

    def _complete(self, group: Group) -> bool:
        if group.running or group.waiting:
            return False
        m = self._m
        if len(group.finished) < min(2, m.schedule.group_size):
            self.end(group, "failed", f"{group.lost} of {m.schedule.group_size} samples failed")
            return True
        m.groups.serve(group)
        if group.oldest != group.version:
            m.groups.reversion(group, group.oldest)
        m.out.ask(Materialize(m.out.next_id(), group.id, tuple(sorted(group.finished))))
        return True

    def materialized(self, event: GroupMaterialized) -> None:
        """Rewards are back: the group is trainable, or falls out."""
        command = self._m.out.close(Materialize, event.command)
        if command is None:
            return
        assert command.group == event.group, f"{event!r} cannot answer {command!r}"
        group = self._m.groups.live[event.group]
        policy = self._m.schedule.no_signal
        if event.drop:
            self.end(group, "filtered", event.reason or "dropped", replace=policy == "refill")
        elif not event.signal and policy != "keep":
            self.end(group, "filtered", event.reason or "no signal", replace=policy == "refill")
        else:
            self._intake.fruitless = 0
            self._m.groups.make_ready(group)

    def unrewarded(self, command: int, error: str) -> None:
        """A group could not be materialized: it fails, and with it the run under the policy `stop`."""
        request = self._m.out.close(Materialize, command)
        assert request is not None
        what = f"group {request.group} could not be rewarded: {error}"
        if self._m.schedule.on_failure == "stop":
            self._m.fail_run(what)
        else:
            self.end(self._m.groups.live[request.group], "failed", what)

    def end(self, group: Group, state: Literal["filtered", "failed"], why: str, replace: bool = False) -> None:
        """A group is terminal without having trained: running samples are aborted."""
        m = self._m
        for sample in group.samples:
            if sample.command and sample.instance is not None:
                m.out.close(Admit, sample.command)
                self.abort(sample, why)
        self._intake.fruitless += group.state != "ready"
        m.groups.end(group)
        m.out.tell(Terminal(m.out.next_id(), group.id, state, why))
        self._intake.fell_out(group, replace)
        self._stop_when_fruitless(why)

    def _stop_when_fruitless(self, why: str) -> None:
        """A verifier that judges everything alike must not spin for ever."""
        m, fruitless, most = self._m, self._intake.fruitless, self._m.schedule.empty_limit
        if most and fruitless >= most * m.schedule.groups_per_publish and m.leaving is None:
            m.fail_run(f"{fruitless} groups in a row were filtered or failed (schedule.empty_limit = {most}); the last: {why}")

    def abort(self, sample: Sample, why: str) -> None:
        """End a running sample without a result. Its slot is free once the instance says so."""
        m = self._m
        instance = sample.instance
        assert instance is not None
        command = sample.command = m.out.next_id()
        self._aborting[command] = sample
        instance.last(sample)
        m.out.ask(Abort(command, sample.group.id, sample.index, sample.attempt, instance.name, why))

    def aborted(self, command: int) -> Instance | None:
        """An aborted trajectory holds its slot no longer. The instance that has one more free slot now."""
        if self._m.out.close(Abort, command) is None:
            return None
        ghost = self._ghosts.pop(command, None)
        if ghost is None:
            return self.release(self._aborting.pop(command))
        self._m.fleet.vacate(*ghost)
        return ghost[0]

    def abort_ghost(self, sample: Sample, attempt: int, instance: Instance, version: int) -> None:
        """An attempt that counts as ended turned up on an instance, in a slot of `version`: end it there too."""
        m = self._m
        command = m.out.next_id()
        self._ghosts[command] = (instance, version)
        m.out.ask(Abort(command, sample.group.id, sample.index, attempt, instance.name, "moved after it was given up"))
