"""Rewards: how answers are judged. `extract` and `verify` judge one text, a `Judge` scores groups."""

from paceline.rewards.answers import extract, verify
from paceline.rewards.judge import Judge, Part, load_judge

__all__ = ["Judge", "Part", "extract", "load_judge", "verify"]
