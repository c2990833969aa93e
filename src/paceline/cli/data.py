"""What the data worker does: tasks read and rendered, as plain values that travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.config.schema import Config, TaskConfig
from paceline.tasks.render import Tokenizer
from paceline.tasks.task import RowTask, excluding, load
from paceline.types.errors import ConfigError
from paceline.types.records import Prompt


class DataBody:
    """WorkerBody with one method, `load`."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer `load(training, evaluation)`."""
        assert method == "load", f"a data worker has no method {method}"
        return self._load(*arguments)

    def tick(self) -> Sequence[Any] | None:
        """No work of its own."""
        return None

    def close(self) -> None:
        """Nothing outlives the process."""

    def _load(self, training: bool, evaluation: bool) -> tuple[dict[str, Any] | None, tuple[Prompt, ...], int]:
        """Arguments of the training RowTask (None if not asked for), the held-out problems, and how many of those were excluded."""
        task = self._task(self._config.task) if training else None
        rows = None
        if task is not None:
            prompts = sorted((task.prompt(position) for position in range(len(task))), key=lambda prompt: prompt.row)
            rows = {
                "prompts": prompts,
                "seed": self._config.run.seed,
                "shuffle": self._config.task.shuffle,
                "counts": task.counts,
                "skipped": task.skipped,
            }
        return rows, *(self._problems(task) if evaluation else ((), 0))

    def _problems(self, training: RowTask | None) -> tuple[tuple[Prompt, ...], int]:
        settings = self._config.eval
        if settings.task is None:
            raise ConfigError("eval.task is unset: there is nothing to evaluate")
        task = self._task(settings.task)
        if settings.exclude_training and training is not None:
            task = excluding(task, training)
        count = min(settings.problems, len(task))
        return tuple(task.prompt(position) for position in range(count)), task.counts.get("excluded", 0)

    def _task(self, config: TaskConfig) -> RowTask:
        rollout = self._config.rollout
        return load(
            config,
            self._tokenizer,
            seed=self._config.run.seed,
            max_prompt_tokens=rollout.max_prompt_tokens,
            over_limit=rollout.over_limit,
        )
