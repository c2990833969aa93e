"""A user's reward function with the signature of TRL's GRPOTrainer, sync or async.

    def reward(prompts, completions, completion_ids, **columns) -> list[float | None]

Called with keyword arguments, one list entry per trajectory: `prompts` and `completions` (text; for a conversational row lists of
messages), `completion_ids` (the sampled ids), every column of the row by its name, `gold`, and the reward's `arguments` as they are. A
function without `**columns` gets only what it names. `trainer_state`, `log_extra` and `log_metric` do not exist here: a function that
requires them is refused.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
import numbers
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Score, Trajectory

Finish = Callable[[], Sequence[Score]]
_GRACE_S = 1.0
_LONGEST = 2000
"""Characters of an exception's text that are told."""


@runtime_checkable
class Starts(Protocol):
    """A reward that can work while others do: `start` begins, the returned function waits for the scores."""

    def start(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Finish:
        """Begin scoring; an async function then runs beside whatever the caller does next."""


class TooLate(Exception):
    """Our own deadline has passed: a TimeoutError may be the function's own, e.g. of a client it calls."""


class Loop:
    """An event loop in a thread of its own, started on first use, so that clients bound to a loop live across calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, awaitable: Awaitable[Any], timeout_s: float) -> concurrent.futures.Future[Any]:
        """Run `awaitable`; the future fails with TooLate after `timeout_s` seconds."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="paceline-rewards", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(_within(awaitable, timeout_s), self._loop)

    def close(self) -> None:
        """Stop the loop; idempotent."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _within(awaitable: Awaitable[Any], timeout_s: float) -> Any:
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await awaitable
    except TimeoutError:
        if not deadline.expired():
            raise
        raise TooLate from None


class FunctionReward:
    """One function as a Reward. Whatever goes wrong in it becomes a RewardError that names it and the row."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
        loop: Loop | None = None,
    ) -> None:
        """timeout_s: seconds for one call of an async function; a sync one can only be stopped from outside, with its process."""
        self.name = name or function_name(function)
        self._function = function
        self._arguments = dict(arguments or {})
        self._timeout_s = timeout_s
        self._loop = loop or Loop()
        self._parameters, self._takes_all = _signature(function, self.name)
        unknown = sorted(set(self._arguments) - set(self._parameters))
        if unknown and not self._takes_all:
            raise ConfigError(f"reward {self.name}: arguments {', '.join(unknown)} are no parameters of the function")

    def check(self, prompt: Prompt) -> None:
        """Raise RewardError when the row lacks what the function requires."""
        problem = self._missing(self._keywords([prompt], []))
        if problem is not None:
            raise RewardError(problem)

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order; see `start`."""
        return self.start(prompts, trajectories)()

    def start(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Finish:
        """Call the function: a sync one is done when this returns, an async one runs on; the returned function gives the scores."""
        row = _describe(prompts, trajectories)
        keywords = self._keywords(prompts, trajectories)
        problem = self._missing(keywords)
        if problem is not None:
            raise RewardError(f"reward {self.name} on {row}: {problem}")
        try:
            outcome = self._function(**self._accepted(keywords))
        # The function is the user's: whatever it raises belongs to its row, and the worker lives on.
        except Exception as error:
            raise self._raised(error, row) from error
        if not inspect.isawaitable(outcome):
            scores = self._scores(outcome, prompts, trajectories)
            return lambda: scores
        future = self._loop.submit(outcome, self._timeout_s)
        return lambda: self._scores(self._wait(future, row), prompts, trajectories)

    def close(self) -> None:
        """Release the event loop."""
        self._loop.close()

    def _wait(self, future: concurrent.futures.Future[Any], row: str) -> Any:
        try:
            concurrent.futures.wait([future], self._timeout_s + _GRACE_S)
            if not future.done():
                raise TooLate
            return future.result()
        except TooLate as error:
            raise RewardError(f"reward {self.name} gave no answer within {self._timeout_s:g} s on {row}") from error
        # As above: the function is the user's.
        except Exception as error:
            raise self._raised(error, row) from error

    def _raised(self, error: Exception, row: str) -> RewardError:
        traceback.print_exception(error)  # the worker's log has all of it
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name} line {last.lineno}"
        return RewardError(f"reward {self.name} raised {type(error).__name__} on {row}: {_said(error)} ({where})")

    def _missing(self, keywords: Mapping[str, Any]) -> str | None:
        missing = [name for name, required in self._parameters.items() if required and name not in keywords]
        return f"the function requires {', '.join(missing)}; a row offers {', '.join(sorted(keywords))}" if missing else None

    def _keywords(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        names = {name: None for prompt in prompts for name in prompt.columns}
        columns = {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
        completions: list[Any] = [
            trajectory.text if prompt.messages is None else [{"role": "assistant", "content": trajectory.text}]
            for prompt, trajectory in zip(prompts, trajectories, strict=False)
        ]
        return {
            "gold": [prompt.gold for prompt in prompts],
            **columns,
            "prompts": [prompt.text if prompt.messages is None else [dict(m) for m in prompt.messages] for prompt in prompts],
            "completions": completions,
            "completion_ids": [trajectory.ids.tolist() for trajectory in trajectories],
            **self._arguments,
        }

    def _accepted(self, keywords: dict[str, Any]) -> dict[str, Any]:
        return keywords if self._takes_all else {name: value for name, value in keywords.items() if name in self._parameters}

    def _scores(self, outcome: Any, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> list[Score]:
        row = _describe(prompts, trajectories)
        if not isinstance(outcome, (list, tuple, np.ndarray)):
            raise RewardError(
                f"reward {self.name} returned {type(outcome).__name__} on {row}: expected a list of {len(trajectories)} values"
            )
        if len(outcome) != len(trajectories):
            raise RewardError(f"reward {self.name} returned {len(outcome)} values for {len(trajectories)} completions on {row}")
        return [Score(self._value(value, p, t)) for value, p, t in zip(outcome, prompts, trajectories, strict=True)]

    def _value(self, value: Any, prompt: Prompt, trajectory: Trajectory) -> float | None:
        if value is None:
            return None
        row = _describe([prompt], [trajectory])
        if inspect.iscoroutine(value):
            value.close()
        if not isinstance(value, (numbers.Real, np.bool_)):
            raise RewardError(f"reward {self.name} gave {type(value).__name__} on {row}: expected a number or None")
        number = _number(value)
        if not math.isfinite(number):
            raise RewardError(f"reward {self.name} gave {number} on {row}: rewards are finite")
        return number


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _said(error: Exception) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception as second:  # noqa: BLE001 - its class is the user's, too
        return f"({type(second).__name__} when asked for its text)"


def function_name(function: Callable[..., Any]) -> str:
    """The name a function has in metrics: its own, or that of what a partial wraps."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _signature(function: Callable[..., Any], name: str) -> tuple[dict[str, bool], bool]:
    """Parameters that a keyword can reach (and whether they are required), and whether it takes any keyword."""
    parameters: dict[str, bool] = {}
    takes_all = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise ConfigError(f"reward {name}: parameter {parameter.name!r} is positional only; arguments come by keyword")
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            parameters[parameter.name] = parameter.default is parameter.empty
    return parameters, takes_all


def _describe(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> str:
    """`row 7 of gsm8k (group 3, samples 0-7)`: enough to find it again."""
    rows = sorted({(prompt.task, prompt.row) for prompt in prompts})
    where = ", ".join(f"row {row} of {task or 'the task'}" for task, row in rows[:3]) + (", ..." if len(rows) > 3 else "")
    samples = sorted(trajectory.sample for trajectory in trajectories)
    if not samples:
        return where
    span = f"sample {samples[0]}" if len(samples) == 1 else f"samples {samples[0]}-{samples[-1]}"
    return f"{where} (group {trajectories[0].group}, {span})"
