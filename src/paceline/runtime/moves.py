"""Trajectories on their way from one instance to another: performs Migrate.

    source.hand_over -> a file -> target.take_in

Whatever happens on the way, every trajectory that left the source runs on the target (`Migrated.moved`), is back on the source, is lost
with it, or counts as a failed attempt because its file cannot be read any more; and the machine hears where they are before it hears that
one of them ended or that the source is lost. A file that cannot be written or read ends no instance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.core.commands import Migrate, TrajectoryKey
from paceline.core.events import Event, Migrated
from paceline.ports.rollout import TakenIn
from paceline.runtime.rollout import RolloutFleet
from paceline.types.errors import PacelineError, StateFileError, WorkerLost


class Moves:
    """Moves state through files in `directory`, each removed when its move is over."""

    def __init__(self, fleet: RolloutFleet, directory: Path, post: Callable[[Event], None]) -> None:
        self._fleet = fleet
        self._directory = directory
        self._post = post

    async def migrate(self, command: Migrate) -> None:
        """Move trajectories with their KV cache. Raises an error of paceline when none moved: they run on where they were."""
        file = self._directory / f"move-{command.id}"
        with self._fleet.leaving(command.source), self._fleet.holding(command.target):
            try:
                taken = await self._carry(command, str(file))
            finally:
                with contextlib.suppress(OSError):  # it may not be there; what cannot be removed goes with its directory
                    file.unlink()
            self._fleet.moved(taken.trajectories, command.source, command.target)
            self._post(Migrated(command.id, taken.trajectories, taken.prefilled_tokens))

    async def _carry(self, command: Migrate, location: str) -> TakenIn:
        left: tuple[TrajectoryKey, ...] = await self._ask(command.source, "hand_over", command.trajectories, location)
        if not left:  # they had all ended
            return TakenIn((), 0)
        try:
            taken: TakenIn = await self._ask(command.target, "take_in", location)
        except PacelineError:
            with contextlib.suppress(PacelineError):  # then the source is lost, and with it all that ran there: an event of its own
                await self._give_back(command.source, left, location)
            raise
        for key in set(left) - set(taken.trajectories):
            self._fleet.fail(command.source, key, f"it left {command.source} and did not come to {command.target}")
        return taken

    async def _give_back(self, source: str, left: Sequence[TrajectoryKey], location: str) -> None:
        try:
            back: TakenIn = await self._ask(source, "take_in", location)
        except StateFileError as error:
            for key in left:
                self._fleet.fail(source, key, f"it left {source} and could not come back: {error}")
            return
        for key in back.trajectories:
            if not self._fleet.runs(source, key):  # it was aborted meanwhile
                await self._fleet.take_back(source, key)

    async def _ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call an instance. One that refuses, unless it is for the file, is not in the state that the machine knows: it is ended, which
        starts it again."""
        seat = self._fleet.seat(name)
        try:
            return await seat.call(method, *arguments)
        except (WorkerLost, StateFileError):
            raise
        except PacelineError as error:
            seat.kill(error)
            raise
