"""Prompts in data order: performs RequestPrompts."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.commands import RequestPrompts
from paceline.core.events import DataEnded, Event, PromptsArrived
from paceline.core.schedule import Resume
from paceline.ports.data import Task
from paceline.runtime.board import Board


class Source:
    """Hands out positions of the data order, beginning with the first that the restored checkpoint had not requested.

    Prompts that it had requested and not finished are the machine's to take up again: they lie on the board from the start.
    Epochs follow each other without end; `end` (a count of prompts) makes the data finite.
    """

    def __init__(self, task: Task, resume: Resume, board: Board, post: Callable[[Event], None], end: int | None = None) -> None:
        self._task = task
        self._next = resume.next_index
        self._board = board
        self._post = post
        self._end = end
        for index in resume.pending:
            board.prompts[index] = task.prompt(index)

    def request(self, command: RequestPrompts) -> None:
        """Fetch and announce prompts; fewer than asked for only at the end of the data."""
        count = command.count if self._end is None else min(command.count, max(0, self._end - self._next))
        indices = tuple(range(self._next, self._next + count))
        self._next += count
        for index in indices:
            self._board.prompts[index] = self._task.prompt(index)
        if indices:
            self._post(PromptsArrived(command.id, indices))
        if count < command.count:
            self._post(DataEnded(command.id))
