"""The trainer of a run: performs Dispatch, watches what it reports, and hands finished updates to the recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.core.commands import Dispatch
from paceline.core.events import DispatchConsumed, Event, UpdateFinished
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.errors import TrainerError
from paceline.types.progress import UpdateReport
from paceline.types.records import ScoredGroup

GAP = "logprob_gap/mean"
"""Mean absolute difference between the engine's log-probs and the trainer's on the groups of a dispatch, nats."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the trainer's numbers may be before the run warns or stops."""

    gap_warn: float
    gap_stop: float
    nonfinite: int
    """Skipped updates in a row."""


class Training:
    """One trainer worker. Its groups are released by the board when they are terminal, not here."""

    def __init__(
        self, seat: Seat, board: Board, watch: Stopwatch, limits: Limits, post: Callable[[Event], None],
        on_update: Callable[[Dispatch, list[ScoredGroup], UpdateReport], None], notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._seat = seat
        self._board = board
        self._watch = watch
        self._limits = limits
        self._post = post
        self._on_update = on_update
        self._notice = notice
        self._skipped = 0

    async def dispatch(self, command: Dispatch) -> None:
        """Forward and backward, then the optimizer step when it is due."""
        groups = [self._board.scored[group] for group in command.groups]
        with self._watch.during("train"):
            metrics: Mapping[str, float] = await self._seat.call("accumulate", groups)
        self._check_gap(command, metrics)
        self._post(DispatchConsumed(command.id))
        if not command.step:
            return
        with self._watch.during("train"):
            report: UpdateReport = await self._seat.call("step")
        if report.update != command.update:
            raise TrainerError(f"the trainer counts {report.update} updates where {command.update} were commanded")
        self._check_finite(report)
        self._on_update(command, [self._board.scored[group] for group in command.update_groups], report)
        self._post(UpdateFinished(command.id, command.update, report.applied))

    def _check_gap(self, command: Dispatch, metrics: Mapping[str, float]) -> None:
        """Before the step, so that a gap that stops the run has changed no weight. Only fresh groups can be compared."""
        if any(command.staleness_updates):
            return
        gap = metrics.get(GAP, 0.0)
        text = f"update {command.update}: mean log-prob difference of engine and trainer {gap:.3g} nats"
        if not gap <= self._limits.gap_stop:
            raise TrainerError(f"{text}, above algorithm.gap_stop = {self._limits.gap_stop:g}: they do not compute the same policy")
        if gap > self._limits.gap_warn:
            self._notice(f"{text}, above algorithm.gap_warn = {self._limits.gap_warn:g}")

    def _check_finite(self, report: UpdateReport) -> None:
        if report.applied:
            self._skipped = 0
            return
        self._skipped += 1
        culprits = ", ".join(f"group {group} sample {sample}" for group, sample in report.culprits) or "no single trajectory"
        self._notice(f"update {report.update} was skipped: its loss or gradient is not finite; cause: {culprits}")
        if self._skipped >= self._limits.nonfinite:
            raise TrainerError(f"{self._skipped} updates in a row were not finite (trainer.nonfinite_limit); the last: {culprits}")
