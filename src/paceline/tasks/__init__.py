"""Tasks: where prompts and golds come from."""

from paceline.tasks.task import RowTask, load

__all__ = ["RowTask", "load"]
