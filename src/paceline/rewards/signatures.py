"""Calling conventions of reward functions: how TRL, verl, OpenRLHF and AReaL call them, and what they return.

trl       f(prompts=[...], completions=[...], completion_ids=[...], **columns)      -> values
verl      f(data_source=, solution_str=, ground_truth=, extra_info=), one answer      -> value, or a dict with `score`
openrlhf  f(queries, prompts, labels), a query being prompt + completion              -> values, or a dict with `rewards`
areal     f(prompt, completions, prompt_ids, completion_ids, **columns), one answer   -> value

A value is a number or None; values are a list, a tuple, an array or a tensor, one per answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.types.records import Prompt, Trajectory

Name = Literal["trl", "verl", "openrlhf", "areal"]
Columns = dict[str, list[Any]]
"""What is offered, by name: one entry per trajectory."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One convention. `each`: called once per answer, with entries instead of lists; `by_position`: names passed by position; `result`:
    the key that holds the values where a dict may come back."""

    offer: Callable[[Sequence[Prompt], Sequence[Trajectory]], Columns]
    each: bool = False
    by_position: tuple[str, ...] = ()
    result: str | None = None

    def unpacked(self, outcome: Any) -> Any:
        """The values in what a function returned; an array or a tensor, of shape [n] or [n, 1], as a list."""
        if self.result is not None and isinstance(outcome, Mapping) and self.result in outcome:
            outcome = outcome[self.result]
        if hasattr(outcome, "tolist") and hasattr(outcome, "reshape"):
            return outcome.tolist() if self.each else outcome.reshape(-1).tolist()
        return outcome


def columns(prompts: Sequence[Prompt]) -> Columns:
    """Every column of the rows by its name; a row without it has None."""
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def _trl(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Columns:
    completions: list[Any] = [
        trajectory.text if prompt.messages is None else [{"role": "assistant", "content": trajectory.text}]
        for prompt, trajectory in zip(prompts, trajectories, strict=False)
    ]
    return {
        "gold": [prompt.gold for prompt in prompts],
        **columns(prompts),
        "prompts": [prompt.text if prompt.messages is None else _messages(prompt) for prompt in prompts],
        "completions": completions,
        "completion_ids": _ids(trajectories),
    }


def _verl(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Columns:
    return {
        "data_source": [prompt.columns.get("data_source") or prompt.task for prompt in prompts],
        "solution_str": _texts(trajectories),
        "ground_truth": [prompt.gold for prompt in prompts],
        "extra_info": [dict(prompt.columns) if (given := prompt.columns.get("extra_info")) is None else given for prompt in prompts],
    }


def _openrlhf(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Columns:
    return {
        "queries": [prompt.text + trajectory.text for prompt, trajectory in zip(prompts, trajectories, strict=False)],
        "prompts": [prompt.text for prompt in prompts],
        "labels": [prompt.gold for prompt in prompts],
    }


def _areal(prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> Columns:
    messages = {"messages": [_messages(prompt) for prompt in prompts]} if any(prompt.messages for prompt in prompts) else {}
    return {
        "gold": [prompt.gold for prompt in prompts],
        **messages,
        **columns(prompts),
        "prompt": [prompt.text for prompt in prompts],
        "completions": _texts(trajectories),
        "prompt_ids": [prompt.ids.tolist() for prompt in prompts],
        "completion_ids": _ids(trajectories),
    }


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt.messages or ()]


def _texts(trajectories: Sequence[Trajectory]) -> list[Any]:
    return [trajectory.text for trajectory in trajectories]


def _ids(trajectories: Sequence[Trajectory]) -> list[Any]:
    return [trajectory.ids.tolist() for trajectory in trajectories]


SIGNATURES: Mapping[Name, Signature] = {
    "trl": Signature(_trl),
    "verl": Signature(_verl, each=True, result="score"),
    "openrlhf": Signature(_openrlhf, by_position=("queries", "prompts", "labels"), result="rewards"),
    "areal": Signature(_areal, each=True, by_position=("prompt", "completions", "prompt_ids", "completion_ids")),
}
