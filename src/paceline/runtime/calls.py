"""A worker with its specification: calls under a deadline, and its replacement when it is lost; work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.ports.pool import Pool, Worker, WorkerSpec
from paceline.types.errors import TrainerLost, WorkerLost, WorkerSilent

MAX_RESTARTS = 5
"""A worker lost this often in a row, with nothing useful in between, ends the run."""
READ_S = 0.1
"""Seconds to read an answer that has arrived, after a deadline."""


class Seat:
    """One place for a worker, refilled when its worker is lost."""

    def __init__(self, pool: Pool, spec: WorkerSpec, answer_timeout_s: float) -> None:
        self.name = spec.name
        self._pool = pool
        self._spec = spec
        self._answer_timeout_s = answer_timeout_s
        self._worker: Worker | None = None
        self._losses = 0
        self._fills = 0
        self._gone = ""
        self._ended = ""
        """Why the present worker was ended from here; its process knows of a signal only, and its last words are of something else."""

    @property
    def filled(self) -> bool:
        """Whether a worker sits here."""
        return self._worker is not None

    async def fill(self, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        """Start the worker. Raises what its factory raised, or WorkerLost. `on_lost` is not called once the place is filled again."""
        self._fills = mine = self._fills + 1
        self._worker, self._ended = None, ""

        def _lost(reason: str) -> None:
            if mine == self._fills:
                self._worker, self._gone = None, self._ended or reason
                on_lost(self._gone)

        self._worker = await self._pool.start(self._spec, on_report, _lost)

    def present(self) -> None:
        """Raise WorkerLost, with the reason, when the worker that was started is gone already."""
        if self._worker is None:
            raise WorkerLost(f"worker {self.name} was lost as soon as it was up: {self._gone}")

    async def refill(self, reason: str, fill: Callable[[], Awaitable[None]]) -> None:
        """Fill the place of a lost worker by `fill`, again where that one is lost while it starts. Raises WorkerLost after too many."""
        while True:
            self.count_loss(reason)
            try:
                return await fill()
            except WorkerLost as error:
                reason = str(error)

    def count_loss(self, reason: str) -> None:
        """One more loss; raises WorkerLost when there were too many in a row."""
        self._losses += 1
        if self._losses > MAX_RESTARTS:
            raise WorkerLost(f"worker {self.name} was lost {self._losses} times in a row; the last time: {reason}")

    def useful(self) -> None:
        """The worker did something: earlier losses are forgiven."""
        self._losses = 0

    async def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call the worker. One that does not answer in time is killed: WorkerSilent says so.

        The call is sent at the first step of this coroutine, so that calls made one after the other arrive in that order. An answer
        counts only while the worker that gave it is still here. If it was this process that stood still (Ctrl-Z, a frozen container),
        what the worker answered meanwhile is read before it is judged.
        """
        worker = self._worker
        if worker is None:
            raise WorkerLost(f"worker {self.name} is not running, asked for {method}")
        limit = self._answer_timeout_s if timeout_s is None else timeout_s
        answer = asyncio.ensure_future(worker.call(method, *arguments))
        try:
            for seconds in (limit, READ_S):
                done, _ = await asyncio.wait({answer}, timeout=seconds)
                if done:
                    result = answer.result()
                    if self._worker is not worker:
                        raise WorkerLost(f"worker {self.name} was lost as soon as it had answered {method}: {self._gone}")
                    return result
        finally:
            answer.cancel()
        silence = f"worker {self.name} did not answer {method} within {limit:g} s and was killed"
        if self._worker is worker:
            self._ended = silence
        worker.kill()
        raise WorkerSilent(silence)

    def kill(self, why: object) -> None:
        """End the worker at once; its loss is reported, with `why` as the reason."""
        if self._worker is not None:
            self._ended = f"worker {self.name} was ended: {why}"
            self._worker.kill()

    async def stop(self, grace_s: float) -> None:
        """End the worker for good."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(grace_s)


class TrainerSeat(Seat):
    """The trainer's place. Its loss has a name of its own: nobody can go on where it stood, so it ends this life of the run."""

    async def fill(self, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        """As `Seat.fill`; TrainerLost instead of WorkerLost."""
        with _as_trainer():
            await super().fill(on_report, on_lost)

    def present(self) -> None:
        """As `Seat.present`; TrainerLost instead of WorkerLost."""
        with _as_trainer():
            super().present()

    async def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """As `Seat.call`; TrainerLost instead of WorkerLost and WorkerSilent."""
        with _as_trainer():
            return await super().call(method, *arguments, timeout_s=timeout_s)


@contextmanager
def _as_trainer() -> Iterator[None]:
    try:
        yield
    except WorkerLost as error:
        raise TrainerLost(str(error)) from error


async def off_loop(work: Callable[[], Any]) -> None:
    """Do blocking work in another thread. Whoever is cancelled meanwhile waits for its end: no thread is left with a file of the run."""
    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    finally:
        await asyncio.wait({working})


async def together(*work: Awaitable[Any]) -> list[Any]:
    """Results in order; the first error cancels and awaits the rest, so that nothing half-started stays behind."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
