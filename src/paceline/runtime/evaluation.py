"""Held-out evaluation on the rollout instances: greedy and sampled answers, judged by the run's own rewards.

Its requests have purpose `eval`, so their random numbers are their own; they pass neither the machine nor the board, so nothing of
them can enter training. Every request of one evaluation is generated under one version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from paceline.ports.rollout import Failure
from paceline.types.errors import EngineError
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


class Evaluation:
    """Runs one plan, one evaluation at a time."""

    def __init__(self, plan: EvalPlan, submit: Submit, cancel: Cancel, score: Score) -> None:
        self.plan = plan
        self._submit = submit
        self._cancel = cancel
        self._score = score
        self._open: dict[tuple[int, int], tuple[str, asyncio.Future[Trajectory]]] = {}
        self._version = 0

    async def run(self, instances: Sequence[str], version: int) -> list[Answers]:
        """Generate and judge everything on instances that serve `version`; problems stay in order.

        Raises EngineError when an instance is lost, refuses a request or samples under another version, RewardError when a judge fails.
        """
        self._version = version
        if not instances:
            raise EngineError(f"no instance serves version {version}: it cannot be evaluated")
        shares: dict[str, list[Request]] = {name: [] for name in instances}
        for request in self._requests(version):  # a problem stays on one instance, where its answers share the prompt
            name = instances[request.group % len(instances)]
            shares[name].append(request)
            self._open[request.group, request.sample] = (name, asyncio.get_running_loop().create_future())
        try:
            await asyncio.gather(*(self._submit(name, requests) for name, requests in shares.items() if requests))
            groups = await asyncio.gather(*(self._group(i, prompt) for i, prompt in enumerate(self.plan.prompts)))
        except BaseException:
            await self._abandon()
            raise
        finally:
            self._open.clear()
        return [_answers(group, self.plan.outcome_names) for group in groups]

    def ended(self, answer: Trajectory | Failure) -> None:
        """An instance finished a request that is not the machine's."""
        _, future = self._open.get((answer.group, answer.sample), ("", None))
        if future is None or future.done() or answer.attempt != NO_ATTEMPT:
            return
        if isinstance(answer, Trajectory) and (answer.columns[VERSION] == self._version).all():
            future.set_result(answer)
            return
        error = answer.error if isinstance(answer, Failure) else f"it has tokens of another version than {self._version}"
        future.set_exception(EngineError(f"evaluation problem {answer.group}, answer {answer.sample}: {error}"))

    def lost(self, instance: str, reason: str) -> None:
        """An instance is gone: an evaluation that needs it fails at once."""
        for name, future in self._open.values():
            if name == instance and not future.done():
                future.set_exception(EngineError(f"instance {instance} was lost during the evaluation: {reason}"))

    async def _abandon(self) -> None:
        """Leave nothing of a failed evaluation on the instances: they must be idle to take new weights."""
        left = [(name, key) for key, (name, future) in self._open.items() if not future.done()]
        for _, future in self._open.values():
            future.cancel()
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
        return await self._score(prompt, await asyncio.gather(*(self._open[index, sample][1] for sample in self._samples())))


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
