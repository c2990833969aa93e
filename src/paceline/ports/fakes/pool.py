"""`InlinePool`: workers that live in the caller's process and event loop, with the contract of real ones."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from typing import Any

from paceline.ports.pool import WorkerBody, WorkerSpec, after, make_body
from paceline.types.errors import WorkerLost

BREATH = 16
"""Ticks in a row after which the event loop really sleeps: a loop that always has work takes the interpreter back from every other
thread, such as the one that writes the ledger, before that thread has woken."""


class InlineWorker:
    """Runs a body on the event loop. Values pass through pickle, as between processes; `SystemExit` in the body is its death.

    A call that returns an awaitable is awaited: a fake body hangs by returning one that never ends.
    """

    def __init__(self, spec: WorkerSpec, body: WorkerBody, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        self.name = spec.name
        self.body = body
        self._on_report = on_report
        self._on_lost = on_lost
        self._lost: str | None = None
        self._calls: asyncio.Queue[tuple[asyncio.Future[Any], str, bytes]] = asyncio.Queue()
        self._open: dict[asyncio.Future[Any], str] = {}
        self._task = asyncio.create_task(self._serve(), name=f"inline worker {spec.name}")

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Call into the body, after the calls before it."""
        if self._lost is not None:
            raise WorkerLost(f"worker {self.name} is gone ({self._lost}), asked for {method}")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((answer, method, pickle.dumps(arguments)))
        self._open[answer] = method
        answer.add_done_callback(self._open.pop)
        return answer

    async def stop(self, grace_s: float) -> None:
        """Close the body; `grace_s` does not matter, nothing can be left."""
        if self._lost is None:
            self._end("stopped", tell=False)
            self.body.close()

    def kill(self) -> None:
        """End it without closing the body."""
        if self._lost is None:
            self._end("killed", tell=True)

    def _end(self, reason: str, *, tell: bool) -> None:
        self._lost = reason
        for answer, method in self._open.items():
            if not answer.done():
                answer.set_exception(WorkerLost(f"worker {self.name} was lost ({reason}) while it did {method}"))
        if self._task is not asyncio.current_task():
            self._task.cancel()
        if tell:
            asyncio.get_running_loop().call_soon(self._on_lost, f"{self.name}: {reason}")

    async def _serve(self) -> None:
        patience: float | None = 0.0
        ticks = 0
        while self._lost is None:
            try:
                if (call := await self._next(patience)) is not None:
                    await self._answer(*call)
                    patience = 0.0
                    continue
                patience, reports = after(self.body.tick())
            except SystemExit as death:
                self._end(f"exit code {death.code}", tell=True)
                return
            try:
                for report in reports:
                    self._on_report(pickle.loads(pickle.dumps(report)))
            except Exception as error:  # noqa: BLE001 - whatever cannot be handled: nobody would hear this worker again
                self._end(f"what it sent could not be taken ({type(error).__name__}: {error})", tell=True)
                return
            ticks += 1
            await asyncio.sleep(0 if ticks % BREATH else 0.001)

    async def _next(self, patience: float | None) -> tuple[asyncio.Future[Any], str, bytes] | None:
        """The next call; None when none came within `patience` seconds (None = wait for ever)."""
        if patience == 0 and self._calls.empty():
            return None
        try:
            async with asyncio.timeout(patience or None):
                return await self._calls.get()
        except TimeoutError:
            return None

    async def _answer(self, answer: asyncio.Future[Any], method: str, arguments: bytes) -> None:
        try:
            value = self.body.call(method, *pickle.loads(arguments))
            if inspect.isawaitable(value):
                value = await value
            if not answer.done():
                answer.set_result(pickle.loads(pickle.dumps(value)))
        except Exception as error:  # noqa: BLE001 - the process boundary: it travels to the caller, the worker lives on
            if not answer.done():
                answer.set_exception(error)


class InlinePool:
    """Starts `InlineWorker`s; `workers` holds the latest of each name, so that a test can reach into it."""

    def __init__(self) -> None:
        self.workers: dict[str, InlineWorker] = {}

    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> InlineWorker:
        """Start a worker in this process."""
        worker = InlineWorker(spec, make_body(spec), on_report, on_lost)
        self.workers[spec.name] = worker
        return worker
