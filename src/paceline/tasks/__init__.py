"""Tasks: where prompts and golds come from."""

from paceline.tasks.task import RowTask, excluding, load

__all__ = ["RowTask", "excluding", "load"]
