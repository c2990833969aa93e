"""All rewards of a run together: a group of trajectories in, a ScoredGroup out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from paceline.config.schema import RewardConfig
from paceline.ports.data import Reward
from paceline.rewards.answers import Verifier
from paceline.rewards.bench import Bench
from paceline.rewards.functions import FunctionReward, Loop, Starts
from paceline.rewards.maths import MathVerifier
from paceline.rewards.resolve import resolve
from paceline.rewards.verifiers import MathReward, Scorer, TaskReward, VerifierReward
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Score, ScoredGroup, Trajectory
from paceline.types.signal import RIGHT

_SHOWN = 10
_ARGUMENTS = {
    "math": ("marker", "percent"),
    "numeric": ("marker", "which", "percent"),
    "exact": ("marker",),
    "task": ("answer", "marker"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One reward in the sum. `outcome`: it counts in the raw outcome that the group filter judges."""

    reward: Reward
    weight: float = 1.0
    outcome: bool = True


class Judge:
    """Scores groups. reward = sum of weight x value over the functions that apply (value not None); outcome = share of the `outcome`
    functions that apply whose value reaches 1, whatever their weight: partial credit is reward, and no outcome.

    With `permute_seed`, rewards and outcomes are permuted together within each group (a control experiment in which nothing can be
    learned); parts and scores stay with their trajectories, so that accuracy is still measured.
    """

    def __init__(self, parts: Sequence[Part], *, permute_seed: int | None = None, loop: Loop | None = None) -> None:
        """Raises ConfigError without any reward, without one that gives the outcome, for equal names and for weights that are not
        finite."""
        names = [part.reward.name for part in parts]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if not parts or not any(part.outcome for part in parts):
            raise ConfigError("reward: at least one with outcome = true, otherwise nothing tells right from wrong")
        if doubles:
            raise ConfigError(f"reward: names must differ, {', '.join(doubles)} occurs more than once (set `name`)")
        for part in parts:
            if not math.isfinite(part.weight):
                raise ConfigError(f"reward {part.reward.name}: weight = {part.weight} is not finite")
        self.parts = tuple(parts)
        self._permute_seed = permute_seed
        self._loop = loop

    def score_group(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> ScoredGroup:
        """Score all trajectories of one prompt; async functions run at the same time. The result is in order of `sample`.

        Raises RewardError naming function and row: a bad gold, an exception, a missed deadline, a value that is no finite number, or a
        trajectory to which no function, or no outcome function, applies.
        """
        assert trajectories, "a group has trajectories"
        ordered = sorted(trajectories, key=lambda t: t.sample)
        prompts = [prompt] * len(ordered)
        waiting = [_start(part.reward, prompts, ordered) for part in self.parts]
        scores = {part.reward.name: tuple(finish()) for part, finish in zip(self.parts, waiting, strict=True)}
        parts = {name: tuple(score.value for score in column) for name, column in scores.items()}
        rewards = [_weighted(self._given(parts, prompt, t, i, "reward")) for i, t in enumerate(ordered)]
        outcomes = [_share_right(self._given(parts, prompt, t, i, "outcome")) for i, t in enumerate(ordered)]
        if self._permute_seed is not None:
            order = _permutation(self._permute_seed, ordered[0].group, len(ordered))
            rewards, outcomes = [rewards[i] for i in order], [outcomes[i] for i in order]
        return ScoredGroup(ordered[0].group, prompt, tuple(ordered), tuple(rewards), tuple(outcomes), parts, scores)

    def problems(self, prompts: Sequence[Prompt]) -> list[list[str]]:
        """What is wrong with each row: a text for every reward that cannot use its gold or its columns. Nothing is generated for that."""
        found = [_problems(part.reward, prompts) for part in self.parts]
        names = [part.reward.name for part in self.parts]
        return [
            [f"reward {name}: {problem}" for name, problem in zip(names, problems, strict=True) if problem is not None]
            for problems in zip(*found, strict=True)
        ]

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raise RewardError for rows that have `problems`: each problem once, with its rows, at most 10 of both."""
        rows, bad, unread = list(prompts), 0, False
        ours = tuple(f"reward {part.reward.name}: " for part in self.parts if isinstance(part.reward, VerifierReward | MathReward))
        places: dict[tuple[str, str], list[Prompt]] = {}
        for prompt, problems in zip(rows, self.problems(rows), strict=True):
            bad += bool(problems)
            for problem in problems:
                places.setdefault((prompt.task, problem), []).append(prompt)
                unread |= problem.startswith(ours)
        if bad:
            lines = [f"{_rows(found)}, {problem}" for (_, problem), found in list(places.items())[:_SHOWN]]
            more = f"\n... and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
            way = "\nmend the rows or the reward" + "; task.bad_rows = 'skip' leaves rows out whose gold has no reading" * unread
            raise RewardError(f"{bad} row{'s' * (bad != 1)} cannot be judged:\n" + "\n".join(lines) + more + way)

    def prepare(self) -> None:
        """Start what rewards need before their first group, so that it counts against no deadline."""
        for part in self.parts:
            getattr(part.reward, "prepare", lambda: None)()

    def close(self) -> None:
        """Release the event loop of async functions and the processes of verifiers."""
        if self._loop is not None:
            self._loop.close()
        for part in self.parts:
            getattr(part.reward, "close", lambda: None)()

    def _given(
        self,
        parts: Mapping[str, tuple[float | None, ...]],
        prompt: Prompt,
        trajectory: Trajectory,
        i: int,
        kind: Literal["reward", "outcome"],
    ) -> list[tuple[float, float]]:
        """(weight, value) of the functions of a kind that apply to a trajectory, at least one."""
        counted = [(part.weight, parts[part.reward.name][i]) for part in self.parts if part.outcome or kind == "reward"]
        given = [(weight, value) for weight, value in counted if value is not None]
        if not given:
            which = f"(group {trajectory.group}, sample {trajectory.sample})"
            raise RewardError(f"no {kind} function applies to {prompt.place} {which}: all gave None")
        return given


def _rows(prompts: Sequence[Prompt]) -> str:
    """The rows of one task: the first by its whole name."""
    others = ", ".join(str(prompt.row) for prompt in prompts[1:_SHOWN])
    more = f" and {len(prompts) - _SHOWN} more" if len(prompts) > _SHOWN else ""
    return prompts[0].place + (f" and row{'s' * (len(prompts) > 2)} {others}{more}" if others else "")


def _weighted(given: Sequence[tuple[float, float]]) -> float:
    return sum(weight * value for weight, value in given)


def _share_right(given: Sequence[tuple[float, float]]) -> float:
    return sum(value >= RIGHT for _, value in given) / len(given)


def load_judge(
    configs: Sequence[RewardConfig], *, scorer: Scorer | None = None, permute_seed: int | None = None, verifiers: int = 1
) -> Judge:
    """The judge that the configuration describes. `scorer` is the task's own, for `kind = "task"`; `verifiers`: processes that compare
    side by side, for `kind = "math"`. Raises ConfigError with key and value."""
    loop = Loop()
    parts = [Part(_reward(config, scorer, loop, verifiers), config.weight, config.outcome) for config in configs]
    return Judge(parts, permute_seed=permute_seed, loop=loop)


def _reward(config: RewardConfig, scorer: Scorer | None, loop: Loop, verifiers: int) -> Reward:
    if config.kind == "function":
        if config.function is None:
            raise ConfigError("reward.function is missing: kind = 'function' needs `module:function` or `path/to/file.py:function`")
        function = resolve(config.function)
        return FunctionReward(
            function,
            name=config.name,
            signature=config.signature or "trl",
            arguments=config.arguments,
            timeout_s=config.timeout_s,
            loop=loop,
        )
    if config.function is not None:
        raise ConfigError(f"reward.function = {config.function!r} has no effect with kind = {config.kind!r}")
    name = config.name or config.kind
    unknown = sorted(set(config.arguments) - set(_ARGUMENTS[config.kind]))
    if unknown:
        raise ConfigError(
            f"reward {name}: unknown arguments {', '.join(unknown)}; {config.kind} takes {', '.join(_ARGUMENTS[config.kind])}"
        )
    arguments: dict[str, Any] = dict(config.arguments)
    if config.kind == "math":
        return MathReward(name, MathVerifier(timeout_s=config.timeout_s, bench=Bench(verifiers), **arguments))
    if config.kind != "task":
        return VerifierReward(name, Verifier(config.kind, **arguments))
    if scorer is None:
        raise ConfigError(
            "reward.kind = 'task': this task has no scorer of its own (reasoning_gym has); use math, numeric, exact or function"
        )
    return TaskReward(name, scorer, **arguments)


def _start(reward: Reward, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> partial[Sequence[Score]]:
    begun = reward.start(prompts, trajectories) if isinstance(reward, Starts) else partial(reward.score, prompts, trajectories)
    return partial(_finish, reward, begun, len(trajectories))


def _finish(reward: Reward, begun: Any, count: int) -> Sequence[Score]:
    scores: Sequence[Score] = begun()
    if len(scores) != count:
        raise RewardError(f"reward {reward.name} gave {len(scores)} scores for {count} trajectories")
    return scores


def _problems(reward: Reward, prompts: Sequence[Prompt]) -> Sequence[str | None]:
    """What each row lacks for a reward: asked of all rows at once where the reward offers `problems`, else of each by `check`."""
    together, check = getattr(reward, "problems", None), getattr(reward, "check", None)
    if together is not None:
        found: Sequence[str | None] = together(prompts)
        return found
    return [None if check is None else _problem(check, prompt) for prompt in prompts]


def _problem(check: Callable[[Prompt], None], prompt: Prompt) -> str | None:
    try:
        check(prompt)
    except RewardError as error:
        return str(error)
    return None


def _permutation(seed: int, group: int, count: int) -> list[int]:
    """Positions 0..count-1 sorted by a hash of (seed, group, position)."""
    return sorted(range(count), key=lambda i: hashlib.blake2b(f"permute/{seed}/{group}/{i}".encode(), digest_size=8).digest())
