"""Advantage estimators: how much better a sample is than the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch

from paceline.types.signal import has_signal

Kind = Literal["group_std", "group_mean", "batch_std"]
Deviation = Literal["sample", "population"]


@overload
def advantages(rewards: torch.Tensor, *, kind: Kind = ..., std: Deviation = ..., eps: float = ...) -> torch.Tensor:
    """A tensor gives a tensor."""


@overload
def advantages(rewards: Sequence[Sequence[float]], *, kind: Kind = ..., std: Deviation = ..., eps: float = ...) -> list[torch.Tensor]:
    """Lists give a list."""


def advantages(
    rewards: torch.Tensor | Sequence[Sequence[float]], *, kind: Kind = "group_std", std: Deviation = "sample", eps: float = 1e-4
) -> torch.Tensor | list[torch.Tensor]:
    """One advantage per sample; groups stand by position, so equal prompts or ids never merge.

    rewards: a tensor [G, n] gives a tensor [G, n] of its dtype; a list of G groups, also of different sizes, gives a list of
    float64 tensors [n_g]. Values are computed in float64.

    - `group_std`: (r - mean) / (std + eps) within the group (GRPO)
    - `group_mean`: r - mean of the group (Dr.GRPO)
    - `batch_std`: (r - mean of the group) / (std of all rewards given + eps); needs every group of the update at once

    `std`: divisor n - 1 (`sample`, as torch and TRL) or n (`population`). A group of equal rewards gets exactly 0.0, and so does a
    group of one. Adding a constant to the rewards of a group changes nothing. ValueError for rewards that are not finite, an empty
    group, an unknown kind or a negative eps.
    """
    _check(kind, std, eps)
    if isinstance(rewards, torch.Tensor):
        return _of_tensor(rewards, kind, std, eps)
    groups = [torch.tensor(list(map(float, group)), dtype=torch.float64) for group in rewards]
    if any(group.numel() == 0 for group in groups):
        raise ValueError("a group without samples has no advantages; leave it out")
    batch = _deviation(torch.cat(groups), std) if groups and kind == "batch_std" else 0.0
    return [_one(group, kind, std, eps, batch) for group in groups]


def _of_tensor(rewards: torch.Tensor, kind: Kind, std: Deviation, eps: float) -> torch.Tensor:
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [groups, samples], got shape {tuple(rewards.shape)}")
    rows = advantages(rewards.tolist(), kind=kind, std=std, eps=eps)
    shaped = torch.stack(rows) if rows else torch.zeros(rewards.shape, dtype=torch.float64)
    return shaped.to(rewards.dtype if rewards.is_floating_point() else torch.float64).to(rewards.device)


def _one(rewards: torch.Tensor, kind: Kind, std: Deviation, eps: float, batch: float) -> torch.Tensor:
    if not has_signal(rewards.tolist()):
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if kind == "group_mean":
        return centred
    return centred / ((batch if kind == "batch_std" else _deviation(rewards, std)) + eps)


def _deviation(values: torch.Tensor, std: Deviation) -> float:
    if not has_signal(values.tolist()):
        return 0.0
    return float(values.std(correction=1 if std == "sample" else 0))


def _check(kind: str, std: str, eps: float) -> None:
    if kind not in ("group_std", "group_mean", "batch_std"):
        raise ValueError(f"advantage must be group_std, group_mean or batch_std, got {kind!r}")
    if std not in ("sample", "population"):
        raise ValueError(f"std must be sample or population, got {std!r}")
    if not eps >= 0:
        raise ValueError(f"std_eps must be >= 0, got {eps}")
