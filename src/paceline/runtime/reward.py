"""The reward workers of a run: performs Materialize, under a deadline that ends in the worker's replacement.

A verifier can hang in code that no signal reaches, so the deadline kills its process; a group's failure names the group, its row
and the reward functions, and the machine applies the failure policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from paceline.core.commands import Materialize
from paceline.core.events import CommandFailed, Event, GroupMaterialized
from paceline.runtime.board import Board
from paceline.runtime.calls import Seat, together
from paceline.types.errors import PacelineError, RewardError, WorkerLost, WorkerSilent
from paceline.types.records import Prompt, ScoredGroup, Trajectory
from paceline.types.signal import has_signal

QUOTED = 60
"""Characters of a question that a message quotes."""


class RewardFleet:
    """Reward workers that take groups as they become free."""

    def __init__(
        self,
        seats: Sequence[Seat],
        names: Sequence[str],
        deadline_s: float,
        board: Board,
        post: Callable[[Event], None],
        per_answer_s: float = 0.0,
    ) -> None:
        """deadline_s, per_answer_s: n answers to one prompt must be judged within deadline_s + n x per_answer_s seconds."""
        self._seats = list(seats)
        self._names = ", ".join(names)
        self._deadline_s = deadline_s
        self._per_answer_s = per_answer_s
        self._board = board
        self._post = post
        self._free: asyncio.Queue[Seat] = asyncio.Queue()
        self._restart: Callable[[Seat, str], None] = lambda seat, reason: None

    async def start(self, restart: Callable[[Seat, str], None]) -> None:
        """Start every worker together. `restart(seat, reason)` is called when one is lost later."""
        self._restart = restart
        await together(*(self._fill(seat) for seat in self._seats))

    async def replace(self, seat: Seat, reason: str) -> None:
        """Start a lost worker again. Raises WorkerLost when it keeps dying."""
        await seat.refill(reason, lambda: self._fill(seat))

    async def check(self, prompts: Sequence[Prompt], timeout_s: float) -> None:
        """Refuse rows that the rewards cannot judge, before anything is generated. Raises RewardError listing them."""
        await self._ask(timeout_s, "check", list(prompts))

    async def materialize(self, command: Materialize) -> None:
        """Score a group and keep it for the trainer."""
        prompt = self._board.prompts[command.group]
        trajectories = self._board.samples(command.group, command.samples)
        try:
            group = await self.score(prompt, trajectories)
        except PacelineError as error:
            self._post(CommandFailed(command.id, str(error)))
            return
        self._board.scored[command.group] = group
        signal = has_signal(group.outcomes)
        self._post(GroupMaterialized(command.id, command.group, signal, len(trajectories), "" if signal else "all outcomes are equal"))

    async def score(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> ScoredGroup:
        """Judge trajectories of one prompt, training's or an evaluation's. Raises RewardError, naming group, row and functions.

        A worker may be lost for reasons of its own (killed for memory): another is asked, unless the deadline was missed.
        """
        try:
            try:
                return await self._scored(prompt, trajectories)
            except WorkerSilent:
                raise
            except WorkerLost:
                return await self._scored(prompt, trajectories)
        except WorkerSilent as error:
            raise RewardError(f"{self._unanswered(prompt, trajectories)}: {error}; its deadline follows from reward.timeout_s") from error
        except WorkerLost as error:
            raise RewardError(f"{self._unanswered(prompt, trajectories)}: two workers ended over it, the second so: {error}") from error

    def _unanswered(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> str:
        """Who owes what, so that it is found again: group, samples, row and how its question begins."""
        samples, question = [trajectory.sample for trajectory in trajectories], " ".join(prompt.text.split())
        row = f"{prompt.place}: {question[:QUOTED]!r}"
        which = f"group {trajectories[0].group} ({row}), samples {min(samples)}-{max(samples)}"
        return f"rewards {self._names} gave no answer on {which}"

    async def _scored(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> ScoredGroup:
        limit = self._deadline_s + self._per_answer_s * len(trajectories)
        group: ScoredGroup = await self._ask(limit, "score", prompt, trajectories)
        return group

    async def _ask(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        """Call a free worker. Where whoever asked is cancelled it is busy all the same until it has answered: the next call's deadline must
        not count what is left of this one."""
        seat = await self._free.get()
        call = asyncio.ensure_future(seat.call(method, *arguments, timeout_s=timeout_s))
        call.add_done_callback(lambda ended: self._answered(seat, ended))
        return await asyncio.shield(call)

    def _answered(self, seat: Seat, call: asyncio.Future[Any]) -> None:
        """A worker is free again. One that was lost comes back through its replacement."""
        if call.cancelled() or isinstance(error := call.exception(), WorkerLost):
            return
        if error is None:
            seat.useful()
        self._free.put_nowait(seat)

    async def _fill(self, seat: Seat) -> None:
        await seat.fill(lambda report: None, lambda reason: self._lost(seat, reason))
        self._free.put_nowait(seat)

    def _lost(self, seat: Seat, reason: str) -> None:
        idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for other in idle:
            if other is not seat:
                self._free.put_nowait(other)
        self._restart(seat, reason)
