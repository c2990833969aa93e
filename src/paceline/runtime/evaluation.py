"""Held-out evaluation on the rollout instances: greedy and sampled answers, judged by the run's own rewards.

Its requests have purpose `eval`, so their random numbers are their own; they pass neither the machine nor the board, so nothing of
them can enter training. Every request of one evaluation is generated under one version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from paceline.core.passk import pass_at_k
from paceline.ports.rollout import Failure
from paceline.types.errors import EngineError
from paceline.types.records import Prompt, Request, Sampling, ScoredGroup, Trajectory

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
    """What is asked: greedy or not, and how many sampled answers per problem."""

    prompts: tuple[Prompt, ...]
    greedy: bool
    samples: int
    sampling: Sampling
    """Of the sampled answers; the greedy one differs in temperature 0 and no filter."""
    seed: int
    outcome_names: tuple[str, ...]
    """Reward functions that tell right from wrong: an answer is correct when each that applies gives at least 1."""


@dataclass(frozen=True, slots=True)
class EvalCounts:
    """Answers of one kind, counted."""

    answers: int
    correct: int
    parsed: int
    """Answers in which a value could be read; equals `answers` where no function says so."""
    correct_parsed: int
    truncated: int


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluation of one version."""

    version: int
    update: int
    problems: int
    greedy: EvalCounts | None
    sampled: EvalCounts | None
    samples: int
    """Sampled answers per problem."""
    correct_of_samples: tuple[int, ...]
    """Per problem in order: how many of its sampled answers are correct (the input of pass@k)."""
    seconds: float

    def metrics(self) -> dict[str, float]:
        """Values for trackers, named `eval/...`."""
        row: dict[str, float] = {"eval/version": self.version, "eval/problems": self.problems, "eval/seconds": self.seconds}
        for name, counts in (("greedy", self.greedy), ("sampled", self.sampled)):
            if counts is not None:
                row[f"eval/{name}/accuracy"] = counts.correct / counts.answers
                row[f"eval/{name}/parsed_ratio"] = counts.parsed / counts.answers
                row[f"eval/{name}/accuracy_parsed"] = counts.correct_parsed / counts.parsed if counts.parsed else 0.0
                row[f"eval/{name}/truncated_ratio"] = counts.truncated / counts.answers
        if self.samples > 1:
            passed = [pass_at_k(self.samples, correct, self.samples) for correct in self.correct_of_samples]
            row[f"eval/pass@{self.samples}"] = sum(passed) / len(passed)
        return row

    def record(self) -> dict[str, object]:
        """All counts as JSON values."""
        return asdict(self)


class Evaluation:
    """Runs one plan at a time over the instances that serve the version."""

    def __init__(self, plan: EvalPlan, submit: Submit, cancel: Cancel, score: Score, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._submit = submit
        self._cancel = cancel
        self._score = score
        self._clock = clock
        self._open: dict[tuple[int, int], tuple[str, asyncio.Future[Trajectory]]] = {}

    async def run(self, instances: Sequence[str], version: int, update: int) -> EvalResult:
        """Generate and judge everything. Raises EngineError when an instance is lost or refuses, RewardError when a judge does."""
        if not instances:
            raise EngineError(f"no instance serves version {version}: it cannot be evaluated")
        began = self._clock()
        shares: dict[str, list[Request]] = {name: [] for name in instances}
        for request in self._requests(version):  # a problem stays on one instance, where its answers share the prompt
            name = instances[request.group % len(instances)]
            shares[name].append(request)
            self._open[request.group, request.sample] = (name, asyncio.get_running_loop().create_future())
        try:
            await asyncio.gather(*(self._submit(name, requests) for name, requests in shares.items() if requests))
            groups = await asyncio.gather(*(self._group(i, prompt) for i, prompt in enumerate(self._plan.prompts)))
        except BaseException:
            await self._abandon()
            raise
        finally:
            self._open.clear()
        return self._result(groups, version, update, self._clock() - began)

    async def _abandon(self) -> None:
        """Leave nothing of a failed evaluation on the instances: they must be idle to take new weights."""
        left = [(name, key) for key, (name, future) in self._open.items() if not future.done()]
        for _, future in self._open.values():
            future.cancel()
        await asyncio.gather(*(self._cancel(name, *key) for name, key in left))

    def ended(self, answer: Trajectory | Failure) -> None:
        """An instance finished a request of purpose `eval`."""
        _, future = self._open.get((answer.group, answer.sample), ("", None))
        if future is None or future.done():
            return
        if isinstance(answer, Failure):
            future.set_exception(EngineError(f"evaluation problem {answer.group}, answer {answer.sample}: {answer.error}"))
        else:
            future.set_result(answer)

    def lost(self, instance: str, reason: str) -> None:
        """An instance is gone: an evaluation that needs it fails at once."""
        for name, future in self._open.values():
            if name == instance and not future.done():
                future.set_exception(EngineError(f"instance {instance} was lost during the evaluation: {reason}"))

    def _requests(self, version: int) -> list[Request]:
        greedy = replace(self._plan.sampling, temperature=0.0, top_p=1.0, top_k=0)
        samples = [*([(GREEDY, greedy)] if self._plan.greedy else []), *((1 + i, self._plan.sampling) for i in range(self._plan.samples))]
        return [
            Request(group, sample, NO_ATTEMPT, prompt.ids, sampling, self._plan.seed, version, "eval")
            for group, prompt in enumerate(self._plan.prompts)
            for sample, sampling in samples
        ]

    async def _group(self, index: int, prompt: Prompt) -> ScoredGroup:
        samples = range(GREEDY if self._plan.greedy else GREEDY + 1, GREEDY + 1 + self._plan.samples)
        return await self._score(prompt, await asyncio.gather(*(self._open[index, sample][1] for sample in samples)))

    def _result(self, groups: Sequence[ScoredGroup], version: int, update: int, seconds: float) -> EvalResult:
        judged = [
            (trajectory, _correct(group, i, self._plan.outcome_names), _parsed(group, i))
            for group in groups
            for i, trajectory in enumerate(group.trajectories)
        ]
        greedy = [row for row in judged if row[0].sample == GREEDY]
        sampled = [row for row in judged if row[0].sample != GREEDY]
        right = [0] * len(groups)
        for trajectory, correct, _ in sampled:
            right[trajectory.group] += correct
        return EvalResult(
            version, update, len(groups), _counts(greedy), _counts(sampled), self._plan.samples, tuple(right) if sampled else (), seconds
        )


def _counts(judged: Sequence[tuple[Trajectory, bool, bool]]) -> EvalCounts | None:
    if not judged:
        return None
    return EvalCounts(
        answers=len(judged),
        correct=sum(correct for _, correct, _ in judged),
        parsed=sum(parsed for _, _, parsed in judged),
        correct_parsed=sum(correct and parsed for _, correct, parsed in judged),
        truncated=sum(trajectory.finish == "length" for trajectory, _, _ in judged),
    )


def _correct(group: ScoredGroup, position: int, names: Sequence[str]) -> bool:
    values = _applicable(group.parts, position, names)
    return bool(values) and min(values) >= 1.0


def _applicable(parts: Mapping[str, tuple[float | None, ...]], position: int, names: Sequence[str]) -> list[float]:
    return [value for name in names if (value := parts[name][position]) is not None]


def _parsed(group: ScoredGroup, position: int) -> bool:
    return all(scores[position].parsed is not False for scores in group.scores.values())
