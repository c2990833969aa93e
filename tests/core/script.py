"""A script for exact scenarios: one method per answer, each returns the commands of that step."""

from __future__ import annotations

from typing import Any

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.machine import Machine
from paceline.core.schedule import Resume, Schedule
from paceline.types.weights import InstanceInfo


class Script:
    """Feeds a machine by hand and finds the open command that an answer belongs to."""

    def __init__(self, schedule: Schedule, resume: Resume | None = None) -> None:
        self.machine = Machine(schedule, resume)
        self.now = 0.0
        self.sent: list[Any] = []
        self.prompt = resume.next_index if resume else 0

    def feed(self, event: Any, now: float | None = None) -> list[Any]:
        self.now = self.now if now is None else now
        commands = self.machine.step(event, self.now)
        self.sent += commands
        return commands

    def last(self, kind: type[Any], **match: Any) -> Any:
        """The newest command of a kind whose fields match."""
        return next(x for x in reversed(self.sent) if isinstance(x, kind) and all(getattr(x, k) == v for k, v in match.items()))

    def of(self, kind: type[Any]) -> list[Any]:
        return [x for x in self.sent if isinstance(x, kind)]

    def up(self, name: str = "a", slots: int = 8, **capabilities: Any) -> list[Any]:
        return self.feed(e.InstanceUp(InstanceInfo(name, slots, **capabilities)))

    def lost(self, name: str = "a") -> list[Any]:
        return self.feed(e.InstanceLost(name, "killed"))

    def published(self) -> list[Any]:
        command = self.last(c.Publish)
        return self.feed(e.Published(command.id, command.version, "f"))

    def live(self, name: str = "a") -> list[Any]:
        command = self.last(c.LoadWeights, instance=name)
        return self.feed(e.WeightsLive(command.id, name, command.version, "f", 0.0, 1.0))

    def prompts(self, count: int | None = None) -> list[Any]:
        """Answer the newest request, with fewer prompts than it asked for if told."""
        command = self.last(c.RequestPrompts)
        got = tuple(range(self.prompt, self.prompt + (command.count if count is None else count)))
        self.prompt += len(got)
        return self.feed(e.PromptsArrived(command.id, got))

    def admit(self, group: int, sample: int) -> Any:
        return self.last(c.Admit, group=group, sample=sample)

    def finish(self, group: int, sample: int = 0, tokens: int = 5, version: int | None = None) -> list[Any]:
        a = self.admit(group, sample)
        v = a.version if version is None else version
        return self.feed(e.TrajectoryFinished(a.id, group, sample, a.attempt, a.instance, tokens, v, v))

    def fail(self, group: int, sample: int = 0) -> list[Any]:
        a = self.admit(group, sample)
        return self.feed(e.TrajectoryFailed(a.id, group, sample, a.attempt, a.instance, "boom"))

    def reward(self, group: int, signal: bool = True, drop: bool = False) -> list[Any]:
        command = self.last(c.Materialize, group=group)
        return self.feed(e.GroupMaterialized(command.id, group, signal, len(command.samples), "because" if drop else "", drop))

    def serve(self, group: int, size: int = 1, signal: bool = True) -> list[Any]:
        """Finish all samples of a group and reward it."""
        for sample in range(size):
            self.finish(group, sample)
        return self.reward(group, signal)

    def consumed(self) -> list[Any]:
        return self.feed(e.DispatchConsumed(self.last(c.Dispatch).id))

    def updated(self, applied: bool = True) -> list[Any]:
        command = self.last(c.Dispatch)
        return self.feed(e.UpdateFinished(command.id, command.update, applied))

    def evaluated(self) -> list[Any]:
        return self.feed(e.Evaluated(self.last(c.Evaluate).id))

    def saved(self) -> list[Any]:
        command = self.last(c.Checkpoint)
        return self.feed(e.CheckpointDone(command.id, command.update))

    def begin(self, *names: str, slots: int = 8, **capabilities: Any) -> list[Any]:
        """Start, bring instances up, publish version 0 and make it live; prompts are not sent yet."""
        self.feed(e.Started())
        for name in names or ("a",):
            self.up(name, slots, **capabilities)
        self.published()
        return [x for name in names or ("a",) for x in self.live(name)]


def admitted(commands: list[Any]) -> list[tuple[int, int, int, str, int]]:
    """(group, sample, attempt, instance, version) of every Admit."""
    return [(x.group, x.sample, x.attempt, x.instance, x.version) for x in commands if isinstance(x, c.Admit)]


def kinds(commands: list[Any]) -> list[str]:
    """Names of the commands."""
    return [type(x).__name__ for x in commands]
