"""The section `[tracking]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.config.section import Section


class TrackingConfig(Section):
    """Services that metrics are sent to, beside `metrics.jsonl` in the run directory, which is always written."""

    kinds: Annotated[tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...], Field(strict=False)] = ()
    """Where to; each needs its extra, e.g. `pip install paceline[wandb]`."""
    names: Annotated[tuple[Literal["paceline", "trl", "verl"], ...], Field(strict=False, min_length=1)] = ("paceline",)
    """What metrics are called there; several = under each of the names."""
    project: str = Field(default="paceline", min_length=1)
    """wandb, trackio, mlflow: project or experiment."""
    name: str | None = Field(default=None, min_length=1)
    """wandb, trackio, mlflow: shown name of the run; default: the name of the run directory."""
    offline: bool = False
    """wandb: write to the run directory only; `wandb sync` uploads later."""
    mlflow_server: str | None = Field(default=None, min_length=1)
    """mlflow: address of the tracking server; unset = a database in the run directory."""
