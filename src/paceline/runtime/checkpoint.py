"""Performs Checkpoint: trainer state and `resume.json` in one directory that is complete or absent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial

from paceline.core.commands import Checkpoint
from paceline.core.events import CheckpointDone, Event
from paceline.runtime.calls import Seat, off_loop
from paceline.runtime.rundir import ResumeInfo, RunDir


class Checkpoints:
    """Writes checkpoints of one lineage."""

    def __init__(
        self, rundir: RunDir, trainer: Seat, lineage: int, identity: Mapping[str, str], keep_last: int, tokens: Callable[[], int],
        post: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._rundir = rundir
        self._trainer = trainer
        self._lineage = lineage
        self._identity = identity
        self._keep_last = keep_last
        self._tokens = tokens
        self._post = post

    async def checkpoint(self, command: Checkpoint) -> None:
        """Write aside, make durable, rename; the slow part runs off the event loop. What cannot be finished is removed."""
        aside = self._rundir.begin_checkpoint(command.update)
        try:
            await self._trainer.call("save", str(aside))
            info = ResumeInfo(
                command.update, command.version, command.pending, command.next_index, self._lineage, dict(self._identity), self._tokens()
            )
            await off_loop(partial(self._rundir.seal_checkpoint, aside, info, self._keep_last))
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)  # on a full disk it would stand in the way of what follows
            raise
        self._post(CheckpointDone(command.id, command.update))
