"""A user's reward function, sync or async, in TRL's calling convention or another's (`rewards.signatures`).

    def reward(prompts, completions, completion_ids, **columns) -> list[float | None]

is TRL's: called with keyword arguments, one list entry per trajectory: `prompts` and `completions` (text; for a conversational row lists of
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.rewards import signatures
from paceline.types.errors import ConfigError, RewardError
from paceline.types.records import Prompt, Score, Trajectory

Finish = Callable[[], Sequence[Score]]
_ENDS = (SystemExit, KeyboardInterrupt)
"""What ends an event loop where a task lets it pass. A Ctrl-C does not reach a worker: it is a function that raised it."""
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


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the function, for one trajectory or for all."""

    prompts: Sequence[Prompt]
    trajectories: Sequence[Trajectory]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def row(self) -> str:
        """Where its trajectories come from, for messages."""
        return _describe(self.prompts, self.trajectories)


class FunctionReward:
    """One function as a Reward. Whatever goes wrong in it becomes a RewardError that names it and the row."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        signature: signatures.Name = "trl",
        arguments: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
        loop: Loop | None = None,
    ) -> None:
        """timeout_s: seconds for the calls of an async function; a sync one, and an async one that blocks its loop, can only be stopped
        from outside, with their process."""
        self.name = name or function_name(function)
        self._function = function
        self._signature = signatures.SIGNATURES[signature]
        self._arguments = dict(arguments or {})
        self._timeout_s = timeout_s
        self._loop = loop or Loop()
        self._parameters, self._takes_all = _parameters(function, self.name, len(self._signature.by_position))
        unknown = sorted(set(self._arguments) - set(self._parameters))
        if unknown and not self._takes_all:
            raise ConfigError(f"reward {self.name}: arguments {', '.join(unknown)} are no parameters of the function")

    def check(self, prompt: Prompt) -> None:
        """Raise RewardError when the row lacks what the function requires."""
        problem = self._missing(self._offered([prompt], []))
        if problem is not None:
            raise RewardError(problem + self._meant([prompt]))

    def score(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One Score per pair, in order; see `start`."""
        return self.start(prompts, trajectories)()

    def start(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Finish:
        """Call the function: a sync one is done when this returns, an async one runs on; the returned function gives the scores."""
        calls = self._calls(prompts, trajectories)
        outcomes = [self._outcome(call) for call in calls]
        if not any(inspect.isawaitable(outcome) for outcome in outcomes):
            scores = self._all_scores(calls, outcomes)
            return lambda: scores
        future = self._loop.submit(_together(outcomes), self._timeout_s)
        return lambda: self._all_scores(calls, self._wait(future, calls, _describe(prompts, trajectories)))

    def _calls(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> list[_Call]:
        offered = self._offered(prompts, trajectories)
        problem = self._missing(offered)
        if problem is not None:
            raise RewardError(f"reward {self.name} on {_describe(prompts, trajectories)}: {problem}")
        first = self._signature.by_position
        named = {name: values for name, values in offered.items() if name not in first and (self._takes_all or name in self._parameters)}
        if not self._signature.each:
            return [_Call(prompts, trajectories, tuple(offered[name] for name in first), named | self._arguments)]
        return [
            _Call(
                prompts[i : i + 1],
                trajectories[i : i + 1],
                tuple(offered[name][i] for name in first),
                {name: values[i] for name, values in named.items()} | self._arguments,
            )
            for i in range(len(trajectories))
        ]

    def _outcome(self, call: _Call) -> Any:
        try:
            return self._function(*call.positional, **call.keywords)
        # The function is the user's: whatever it raises belongs to its row, and the worker lives on.
        except (Exception, *_ENDS) as error:
            raise self._raised(error, call.row) from error

    def close(self) -> None:
        """Release the event loop."""
        self._loop.close()

    def _wait(self, future: concurrent.futures.Future[Any], calls: Sequence[_Call], rows: str) -> list[Any]:
        try:
            outcomes: list[Any] = future.result()
        except TooLate as error:
            raise RewardError(f"reward {self.name} gave no answer within {self._timeout_s:g} s on {rows}") from error
        for call, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, BaseException):  # as above: the function is the user's
                raise self._raised(outcome, call.row) from outcome
        return outcomes

    def _raised(self, error: BaseException, row: str) -> RewardError:
        traceback.print_exception(error)  # the worker's log has all of it
        frames = traceback.extract_tb(error.__traceback__)  # of a task that was cancelled there are none
        where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
        return RewardError(f"reward {self.name} raised {type(error).__name__} on {row}: {_said(error)}{where}")

    def _missing(self, offered: signatures.Columns) -> str | None:
        known = {**offered, **self._arguments}
        missing = [name for name, required in self._parameters.items() if required and name not in known]
        return f"the function requires {', '.join(missing)}; a row offers {', '.join(sorted(known))}" if missing else None

    def _meant(self, prompts: Sequence[Prompt]) -> str:
        """Which other signatures would give the function all that it requires, as a hint."""
        required = {name for name, needed in self._parameters.items() if needed} - self._arguments.keys()
        fit = [repr(name) for name, other in signatures.SIGNATURES.items() if required <= other.offer(prompts, []).keys()]
        return f"; is it written for signature = {' or '.join(fit)}?" if fit else ""

    def _offered(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> signatures.Columns:
        return self._signature.offer(prompts, trajectories)

    def _all_scores(self, calls: Sequence[_Call], outcomes: Sequence[Any]) -> list[Score]:
        return [score for call, outcome in zip(calls, outcomes, strict=True) for score in self._scores(call, outcome)]

    def _scores(self, call: _Call, outcome: Any) -> list[Score]:
        values = self._signature.unpacked(outcome)
        if self._signature.each:
            values = [values]
        count = len(call.trajectories)
        if not isinstance(values, (list, tuple, np.ndarray)):
            raise RewardError(f"reward {self.name} returned {type(values).__name__} on {call.row}: expected a list of {count} values")
        values = list(values)
        if len(values) != count:
            raise RewardError(f"reward {self.name} returned {len(values)} values for {count} completions on {call.row}")
        return [Score(self._value(value, p, t)) for value, p, t in zip(values, call.prompts, call.trajectories, strict=True)]

    def _value(self, value: Any, prompt: Prompt, trajectory: Trajectory) -> float | None:
        if value is None:
            return None
        row = _describe([prompt], [trajectory])
        if inspect.iscoroutine(value):
            value.close()
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()  # a scalar of numpy or torch
        if not isinstance(value, numbers.Real):
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


def _said(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception as second:  # noqa: BLE001 - its class is the user's, too
        return f"({type(second).__name__} when asked for its text)"


def function_name(function: Callable[..., Any]) -> str:
    """The name a function has in metrics: its own, or that of what a partial wraps."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _parameters(function: Callable[..., Any], name: str, by_position: int) -> tuple[dict[str, bool], bool]:
    """Parameters that a keyword can reach (and whether they are required), and whether it takes any keyword; the first ones are left out
    where they come by position."""
    parameters: dict[str, bool] = {}
    takes_all = False
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif index < by_position:
            continue
        elif parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise ConfigError(f"reward {name}: parameter {parameter.name!r} is positional only; arguments come by keyword")
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            parameters[parameter.name] = parameter.default is parameter.empty
    return parameters, takes_all


async def _together(outcomes: Sequence[Any]) -> list[Any]:
    """The outcomes, those to await awaited at the same time; an exception stands in the place of what its call would have given."""

    async def _given(outcome: Any) -> Any:
        try:
            return await outcome if inspect.isawaitable(outcome) else outcome
        except _ENDS as error:
            return error

    return await asyncio.gather(*map(_given, outcomes), return_exceptions=True)


def _describe(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> str:
    """`row 7 of gsm8k (group 3, samples 0-7)`: enough to find it again."""
    rows = list(dict.fromkeys(prompt.place for prompt in sorted(prompts, key=lambda prompt: (prompt.task, prompt.row))))
    where = ", ".join(rows[:3]) + (", ..." if len(rows) > 3 else "")
    samples = sorted(trajectory.sample for trajectory in trajectories)
    if not samples:
        return where
    span = f"sample {samples[0]}" if len(samples) == 1 else f"samples {samples[0]}-{samples[-1]}"
    return f"{where} (group {trajectories[0].group}, {span})"
