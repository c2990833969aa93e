"""Rows of a reasoning-gym generator, and its own scorer.

A generator's row i depends on (its seed + i): two tasks whose seeds are closer than their size share rows. `RowTask.excluding` takes
them out.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from paceline.config.schema import TaskConfig
from paceline.tasks.rows import Row
from paceline.types.errors import ConfigError, DataError
from paceline.types.records import Prompt

_OWN_KEYS = ("size", "seed")


def rows(config: TaskConfig) -> Iterator[Row]:
    """`config.size` rows with columns question, answer and metadata. Raises ConfigError for the generator or a parameter."""
    dataset = _dataset(config.name, config.parameters, config.size, config.seed)
    for number in range(config.size):
        where = f"{config.name} row {number}"
        try:
            entry = dataset[number]
        # The generator is foreign code and has no common error class.
        except Exception as error:
            raise DataError(f"{where}: the generator raised {type(error).__name__}: {error}") from error
        gold = entry["answer"]
        yield Row(number, where, str(entry["question"]), None, None if gold is None else str(gold), dict(entry))


def scorer(name: str, parameters: Mapping[str, Any], size: int = 1, seed: int = 1) -> Callable[[Prompt, str], float]:
    """The generator's `score_answer` as a function of (prompt, answer); the row comes from the prompt's columns."""
    dataset = _dataset(name, parameters, size, seed)

    def _score(prompt: Prompt, answer: str) -> float:
        entry = {key: prompt.columns[key] for key in ("question", "answer", "metadata")}
        return float(dataset.score_answer(answer, entry))

    return _score


def scorers(tasks: Mapping[str, Mapping[str, Any]]) -> Callable[[Prompt, str], float]:
    """The scorers of several tasks as one, by the name of the prompt's task; `tasks`: arguments of `scorer` by that name."""
    known = {name: scorer(**arguments) for name, arguments in tasks.items()}
    return lambda prompt, answer: known[prompt.task](prompt, answer)


def _dataset(name: str, parameters: Mapping[str, Any], size: int, seed: int) -> Any:
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=5, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {len(DATASETS)}, e.g. {', '.join(sorted(DATASETS)[:5])}"
        raise ConfigError(f"task.name = {name!r}: reasoning-gym has no such generator; {hint}")
    _check_parameters(name, parameters)
    try:
        return create_dataset(name, size=size, seed=seed, **parameters)
    # Generators check their parameters with assertions, type errors and errors of their own.
    except Exception as error:
        shown = ", ".join(f"{key} = {value!r}" for key, value in parameters.items()) or "the defaults"
        raise ConfigError(f"task.parameters: {name} refuses {shown}: {error or type(error).__name__}") from error


def _check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in _OWN_KEYS]
    for key in parameters:
        if key in _OWN_KEYS:
            raise ConfigError(f"task.parameters.{key}: set task.{key} instead")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"task.parameters.{key}: {name} has no such parameter; {hint}it has {', '.join(known)}")
