"""What travels between the controller and a worker process: length-prefixed pickles, and errors by name.

Errors are not pickled: unpickling one can import its library (torch) into the controller or fail in a constructor.
Errors of paceline and of Python come back as themselves, every other as `PacelineError` with its name in front.
"""

from __future__ import annotations

import asyncio
import builtins
import copyreg
import io
import pickle
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from paceline.types import errors
from paceline.types.records import Prompt, Request, Sampling, Score, ScoredGroup, Trajectory

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


def _by_fields(kind: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    """How to make a value again: call its class with its fields."""
    values = attrgetter(*(field.name for field in fields(kind)))
    return lambda value: (kind, values(value))


# What a frozen dataclass with slots does by itself looks its fields up anew for every value, on both sides.
TABLE: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    **{kind: _by_fields(kind) for kind in (Prompt, Request, Sampling, Score, ScoredGroup, Trajectory)},
}


def pack(message: Any) -> bytes:
    """One frame."""
    buffer = io.BytesIO(bytes(HEADER.size))
    buffer.seek(HEADER.size)
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = TABLE
    pickler.dump(message)
    frame = buffer.getbuffer()
    HEADER.pack_into(frame, 0, len(frame) - HEADER.size)
    return frame.tobytes()


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
