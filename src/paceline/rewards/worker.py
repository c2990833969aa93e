"""Rewards in a worker process of their own: off the event loop, and replaceable when an answer hangs in code that no signal reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.config.schema import RewardConfig
from paceline.rewards.judge import Judge, load_judge
from paceline.rewards.resolve import resolve
from paceline.types.errors import RewardError


class JudgeBody:
    """WorkerBody over a Judge: `score(prompt, trajectories) -> ScoredGroup`, `check(prompts) -> None`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call; RewardError travels back to the caller."""
        if method == "score":
            return self._judge.score_group(*arguments)
        if method == "check":
            return self._judge.check(*arguments)
        raise RewardError(f"a reward worker answers `score` and `check`, not {method!r}")

    def tick(self) -> Sequence[Any] | None:
        """A judge has no work of its own."""
        return None

    def close(self) -> None:
        """Release the event loop of async functions."""
        self._judge.close()


def create(
    rewards: Sequence[Mapping[str, Any]],
    scorer: str | None = None,
    scorer_arguments: Mapping[str, Any] | None = None,
    permute_seed: int | None = None,
    verifiers: int = 1,
) -> JudgeBody:
    """Build the body inside the worker from plain data; verifier processes are up when it returns.

    rewards: dumps of RewardConfig. scorer: `module:function` that is called with `scorer_arguments` and returns the task's scorer, e.g.
    `paceline.tasks.gym:scorer`. verifiers: processes that compare answers side by side, for `math`. Raises ConfigError when a reward
    cannot be built.
    """
    own = resolve(scorer)(**(scorer_arguments or {})) if scorer is not None else None
    configs = [RewardConfig.model_validate(dict(reward)) for reward in rewards]
    judge = load_judge(configs, scorer=own, permute_seed=permute_seed, verifiers=verifiers)
    judge.prepare()
    return JudgeBody(judge)
