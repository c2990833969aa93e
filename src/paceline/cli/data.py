"""What the data worker does: tasks read and rendered, as plain values that travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from paceline.config.inspect import task_sections
from paceline.config.schema import Config, TaskConfig
from paceline.rewards import load_judge
from paceline.tasks.render import Tokenizer
from paceline.tasks.task import RowTask, load
from paceline.types.errors import ConfigError, DataError
from paceline.types.records import Prompt

VERIFIERS = ("math", "numeric", "exact")
"""Kinds of rewards that compare with the gold."""
EVAL_ORDER = 0
"""Seed of the order in which an evaluation's problems are taken."""


@contextmanager
def placed(section: str) -> Iterator[None]:
    """Errors about a task name keys as those of `[task]`; say so where it is another section that they are of."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if section == "task":
            raise
        raise type(error)(f"{error}\n(this task is [{section}]: its keys begin with {section}.)") from error


class DataBody:
    """WorkerBody with two methods, `load` and `contents`."""

    def __init__(
        self, config: Config, tokenizer: Tokenizer, positions: int | None = None, contents: Callable[[], dict[str, str]] = dict
    ) -> None:
        """positions: tokens that the model can hold in one text; None = unknown. Raises ConfigError when none is left for a prompt.

        contents: fingerprints of the files that the configuration names.
        """
        self._contents = contents
        self._config = config
        self._tokenizer = tokenizer
        most, sampled = config.rollout.max_prompt_tokens, config.rollout.max_tokens
        self._limit = most if positions is None else min(most, positions - sampled)
        self._why = (
            "" if self._limit == most else f"the model's {positions} positions less rollout.max_tokens = {sampled} leave {self._limit}"
        )
        if self._limit < 1:
            raise ConfigError(f"rollout.max_tokens = {sampled}: the model has {positions} positions, which leave none for a prompt")

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer `load(training, evaluation)` or `contents()`."""
        assert method in ("load", "contents"), f"a data worker has no method {method}"
        return self._load(*arguments) if method == "load" else self._contents()

    def tick(self) -> Sequence[Any] | None:
        """No work of its own."""
        return None

    def close(self) -> None:
        """Nothing outlives the process."""

    def _load(self, training: bool, evaluation: bool) -> tuple[list[dict[str, Any]], tuple[Prompt, ...]]:
        """Arguments of the RowTask of every training task, and the evaluation's problems; empty where not asked for."""
        settings = self._config.eval
        needed = evaluation or (training and settings.hold_out)
        tasks = task_sections(self._config)
        judged = tasks.pop("eval.task", None)
        problems = self._problems(judged) if needed and judged is not None else ()
        held_out = {problem.text for problem in problems} if settings.hold_out else set()
        rows = [self._rows(section, task, held_out) for section, task in tasks.items()] if training else []
        return rows, problems if evaluation else ()

    def _rows(self, section: str, config: TaskConfig, held_out: set[str]) -> dict[str, Any]:
        with placed(section):
            task = self._task(config, self._config.run.seed).excluding(held_out)
        return {
            "prompts": task.every_row(),
            "seed": self._config.run.seed,
            "shuffle": config.shuffle,
            "counts": task.counts,
            "skipped": task.skipped,
        }

    def _problems(self, config: TaskConfig) -> tuple[Prompt, ...]:
        """The same problems whatever the run's seed, so that runs can be compared."""
        with placed("eval.task"):
            task = self._task(config, EVAL_ORDER)
        return tuple(task.prompt(position) for position in range(min(self._config.eval.problems, len(task))))

    def _task(self, config: TaskConfig, seed: int) -> RowTask:
        over_limit = self._config.rollout.over_limit
        try:
            task = load(config, self._tokenizer, seed=seed, max_prompt_tokens=self._limit, over_limit=over_limit)
        except DataError as error:
            if not self._why:
                raise
            raise DataError(f"{error}\n({self._why} tokens for a prompt)") from error
        return task.without(self._without_reading(task.every_row())) if config.bad_rows == "skip" else task

    def _without_reading(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        """Rows whose gold no verifier of ours can read, and why. What a user's function needs of a row is no fault of the row."""
        verifiers = [reward.model_copy(update={"outcome": True}) for reward in self._config.reward if reward.kind in VERIFIERS]
        if not verifiers:
            return {}
        with closing(load_judge(verifiers, verifiers=self._config.pool.verifiers)) as judge:
            return {p.row: "; ".join(found) for p, found in zip(prompts, judge.problems(prompts), strict=True) if found}
