"""Comparisons in processes that can be thrown away: a hostile answer costs its deadline, and nothing else.

    caller (reward worker, or a program that calls `verify`)
      `- keeper: loads the algebra once, has no threads, watches the deadlines           (paceline.rewards.keeper)
           |- verifier: forked from the keeper, compares one answer at a time, its memory limited
           `- verifier ...

A verifier that is late, dies or runs out of memory is killed and forked again in milliseconds, since the keeper has the algebra loaded
already. The caller never forks: it may have threads. Only JSON travels, so nothing that an answer does to a verifier reaches the caller
as anything but text.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from paceline.rewards.numbers import Percent
from paceline.types.errors import RewardError

STARTUP_S = 60.0
"""Seconds in which a keeper must have loaded the algebra."""
GRACE_S = 10.0
"""Seconds beyond the deadlines of a batch after which its keeper counts as stuck (it needs milliseconds)."""
MEMORY_MIB = 1024
"""What a verifier may allocate beyond what it starts with."""

Status = Literal["right", "wrong", "unreadable", "late", "memory", "incomparable", "gold", "error", "lost"]


@dataclass(frozen=True, slots=True)
class Job:
    """One comparison; `answer` None = check the gold alone."""

    gold: str
    answer: str | None
    percent: Percent = "loose"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.

    `right` and `wrong`. By the answer's fault: `unreadable`, `late` (no verdict by the deadline), `memory`, `incomparable` (the algebra
    raised). Not by the answer's fault: `gold` (it has no reading), `error` (our own code raised), `lost` (two verifiers died over it).
    """

    status: Status
    detail: str = ""


class Bench:
    """Verifier processes behind one keeper. Safe to use from several threads; a batch has the keeper for itself."""

    def __init__(self, workers: int = 1, memory_mib: int = MEMORY_MIB) -> None:
        """workers: verifiers that work side by side; they start when there is work for them. memory_mib: see MEMORY_MIB."""
        self._workers = workers
        self._memory_mib = memory_mib
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The keeper's process. Raises RewardError when none is up."""
        if self._keeper is None:
            raise RewardError("the verifiers are not started")
        return self._keeper.pid

    def start(self) -> None:
        """Start the keeper and load the algebra (seconds), unless that is done. Raises RewardError when it does not come up."""
        with self._lock:
            try:
                self._started()
            except (EOFError, OSError) as error:
                self.close()
                raise RewardError(f"the process that keeps the verifiers did not start: {type(error).__name__}") from error

    def compare(self, jobs: Sequence[Job], timeout_s: float) -> list[Outcome]:
        """One outcome per job, in order. Takes timeout_s x ceil(jobs / workers) seconds at most, beside the start of the keeper.

        timeout_s: seconds for each job. Raises RewardError when the keeper is lost twice or does not answer.
        """
        if not jobs:
            return []
        message = json.dumps(
            {"jobs": [[job.gold, job.answer, job.percent] for job in jobs], "timeout_s": timeout_s, "workers": self._workers}
        ).encode()
        limit = timeout_s * -(-len(jobs) // self._workers) + GRACE_S
        with self._lock:
            for _ in range(2):  # it may have been killed for a reason of its own
                answer = self._asked(message, limit)
                if answer is not None:
                    return [Outcome(status, detail) for status, detail in json.loads(answer)]
        raise RewardError("the process that keeps the verifiers was lost twice in a row")

    def close(self) -> None:
        """End the processes; idempotent, and the bench may be used again."""
        if self._owner != os.getpid():
            return
        connection, keeper = self._connection, self._keeper
        self._connection = self._keeper = None
        if connection is not None:
            connection.close()
        if keeper is not None:
            keeper.kill()
            keeper.wait()

    def _asked(self, message: bytes, limit: float) -> bytes | None:
        """The keeper's answer; None when it is gone."""
        try:
            connection = self._started()
            connection.send_bytes(message)
            if connection.poll(limit):
                return connection.recv_bytes()
        except (EOFError, OSError):
            self.close()
            return None
        self.close()
        raise RewardError(f"the process that keeps the verifiers did not answer within {limit:g} s and was ended")

    def _started(self) -> Connection:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-m", "paceline.rewards.keeper", str(theirs.fileno()), str(self._memory_mib)],
                    pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_environment(),
                )  # fmt: skip
            self._connection = Connection(ours.detach())
            if not self._connection.poll(STARTUP_S):
                self.close()
                raise RewardError(f"the process that keeps the verifiers was not ready within {STARTUP_S:g} s")
            if self._connection.recv_bytes() != b"ready":
                raise EOFError
        return self._connection

    def _forget(self) -> None:
        """In a forked copy of this process: the keeper answers only its owner."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._keeper = None
        self._owner = os.getpid()
        self._lock = threading.Lock()


def _environment() -> dict[str, str]:
    """One thread per process, so that the keeper may fork; the import path of this one; Python's own integers, since GMP ends a process
    that runs out of memory."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    integers = {"SYMPY_GROUND_TYPES": "python", "MPMATH_NOGMPY": "1"}
    return {**os.environ, **threads, **integers, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
