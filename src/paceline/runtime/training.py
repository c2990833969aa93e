"""The trainer of a run: performs Dispatch, says what is odd in its reports, and hands finished updates to the recorder.

The trainer itself refuses to step when its log-probs are too far from the engine's, and gives up after too many skipped updates.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.commands import Dispatch
from paceline.core.events import DispatchConsumed, Event, UpdateFinished
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat
from paceline.types.errors import TrainerError
from paceline.types.progress import UpdateReport
from paceline.types.records import ScoredGroup

GAP = "logprob_gap/mean"
"""Mean absolute difference between the engine's log-probs and the trainer's on fresh groups of an update, nats."""


class Training:
    """One trainer worker. Its groups are released by the board when they are terminal, not here."""

    def __init__(
        self, seat: Seat, board: Board, gap_warn: float, timeout_s: float, post: Callable[[Event], None],
        on_update: Callable[[Dispatch, list[ScoredGroup], UpdateReport], None], notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._seat = seat
        self._board = board
        self._gap_warn = gap_warn
        self._timeout_s = timeout_s
        self._post = post
        self._on_update = on_update
        self._notice = notice

    async def dispatch(self, command: Dispatch) -> None:
        """Forward and backward, then the optimizer step when it is due."""
        groups = [self._board.scored[group] for group in command.groups]
        if groups:  # a step may come without: the last groups of a round fell out after the others were dispatched
            await self._seat.call("accumulate", groups, timeout_s=self._timeout_s)
        self._post(DispatchConsumed(command.id))
        if not command.step:
            return
        report: UpdateReport = await self._seat.call("step", timeout_s=self._timeout_s)
        if report.update != command.update:
            raise TrainerError(f"the trainer counts {report.update} updates where {command.update} were commanded")
        self._warn(report)
        self._on_update(command, [self._board.scored[group] for group in command.update_groups], report)
        self._post(UpdateFinished(command.id, command.update, report.applied))

    def _warn(self, report: UpdateReport) -> None:
        gap = report.metrics.get(GAP, 0.0)
        if gap > self._gap_warn:
            text = f"update {report.update}: mean log-prob difference of engine and trainer {gap:.3g} nats"
            self._notice(f"{text}, above algorithm.gap_warn = {self._gap_warn:g}")
        if not report.applied:
            culprits = ", ".join(f"group {group} sample {sample}" for group, sample in report.culprits) or "no single trajectory"
            self._notice(f"update {report.update} was skipped: its loss or gradient is not finite; cause: {culprits}")
