"""Tasks: where prompts and golds come from."""

from paceline.tasks.mixture import Mixture
from paceline.tasks.task import RowTask, load

__all__ = ["Mixture", "RowTask", "load"]
