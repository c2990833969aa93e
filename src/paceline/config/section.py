"""What every section of the configuration is made of: the strict base, and the types of values that several sections use."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _plain(value: Any, where: str = "") -> Any:
    """A copy in which tuples are lists; refuses what a resolved TOML file could not hold and give back unchanged."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}.{index}") for index, item in enumerate(value)]
    if _is_scalar(value):
        return value
    raise ValueError(f"may hold texts, booleans, finite numbers, lists and tables; {where.lstrip('.')} is {value!r}")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


Table = Annotated[dict[str, Any], AfterValidator(_plain)]
"""A free-form table."""

# TOML knows arrays only; a list is taken for a tuple, its items stay strict.
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Ids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of every section: strict, frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
