"""What of a configuration matters where a model is scored and none is trained."""

from __future__ import annotations

from paceline.config.schema import Config
from paceline.types.errors import ConfigError


def only_scoring(config: Config) -> Config:
    """The configuration with `eval.task` as its one task: whoever scores a model need not have the rows that it was trained on.

    Raises ConfigError where a model cannot be scored with it: its engine pretends, or no problems are named.
    """
    if config.rollout.engine == "emulated":
        raise ConfigError("rollout.engine = emulated: its answers are pretended and its trainer has no weights: there is nothing to score")
    if config.eval.task is None:
        raise ConfigError("eval.task is unset: say which problems to score, e.g. eval.task.kind=file eval.task.path=test.jsonl")
    return config.model_copy(update={"task": config.eval.task, "mix": ()})
