"""What travels between the controller and a worker process: length-prefixed pickles, and errors by name.

Errors are not pickled: unpickling one can import its library (torch) into the controller or fail in a constructor.
Errors of paceline and of Python come back as themselves, every other as `PacelineError` with its name in front.
"""

from __future__ import annotations

import asyncio
import builtins
import pickle
import socket
import struct
import traceback
from dataclasses import dataclass
from typing import Any

from paceline.types import errors

HEADER = struct.Struct("!Q")
NOT_REBUILT = (UnicodeError, BaseExceptionGroup, StopIteration, StopAsyncIteration)
"""Errors of Python that cannot be made from a text alone, or that no future may hold."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception on its way: name of its class, its text, and where it was raised."""

    name: str
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteError:
        """Describe an exception."""
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def rebuild(self, worker: str) -> Exception:
        """The exception to raise in the caller; the worker's traceback is attached as a note."""
        kind = getattr(errors, self.name, None) or getattr(builtins, self.name, None)
        error: Exception = errors.PacelineError(f"{self.name}: {self.text}")
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NOT_REBUILT):
            error = kind(self.text)
        error.add_note(f"raised in worker {worker}:\n{self.trace.rstrip()}")
        return error


def pack(message: Any) -> bytes:
    """One frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next message; raises asyncio.IncompleteReadError or OSError when the other side is gone."""
    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(size))


def receive(connection: socket.socket) -> Any:
    """The next message on a blocking socket; raises EOFError when the other side is gone."""
    (size,) = HEADER.unpack(_exactly(connection, HEADER.size))
    return pickle.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise EOFError("the controller closed the connection")
        got += count
    return buffer
