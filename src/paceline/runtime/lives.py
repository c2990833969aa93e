"""The lives of a run within one process: each begins at the newest checkpoint that is whole; a lost trainer begins another, and so does
whatever worker is lost while such a life starts.

A life is a lineage of the ledger, with workers of its own. What the trainer held since its last checkpoint is in no other place, so
losing it is what losing the whole process is, and takes the same way back; the process, its lock and the task that it has read stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from paceline.core.commands import Stop
from paceline.core.schedule import Resume, Schedule
from paceline.runtime.ledger import Ledger
from paceline.runtime.rundir import ResumeInfo, RunDir, check_identity, read_resume
from paceline.runtime.session import Lineage, Session
from paceline.types.errors import CheckpointDamaged, CheckpointError, TrainerLost, WorkerLost


class Start(NamedTuple):
    """Where a life begins; nothing of both: at the beginning."""

    checkpoint: Path | None = None
    info: ResumeInfo | None = None


class Lives:
    """Runs one life after the other. Every checkpoint is judged when it is needed: its record here, its tensors by the trainer."""

    def __init__(
        self, rundir: RunDir, schedule: Schedule, identity: Mapping[str, str], trainer_restarts: int,
        explain: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is started or written yet. Raises CheckpointError when the run directory holds another run, or nothing whole.

        trainer_restarts: losses in a row, without a new checkpoint between them, that are replaced. explain: see `check_identity`.
        """
        self._rundir = rundir
        self._schedule = schedule
        self._identity = identity
        self._restarts = trainer_restarts
        self._explain = explain
        self._said: list[str] = []
        """What the next life tells first."""
        self._lost = 0
        self.start = self._newest()
        """Where the next life begins."""

    def tell(self, message: str) -> None:
        """A notice for the beginning of the next life."""
        self._said.append(message)

    async def run(self, ledger: Ledger, session_of: Callable[[Lineage], Session]) -> tuple[Stop, Session]:
        """Live until the machine stops; the last life with its end. Raises what ended the run, as `Session.run`."""
        first = True
        while True:
            session = self._begin(ledger, session_of)
            try:
                return await session.run(), session
            except CheckpointDamaged as error:
                assert self.start.checkpoint is not None, "a trainer restores a checkpoint or nothing"
                self.tell(self._rundir.put_aside(self.start.checkpoint, error))
                self.start = self._newest()
            except WorkerLost as error:
                if session.interrupted or (first and not session.begun):
                    raise  # what ends workers before all of them are up mostly ends every one
                if session.begun and not isinstance(error, TrainerLost):
                    raise  # the others are replaced within a life: this one was lost too often
                self._again(session, error)
            first = first and not session.begun
            self._rundir.mend()

    def _newest(self) -> Start:
        """The newest checkpoint whose record is whole, if it is of this run; damaged ones before it are put aside and told.

        Nothing where none was written yet: to begin again because none is left would be a silent loss.
        """
        while (checkpoint := self._rundir.latest_checkpoint()) is not None:
            try:
                info = read_resume(checkpoint)
            except CheckpointDamaged as error:
                self.tell(self._rundir.put_aside(checkpoint, error))
                continue
            check_identity(info.identity, self._identity, checkpoint, self._explain)
            return Start(checkpoint, info)
        if gone := self._rundir.lost_checkpoint():
            raise CheckpointError(
                f"{self._rundir.checkpoints}: holds no checkpoint, and the ledger says that {gone} was written. Put it back (is a disk "
                "missing?), or begin again with another run.dir"
            )
        return Start()

    def _begin(self, ledger: Ledger, session_of: Callable[[Lineage], Session]) -> Session:
        checkpoint, info = self.start
        resume, parent = (Resume(), None) if info is None else (info.resume(), info.lineage)
        lineage = ledger.open_lineage(self._schedule, resume, parent, datetime.now(UTC).isoformat())
        session = session_of(Lineage(self._schedule, resume, lineage, checkpoint, self._identity, 0 if info is None else info.tokens))
        said, self._said = self._said, []
        for message in said:
            session.recorder.notice(message)
        return session

    def _again(self, session: Session, error: WorkerLost) -> None:
        """Find where to go on after a loss, and say it. Raises TrainerLost when there were too many."""
        before, self.start = self.start, self._newest()
        self._lost = 1 if self.start != before else self._lost + 1
        if self._lost > self._restarts:
            often = f"lost {self._lost} times in a row without a new checkpoint: " if self._lost > 1 else ""
            raise TrainerLost(f"{often}{error}\nthe run ends here: pool.trainer_restarts = {self._restarts}") from error
        update = 0 if self.start.info is None else self.start.info.update
        where = "its beginning: there is no checkpoint yet" if self.start.checkpoint is None else self.start.checkpoint.name
        again = session.recorder.update - update
        updates = f"; {again} update{'' if again == 1 else 's'} {'is' if again == 1 else 'are'} made again" if again else ""
        who = "the trainer is" if isinstance(error, TrainerLost) else "all workers are"
        self.tell(f"{error}\n{who} replaced and the run goes on from {where}{updates}")
