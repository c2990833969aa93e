"""Main program of a keeper: `python -m paceline.rewards.keeper FD MEMORY_MIB`. See `rewards.bench` for the picture.

Consumes batches of jobs from the connection, produces one outcome per job in order, and waits for a batch or a verifier. It ends when
its connection closes, and the verifiers with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from paceline.rewards.equivalence import Incomparable, check, equal_forms, readable
from paceline.rewards.spelling import Unreadable

Result = tuple[str, str]

WARM_UP = (
    r"\frac{1}{2}", "x^{2}+3x-1", r"\sqrt[3]{2}\cdot 5", r"\sin^2(2x)+\ln(x)", r"\log_{2}(8)", r"\binom{5}{2}+4!", "-2^{-1}(x_{1}+y)",
    "|x-1|", r"e^{i\pi}", r"\frac{\pi}{3}", "f(x)+1", r"\lfloor x/2\rfloor", r"\infty",
)  # fmt: skip
"""Read and computed with once before anything is forked: the grammar learns as it reads, and every verifier starts with that."""
RETIRE_AFTER = 2_000
"""Jobs after which a verifier is replaced, so that caches of the algebra do not grow for ever."""
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Verifier:
    """A forked process; `job` is the position that it works on, `deadline` on the monotonic clock."""

    pid: int
    connection: Connection
    job: int | None = None
    deadline: float = 0.0
    done: int = field(default=0)


class Keeper:
    """Spreads jobs over verifiers and replaces those that are late, lost or worn.

    While all are busy one more stands ready, so that a replacement takes no time of the batch.
    """

    def __init__(self, caller: Connection, memory_mib: int) -> None:
        self._caller = caller
        self._memory_mib = memory_mib
        self._verifiers: list[_Verifier] = []
        self._ended: set[int] = set()

    def serve(self) -> None:
        """Answer batches until the caller closes the connection."""
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off, which is meant so
        for text in WARM_UP:
            check(text)
        gc.freeze()  # what is loaded is shared with the verifiers as long as nobody writes to it
        self._fork()
        self._caller.send_bytes(b"ready")
        while True:
            try:
                message = json.loads(self._caller.recv_bytes())
            except EOFError:
                return
            self._caller.send_bytes(json.dumps(self._batch(message["jobs"], message["timeout_s"], message["workers"])).encode())

    def _batch(self, jobs: Sequence[Any], timeout_s: float, workers: int) -> list[Result]:
        results: list[Result | None] = [None] * len(jobs)
        waiting, died = deque(range(len(jobs))), set[int]()
        while waiting or self._busy():
            self._spread(jobs, waiting, timeout_s, workers)
            for verifier in self._ready():
                if verifier.deadline <= time.monotonic() and not verifier.connection.poll(0):
                    results[_job(verifier)] = ("late", f"{timeout_s:g} s")
                    self._drop(verifier)
                else:
                    self._take(verifier, results, waiting, died)
        assert all(result is not None for result in results), "every job has an outcome"
        return [result for result in results if result is not None]

    def _busy(self) -> list[_Verifier]:
        return [verifier for verifier in self._verifiers if verifier.job is not None]

    def _ready(self) -> list[_Verifier]:
        """Wait until verifiers have answered, or the first is late; these."""
        busy = self._busy()
        if not busy:
            return []
        pause = min(verifier.deadline for verifier in busy) - time.monotonic()
        answered = wait([self._caller, *(verifier.connection for verifier in busy)], max(0.0, pause))
        if self._caller in answered:  # it speaks only between batches: this is its end
            raise SystemExit
        now = time.monotonic()
        return [verifier for verifier in busy if verifier.connection in answered or verifier.deadline <= now]

    def _spread(self, jobs: Sequence[Any], waiting: deque[int], timeout_s: float, workers: int) -> None:
        while waiting and len(self._busy()) < workers:
            self._assign(jobs, waiting, timeout_s)
        if waiting and len(self._busy()) == len(self._verifiers):
            self._fork()
        self._bury()

    def _assign(self, jobs: Sequence[Any], waiting: deque[int], timeout_s: float) -> None:
        """Give the next job to a verifier that is idle, or to a new one."""
        idle = next((verifier for verifier in self._verifiers if verifier.job is None), None)
        verifier, job = idle or self._fork(), waiting.popleft()
        verifier.job, verifier.deadline = job, time.monotonic() + timeout_s
        try:
            verifier.connection.send_bytes(json.dumps(jobs[job]).encode())
        except OSError:  # it died between two jobs, which is no job's fault
            waiting.appendleft(job)
            self._drop(verifier)

    def _bury(self) -> None:
        self._ended = {pid for pid in self._ended if os.waitpid(pid, os.WNOHANG)[0] == 0}

    def _take(self, verifier: _Verifier, results: list[Result | None], waiting: deque[int], died: set[int]) -> None:
        job = _job(verifier)
        try:
            status, detail = json.loads(verifier.connection.recv_bytes())
        except (EOFError, OSError):
            self._drop(verifier)
            if job in died:
                results[job] = ("lost", "two verifiers in a row died over it")
            else:
                died.add(job)
                waiting.appendleft(job)
            return
        results[job] = (status, detail)
        verifier.job, verifier.done = None, verifier.done + 1
        if status == "memory" or verifier.done >= RETIRE_AFTER:
            self._drop(verifier)

    def _drop(self, verifier: _Verifier) -> None:
        self._verifiers.remove(verifier)
        verifier.connection.close()
        os.kill(verifier.pid, signal.SIGKILL)
        self._ended.add(verifier.pid)

    def _fork(self) -> _Verifier:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            self._verifiers.append(_Verifier(pid, Connection(ours.detach())))
            return self._verifiers[-1]
        try:
            ours.close()
            self._caller.close()
            for other in self._verifiers:
                other.connection.close()
            _confine(self._memory_mib)
            _verify(Connection(theirs.detach()))
        finally:
            os._exit(0)


def _job(verifier: _Verifier) -> int:
    assert verifier.job is not None, "only a verifier with a job answers"
    return verifier.job


def _confine(memory_mib: int) -> None:
    """Limits of a verifier: memory beyond what it has now, no files, no core dumps; it dies with the keeper."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + memory_mib * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _verify(connection: Connection) -> None:
    sys.set_int_max_str_digits(30_000)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(json.dumps(judge(*json.loads(message))).encode())


def judge(gold: str, answer: str | None, percent: Any) -> Result:
    """Status and detail of one job; see `bench.Outcome`."""
    try:
        expected = readable(gold)
        if answer is None:
            check(gold)
            return "right", ""
    except Unreadable as error:
        return "gold", str(error)
    except (MemoryError, RecursionError) as error:
        return "gold", type(error).__name__
    try:
        return ("right" if equal_forms(expected, readable(answer), percent) else "wrong"), ""
    except Unreadable as error:
        return "unreadable", str(error)
    except Incomparable as error:
        return "incomparable", str(error)
    except RecursionError:
        return "unreadable", "too deep"
    except MemoryError:
        return "memory", ""
    except Exception as error:  # noqa: BLE001 - the process boundary: our own mistake is told as one, and the verifier lives on
        return "error", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with its caller, whatever else a whole job is sent
        signal.signal(number, signal.SIG_IGN)
    Keeper(Connection(socket.socket(fileno=int(sys.argv[1])).detach()), int(sys.argv[2])).serve()
