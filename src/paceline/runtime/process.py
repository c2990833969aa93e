"""`ProcessPool`: each worker is a process of its own, joined by one socket that asyncio reads; no thread, no polling here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from paceline.ports.pool import WorkerSpec
from paceline.runtime.frames import pack, read_frame
from paceline.types.errors import WorkerLost

_FROM_OUTSIDE: dict[int, str] = {signal.SIGKILL: " (from outside: kill -9, or the kernel out of memory)"}
"""Signals that no program sends itself."""
LAST_WORDS = 2000
"""Bytes of a lost worker's log that go into the reason."""
OnWarning = Callable[[str, str], None]


class ProcessWorker:
    """A handle on a worker process. Calls are answered in order."""

    def __init__(
        self,
        spec: WorkerSpec,
        process: Process,
        log: Path | None,
        on_report: Callable[[Any], None],
        on_lost: Callable[[str], None],
        on_warning: OnWarning,
    ) -> None:
        self.name = spec.name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._on_report = on_report
        self._on_lost = on_lost
        self._on_warning = on_warning
        self._ids = itertools.count()
        self._pending: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._stopping = False
        self._gone: str | None = None
        self._serving: asyncio.Task[None] | None = None
        self._burying = asyncio.create_task(self._bury(), name=f"waiting for the end of worker {spec.name}")

    async def open(self, connection: socket.socket, spec: WorkerSpec) -> None:
        """Hand the specification over and wait until the body stands. Raises what its factory raised, or WorkerLost."""
        self._reader, self._writer = await asyncio.open_connection(sock=connection)
        self._writer.write(pack(spec))
        try:
            kind, value = await read_frame(self._reader)
        except (asyncio.IncompleteReadError, OSError):
            raise WorkerLost(f"worker {self.name} ended while it started: {await self._obituary()}") from None
        if kind == "refused":
            raise value.rebuild(self.name)
        self._warn(value)
        self._serving = asyncio.create_task(self._serve(), name=f"reader of worker {self.name}")

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Send a call into the body. The answer raises what the body raised, or WorkerLost when the worker ended."""
        if self._gone is not None or self._stopping:
            raise WorkerLost(f"worker {self.name} is gone ({self._gone or 'stopped'}), asked for {method}")
        call, answer = next(self._ids), asyncio.get_running_loop().create_future()
        frame = pack((call, method, arguments))
        self._pending[call] = (method, answer)
        self._writer.write(frame)  # a loss reaches `answer` through the reader
        return answer

    async def stop(self, grace_s: float) -> None:
        """Close the body; kill what is left after `grace_s` seconds."""
        self._stopping = True
        if self._process.returncode is None and grace_s > 0 and self._serving is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self._writer.write(pack(None))
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        self.kill()
        await self._burying
        if self._serving is not None:
            await self._serving
        await self._hang_up()

    async def _hang_up(self) -> None:
        """Close this end. An error of the connection was heard by whoever read from it; nobody else is to complain of it."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def kill(self) -> None:
        """End the process and what it started, at once."""
        if self._burying.done():  # its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _bury(self) -> None:
        """However the worker ends, what it started ends with it."""
        await self._process.wait()
        self.kill()

    async def _serve(self) -> None:
        try:
            while True:
                kind, *content = await read_frame(self._reader)
                if kind == "report":
                    for report in content[0]:
                        self._on_report(report)
                    continue
                if kind == "warned":
                    self._warn(content[0])
                    continue
                call, value = content
                _, answer = self._pending.pop(call)
                if not answer.done():
                    if kind == "answer":
                        answer.set_result(value)
                    else:
                        answer.set_exception(value.rebuild(self.name))
        except (asyncio.IncompleteReadError, OSError):
            await self._end()
        except Exception as error:  # noqa: BLE001 - whatever cannot be read or handled: nobody would hear this worker again
            self.kill()
            await self._end(f"what it sent could not be taken ({type(error).__name__}: {error})")
        await self._hang_up()

    def _warn(self, texts: list[str]) -> None:
        for text in texts:
            self._on_warning(self.name, text)

    async def _end(self, why: str | None = None) -> None:
        self._gone = "stopped" if self._stopping else why or await self._obituary()
        unanswered = [(method, answer) for method, answer in self._pending.values() if not answer.done()]
        doing = ", ".join(method for method, _ in unanswered)
        for method, answer in unanswered:
            answer.set_exception(WorkerLost(f"worker {self.name} was lost while it did {method}: {self._gone}"))
        if not self._stopping:
            self._on_lost(f"worker {self.name} was lost{f' while it did {doing}' if doing else ''}: {self._gone}")

    async def _obituary(self) -> str:
        """How the process ended, and its last words."""
        try:
            async with asyncio.timeout(5.0):
                code = await self._process.wait()
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        how = f"signal {signal.Signals(-code).name}{_FROM_OUTSIDE.get(-code, '')}" if code < 0 else f"exit code {code}"
        words = _tail(self._log)
        return f"{how}; last words:\n{words}" if words else how


class ProcessPool:
    """Starts worker processes; the log of each is `log_dir/NAME.log` (None = thrown away)."""

    def __init__(
        self, *, log_dir: Path | None = None, start_timeout_s: float = 180.0, on_warning: OnWarning = lambda worker, text: None
    ) -> None:
        """on_warning: is told name and text when a module of paceline warns (`logging`) in a worker; its log holds them anyway."""
        self._log_dir = log_dir
        self._on_warning = on_warning
        self._start_timeout_s = start_timeout_s

    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> ProcessWorker:
        """Start a worker process. Raises what its factory raised; WorkerLost when it ends or is not ready in time."""
        log = None if self._log_dir is None else self._log_dir / f"{spec.name}.log"
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as opened:
            output: IO[bytes] | int = DEVNULL if log is None else opened.enter_context(log.open("ab"))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "paceline.runtime.worker", str(theirs.fileno()), ",".join(map(str, spec.cores)),
                pass_fds=(theirs.fileno(),), stdin=DEVNULL, stdout=output, stderr=output, env=_environment(spec),
                process_group=0,  # a Ctrl-C at the terminal reaches the controller alone
            )  # fmt: skip
        worker = ProcessWorker(spec, process, log, on_report, on_lost, self._on_warning)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await worker.open(ours, spec)
        except TimeoutError:
            await worker.stop(0)
            raise WorkerLost(f"worker {spec.name} was not ready within {self._start_timeout_s:g} s (pool.start_timeout_s)") from None
        except BaseException:
            await worker.stop(0)
            raise
        return worker


MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**36), "MALLOC_TRIM_THRESHOLD_": str(2**36)}
"""glibc gives large blocks back at once, and their pages are faulted in again at the next use, one by one. A worker needs the same again
with its next micro-batch or decode step, so it keeps what it has used. Other C libraries ignore these."""


def _environment(spec: WorkerSpec) -> dict[str, str]:
    """Thread counts and the allocator's thresholds have to stand before a library reads them; the import path is the controller's."""
    threads = {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} if spec.threads else {}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    ours = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    return {**MEMORY, **os.environ, **ours, **threads, **spec.environment}


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:  # it may be long
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
        return file.read(LAST_WORDS).decode(errors="replace").strip()
