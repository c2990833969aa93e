"""Rewards: how answers are judged. `extract` and `verify` judge one text, a `Judge` scores groups."""

from paceline.rewards.answers import extract, verify
from paceline.rewards.judge import Judge, Part, check_golds, load_judge

__all__ = ["Judge", "Part", "check_golds", "extract", "load_judge", "verify"]
