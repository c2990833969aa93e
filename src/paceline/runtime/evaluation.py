"""Held-out evaluation on the rollout instances: greedy and sampled answers, judged by the run's own rewards.

Its requests have purpose `eval`, so their random numbers are their own; they pass neither the machine nor the board, so nothing of
them can enter training. Every request of one evaluation is generated under one version. What a lost instance owed is asked of the
others: an answer depends on the request alone, not on who gives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from paceline.ports.rollout import Failure
from paceline.types.errors import EngineError, WorkerLost
from paceline.types.records import VERSION, Prompt, Request, Sampling, ScoredGroup, Trajectory
from paceline.types.results import Answers, Verdict
from paceline.types.signal import RIGHT

NO_ATTEMPT = -1
"""Attempt number of evaluation requests: no admission of the machine has it."""
GREEDY = 0
"""Sample number of the greedy answer; the sampled ones follow it."""

Submit = Callable[[str, Sequence[Request]], Awaitable[None]]
Cancel = Callable[[str, int, int], Awaitable[None]]
"""(instance, group, sample)."""
Score = Callable[[Prompt, Sequence[Trajectory]], Awaitable[ScoredGroup]]


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is asked of every problem. At least one of `greedy` and `samples` asks for an answer."""

    prompts: tuple[Prompt, ...]
    greedy: bool
    samples: int
    """Sampled answers per problem."""
    sampling: Sampling
    """Of the sampled answers; the greedy one differs in temperature 0 and no filter."""
    seed: int
    outcome_names: tuple[str, ...]
    """Reward functions that tell right from wrong: an answer is correct when each that applies gives at least 1."""


@dataclass(slots=True)
class _Owed:
    """A request, who has it, and its answer."""

    request: Request
    instance: str
    answer: asyncio.Future[Trajectory]


class Evaluation:
    """Runs one plan, one evaluation at a time."""

    def __init__(self, plan: EvalPlan, submit: Submit, cancel: Cancel, score: Score) -> None:
        self.plan = plan
        self._submit = submit
        self._cancel = cancel
        self._score = score
        self._open: dict[tuple[int, int], _Owed] = {}
        self._outbox: asyncio.Queue[dict[str, list[Request]]] = asyncio.Queue()
        self._serving: list[str] = []
        """Instances that can be asked."""
        self._version = 0

    async def run(self, instances: Sequence[str], version: int) -> list[Answers]:
        """Generate and judge everything on instances that serve `version`; problems stay in order.

        Raises EngineError when the last of them is lost, or one refuses a request or samples under another version, RewardError when a
        judge fails.
        """
        if not instances:
            raise EngineError(f"no instance serves version {version}: it cannot be evaluated")
        self._version, self._serving, self._outbox = version, list(instances), asyncio.Queue()
        future = asyncio.get_running_loop().create_future
        self._open = {(request.group, request.sample): _Owed(request, "", future()) for request in self._requests(version)}
        self._share_out(self._open.values())
        sending = asyncio.ensure_future(self._send())
        judging = asyncio.gather(*(self._group(i, prompt) for i, prompt in enumerate(self.plan.prompts)))
        both: tuple[asyncio.Future[Any], ...] = (sending, judging)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            groups = judging.result() if judging.done() else sending.result()
        except BaseException:
            await self._abandon()
            raise
        finally:
            for work in both:
                work.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._open, self._serving = {}, []
        return [_answers(group, self.plan.outcome_names) for group in groups]

    def _share_out(self, owed: Iterable[_Owed]) -> None:
        """Ask for answers. A problem stays on one instance, where its answers share the prompt."""
        shares: dict[str, list[Request]] = {}
        for one in owed:
            one.instance = self._serving[one.request.group % len(self._serving)]
            shares.setdefault(one.instance, []).append(one.request)
        self._outbox.put_nowait(shares)

    async def _send(self) -> NoReturn:
        """Submit what is shared out, until cancelled."""
        while True:
            shares = await self._outbox.get()
            await asyncio.gather(*(self._ask(name, requests) for name, requests in shares.items()))

    async def _ask(self, name: str, requests: Sequence[Request]) -> None:
        if name not in self._serving:  # it was lost meanwhile, and these are others' work by now
            return
        try:
            await self._submit(name, requests)
        except WorkerLost as error:  # its loss may be told later than it is felt
            self.lost(name, str(error))

    def ended(self, answer: Trajectory | Failure) -> None:
        """An instance finished a request that is not the machine's."""
        owed = self._open.get((answer.group, answer.sample))
        if owed is None or owed.answer.done() or answer.attempt != NO_ATTEMPT:
            return
        if isinstance(answer, Trajectory) and (answer.columns[VERSION] == self._version).all():
            owed.answer.set_result(answer)
            return
        error = answer.error if isinstance(answer, Failure) else f"it has tokens of another version than {self._version}"
        owed.answer.set_exception(EngineError(f"evaluation problem {answer.group}, answer {answer.sample}: {error}"))

    def lost(self, instance: str, reason: str) -> None:
        """An instance is gone: what it owes is asked of the others. Where there is none the evaluation fails at once."""
        if instance not in self._serving:
            return
        self._serving.remove(instance)
        owed = [one for one in self._open.values() if one.instance == instance and not one.answer.done()]
        if self._serving:
            return self._share_out(owed)
        what = f"instance {instance} was lost during the evaluation, and no other serves version {self._version}: {reason}"
        for one in owed:
            one.answer.set_exception(EngineError(what))

    async def _abandon(self) -> None:
        """Leave nothing of a failed evaluation on the instances: they must be idle to take new weights."""
        left = [(one.instance, key) for key, one in self._open.items() if not one.answer.done()]
        for one in self._open.values():
            one.answer.cancel()
        await asyncio.gather(*(self._cancel(name, *key) for name, key in left))

    def _requests(self, version: int) -> list[Request]:
        greedy = replace(self.plan.sampling, temperature=0.0, top_p=1.0, top_k=0)
        samples = [(sample, greedy if sample == GREEDY else self.plan.sampling) for sample in self._samples()]
        return [
            Request(group, sample, NO_ATTEMPT, prompt.ids, sampling, self.plan.seed, version, "eval")
            for group, prompt in enumerate(self.plan.prompts)
            for sample, sampling in samples
        ]

    def _samples(self) -> range:
        return range(GREEDY if self.plan.greedy else GREEDY + 1, GREEDY + 1 + self.plan.samples)

    async def _group(self, index: int, prompt: Prompt) -> ScoredGroup:
        return await self._score(prompt, await asyncio.gather(*(self._open[index, sample].answer for sample in self._samples())))


def _answers(group: ScoredGroup, names: Sequence[str]) -> Answers:
    verdicts = {t.sample: Verdict(_correct(group, i, names), _parsed(group, i)) for i, t in enumerate(group.trajectories)}
    return Answers(verdicts.pop(GREEDY, None), tuple(verdicts.values()))


def _correct(group: ScoredGroup, position: int, names: Sequence[str]) -> bool:
    values = [value for name in names if (value := group.parts[name][position]) is not None]
    return bool(values) and min(values) >= RIGHT


def _parsed(group: ScoredGroup, position: int) -> bool | None:
    """Whether every function that looks for an answer could read one; None where none says so."""
    known = [parsed for scores in group.scores.values() if (parsed := scores[position].parsed) is not None]
    return all(known) if known else None
