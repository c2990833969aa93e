"""Main program of a worker process: `python -m paceline.runtime.worker FD CORES`. Answers calls first, ticks when none waits.

The controller decides about life and death: a worker ignores the signals that ask to leave, and ends when its connection closes. A
worker that is deep in native code cannot look at its connection, so on Linux the kernel also kills it when the controller dies.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import sys
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from paceline.ports.pool import WorkerBody, WorkerSpec, after, make_body
from paceline.runtime.frames import RemoteError, pack, receive

PR_SET_PDEATHSIG = 1


class Warned(logging.Handler):
    """Keeps what paceline's own modules warn of, from whichever thread, until it is sent to the controller; the log has it at once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: SimpleQueue[str] = SimpleQueue()
        logging.getLogger("paceline").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep and print one."""
        text = record.getMessage()
        self._kept.put(text)
        print(text, file=sys.stderr)

    def take(self) -> list[str]:
        """What was not taken yet."""
        taken: list[str] = []
        try:
            while True:
                taken.append(self._kept.get_nowait())
        except Empty:
            return taken


def main(descriptor: int, cores: str) -> None:
    """Serve one body until the connection closes or the controller says `close`. `cores`: comma-separated, empty = no pinning."""
    _leave_signals_to_the_controller()
    _die_with_the_controller()
    if cores and hasattr(os, "sched_setaffinity"):  # before any library starts threads
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    connection = socket.socket(fileno=descriptor)
    _keep_from_children(connection)
    spec: WorkerSpec = receive(connection)
    if _left_alone(connection):  # before the kernel was told to watch for it
        return
    warned = Warned()
    try:
        body = make_body(spec)
    except Exception as error:  # noqa: BLE001 - the process boundary: the controller raises it
        connection.sendall(pack(("refused", RemoteError.of(error))))
        return
    connection.sendall(pack(("ready", warned.take())))
    try:
        _serve(connection, body, warned)
    except (EOFError, ConnectionError):
        return
    finally:
        body.close()


def _serve(connection: socket.socket, body: WorkerBody, warned: Warned) -> None:
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    patience: float | None = 0.0
    """Seconds until the next tick; None = only after a call."""
    while True:
        if texts := warned.take():
            connection.sendall(pack(("warned", texts)))
        if waiting.poll(None if patience is None else 1e3 * patience):
            message = receive(connection)
            if message is None:
                return
            connection.sendall(_answer(body, *message))
            patience = 0.0
            continue
        patience, reports = after(body.tick())
        if reports:
            connection.sendall(pack(("report", list(reports))))


def _answer(body: WorkerBody, call: int, method: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        return pack(("answer", call, body.call(method, *arguments)))
    except Exception as error:  # noqa: BLE001 - the process boundary: it travels to the caller, the worker lives on
        return pack(("error", call, RemoteError.of(error)))


def _leave_signals_to_the_controller() -> None:
    """Who stops a whole job (systemctl stop, scancel) signals every process of it: a worker that left by itself would take along what the
    controller's last checkpoint needs. What a body starts has the signals' usual meaning, so that it can be ended by them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, frame: None)  # unlike SIG_IGN no program inherits it
            os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))


def _keep_from_children(connection: socket.socket) -> None:
    """What a body starts must not hold the connection: it would answer in this worker's place, or hide that the worker is gone."""
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)


def _left_alone(connection: socket.socket) -> bool:
    """Whether the controller is gone, and has nothing to say any more."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _die_with_the_controller() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
