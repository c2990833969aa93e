"""Prompts in data order: performs RequestPrompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from paceline.core.commands import RequestPrompts
from paceline.core.events import DataEnded, Event, PromptsArrived
from paceline.core.schedule import Resume
from paceline.ports.data import Task
from paceline.runtime.board import Board


class Source:
    """Hands out positions of the data order: those that the restored checkpoint had not finished first, then new ones.

    Epochs follow each other without end; `end` (a count of prompts) makes the data finite.
    """

    def __init__(self, task: Task, resume: Resume, board: Board, post: Callable[[Event], None], end: int | None = None) -> None:
        self._task = task
        self._again = deque(resume.pending)
        self._next = resume.next_index
        self._board = board
        self._post = post
        self._end = end

    def request(self, command: RequestPrompts) -> None:
        """Fetch and announce prompts; fewer than asked for only at the end of the data."""
        indices: list[int] = []
        while len(indices) < command.count and (index := self._take()) is not None:
            indices.append(index)
            self._board.prompts[index] = self._task.prompt(index)
        if indices:
            self._post(PromptsArrived(command.id, tuple(indices)))
        if len(indices) < command.count:
            self._post(DataEnded(command.id))

    def _take(self) -> int | None:
        if self._again:
            return self._again.popleft()
        if self._end is not None and self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1
