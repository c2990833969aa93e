"""Worker factories over the fakes, with faults on demand; named `runtime_bodies:NAME` in specifications."""

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.ports.fakes.engine import FakeEngine
from paceline.ports.fakes.training import FakeTrainer
from paceline.ports.pool import WorkerBody
from paceline.runtime.bodies import RolloutBody, TrainerBody
from paceline.types.errors import EngineError, RewardError
from paceline.types.records import Prompt, Request, Score, ScoredGroup, Trajectory

STAYING_S = 0.001
"""Seconds that a tick sleeps while a trajectory stays: the thread that writes the ledger, for which it stays, gets the interpreter."""


class Once:
    """Something that happens the first time only, over all workers: a file remembers."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __bool__(self) -> bool:
        if not self.path.parent.name or self.path.exists():
            return False
        self.path.touch()
        return True


class Rollout(RolloutBody):
    """Decodes at one of `slow` ticks only. Dies while it decodes `dies_on` (a group), the first time; cannot be probed with `no_probe`, and
    probes too few tokens with `short_probe`, the first time if `once` is given; says and does nothing any more after its first requests when `silent`. A trajectory does not end
    while it `stays`."""

    def __init__(
        self, engine: FakeEngine, dies_on: int | None, once: str, no_probe: bool, short_probe: bool, silent: bool, slow: int,
        stays: Callable[[Request, int], bool] | None,
    ) -> None:  # fmt: skip
        super().__init__(engine)
        self.engine, self.stays = engine, stays
        self.slow, self.ticks = slow, 0
        self.silent, self.stuck = silent, False
        self.dies_on, self.once, self.no_probe = dies_on, Once(once), no_probe and (not once or bool(Once(once)))
        self.short_probe = short_probe and (not once or bool(Once(once)))

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "serve" and self.no_probe:
            raise EngineError("cannot probe: 4 pages, 1 free")
        if method == "serve" and self.short_probe:
            fingerprint, report = super().call(method, *arguments)
            return fingerprint, replace(report, logprobs=report.logprobs[1:])
        if (
            method == "submit"
            and any(request.group == self.dies_on and request.purpose == "train" for request in arguments[0])
            and self.once
        ):
            raise SystemExit(9)
        if self.stuck:
            return asyncio.Event().wait()
        self.stuck = self.silent and method == "submit"
        return super().call(method, *arguments)

    def tick(self) -> Any:
        self.ticks += 1
        staying = [job for job in self.engine._running if self.stays is not None and self.stays(job.request, job.version)]
        for job in staying:
            job.length = len(job.ids) + 4
        if staying:
            time.sleep(STAYING_S)
        return None if self.stuck else () if self.ticks % self.slow else super().tick()


def engine(
    instance: str,
    slots: int = 4,
    dies_on: int | None = None,
    once: str = "",
    fails_on: tuple[int, int] | None = None,
    failures: int = 1,
    wrong_checksum: bool = False,
    wrong_probe: bool = False,
    no_probe: bool = False,
    short_probe: bool = False,
    silent: bool = False,
    slow: int = 1,
    stays: Callable[[Request, int], bool] | None = None,
    **options: Any,
) -> WorkerBody:
    """`options`: what else the fake engine takes."""

    def fail(request: Request) -> str | None:
        return "out of luck" if (request.group, request.sample) == fails_on and request.attempt < failures else None

    def score(version: int, token: int) -> float:
        return -1.0 - ((token * 31 + version) % 7) + (0.5 if wrong_probe and version else 0.0)

    if wrong_checksum:
        options["checksum"] = lambda ref, location: "something else"
    return Rollout(
        FakeEngine(instance=instance, slots=slots, fail=fail, score=score, **options),
        dies_on,
        once,
        no_probe,
        short_probe,
        silent,
        slow,
        stays,
    )


class TrainerThat(TrainerBody):
    """Raises or dies at a step; never ends an export when it `hangs`; needs `takes_s` seconds for a dispatch; `diverges` at a step.
    Dies in its n-th call of a method, once over all workers: `dies_in` has (n, a file that remembers) by method. Finds no space for
    files of these names in the directory that it saves to: `no_space`."""

    def __init__(
        self, trainer: FakeTrainer, raises_at: int, dies_at: int, hangs: bool, takes_s: float, diverges: bool,
        dies_in: Mapping[str, tuple[int, str]], no_space: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__(trainer)
        self.dies_in, self.calls, self.no_space = dies_in, Counter[str](), no_space
        self.raises_at, self.dies_at, self.hangs, self.takes_s, self.steps = raises_at, dies_at, hangs, takes_s, 0
        self.diverges = diverges

    async def _slowly(self, *arguments: Any) -> Any:
        await asyncio.sleep(self.takes_s)
        return super().call("accumulate", *arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls[method] += 1
        number, once = self.dies_in.get(method, (0, ""))
        if self.calls[method] == number and Once(once):
            raise SystemExit(11)
        if method == "save":
            for name in self.no_space:
                fill(Path(arguments[0], name))
        if method == "accumulate" and self.takes_s:
            return self._slowly(*arguments)
        if method == "export" and self.hangs:
            return asyncio.Event().wait()
        if method == "publish" and self.diverges and self.steps:
            ref, probe = super().call(method, *arguments)
            return ref, replace(probe, logprobs=(math.nan, -1.0))
        if method == "step":
            self.steps += 1
            if self.steps == self.raises_at:
                raise ZeroDivisionError("the trainer divided by zero")
            if self.steps == self.dies_at:
                raise SystemExit(11)
        return super().call(method, *arguments)


def trainer(
    raises_at: int = 0, dies_at: int = 0, hangs: bool = False, takes_s: float = 0.0, diverges: bool = False,
    dies_in: Mapping[str, tuple[int, str]] | None = None, no_space: Sequence[str] = (),
) -> WorkerBody:  # fmt: skip
    return TrainerThat(FakeTrainer(), raises_at, dies_at, hangs, takes_s, diverges, dies_in or {}, no_space)


def fill(path: Path) -> None:
    """Let this process find no space when it writes `path` whole: the file that it writes aside is one that is always full."""
    path.with_name(f".{path.name}.{os.getpid()}.tmp").symlink_to("/dev/full")


class JudgeOf:
    """Rewards by the length of the answer, equal ones for all groups or for those of one row; raises or hangs on a group of training, or dies on one, only the first time if `once` is given. Dies while it checks the rows, once, when the file `after` is there."""

    def __init__(
        self,
        raises_on: int | None,
        hangs_on: int | None,
        equal: bool,
        rounding: bool = False,
        dies_on: int | None = None,
        once: str = "",
        equal_on: int | None = None,
        after: str = "",
    ) -> None:
        self.equal_on, self.after = equal_on, after
        self.dies_on, self.once = dies_on, once
        self.raises_on, self.hangs_on, self.equal, self.rounding = raises_on, hangs_on, equal, rounding

    def call(self, method: str, *arguments: Any) -> Any:
        return {"score": self.score, "check": self.check}[method](*arguments)

    def check(self, prompts: Sequence[Prompt]) -> None:
        if self.after and Path(self.after).exists() and Once(f"{self.after}-too"):
            raise SystemExit(9)
        for prompt in prompts:
            if prompt.gold == "bad":
                raise RewardError(f"row {prompt.row} of {prompt.task}: gold 'bad'")

    def score(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> Any:
        training = trajectories[0].purpose == "train"
        if training and prompt.index == self.hangs_on:
            return asyncio.Event().wait()
        if training and prompt.index == self.dies_on and (not self.once or Once(self.once)):
            raise SystemExit(9)
        if training and prompt.index == self.raises_on:
            raise RewardError(f"reward lengthy raised ValueError on row {prompt.row}: no")
        equal = self.equal or prompt.row == self.equal_on
        values = tuple(1.0 if equal or len(t.ids) % 2 else 0.0 for t in trajectories)
        if self.rounding:
            values = tuple((0.1 + 0.2, 0.3)[i % 2] for i in range(len(trajectories)))
        scores = tuple(Score(value, parsed=True) for value in values)
        return ScoredGroup(trajectories[0].group, prompt, tuple(trajectories), values, values, {"lengthy": values}, {"lengthy": scores})

    def tick(self) -> None:
        return None

    def close(self) -> None:
        pass


def judge(
    raises_on: int | None = None, hangs_on: int | None = None, equal: bool = False, rounding: bool = False, dies_on: int | None = None,
    once: str = "", equal_on: int | None = None, after: str = "",
) -> WorkerBody:  # fmt: skip
    return JudgeOf(raises_on, hangs_on, equal, rounding, dies_on, once, equal_on, after)
