"""A tracker that follows metrics.jsonl to a service, in a thread of its own: the file is the record, the service a copy of it.

Since rows are read from the file and the position behind the last one that was sent is kept beside it, nothing is lost or out of order
when the service is slow, unreachable or absent for a while, when the run is killed, or when it is resumed: what was not sent is sent
later. A run never waits for a service before its end, and never fails because of one.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.durable import sync, whole
from paceline.ports.data import Tracker
from paceline.trackers.link import GIVEN_UP
from paceline.trackers.names import named

RETRY_S = (5.0, 60.0)
"""Seconds until a failed row is tried again: first, and at most (doubled in between)."""
CLOSE_S = 30.0
"""Seconds that the end of a run waits for what is not sent yet."""


@dataclass(frozen=True, slots=True)
class Position:
    """What a mirror keeps between lineages, in `NAME.json` of its directory."""

    run: str
    """The service's run."""
    sent: int = 0
    """Bytes of metrics.jsonl that were sent or refused."""
    refused: int = 0
    """Rows that the service would not take whatever its state."""


class Mirror:
    """Sends every row of a metrics file to one tracker, in order. `log` and `close` are called from one thread."""

    def __init__(
        self,
        name: str,
        source: Path,
        open_tracker: Callable[[str], Tracker],
        directory: Path,
        say: Callable[[str], None],
        conventions: Sequence[str] = ("paceline",),
        retry_s: tuple[float, float] = RETRY_S,
        close_s: float = CLOSE_S,
        afresh: bool = False,
    ) -> None:
        """open_tracker: opens the service's run of that id, new or to be continued; called in the mirror's thread, again while it fails.

        source: the metrics file, written by another tracker before `log` is called here. say: tells the user, called in the caller's
        thread. conventions: see `trackers.names`. afresh: what is opened is empty each time, so every row is sent again.
        """
        self.name = name
        self._source = source
        self._open = open_tracker
        self._keep = directory / f"{name}.json"
        self._say = say
        self._conventions = conventions
        self._retry_s = retry_s
        self._close_s = close_s
        position = _read(self._keep)
        self._position = Position(position.run) if afresh else position
        self._tracker: Tracker | None = None
        self._durable = 0
        """Bytes of the file that are on disk."""
        self._failed = False
        self._messages: deque[str] = deque()
        self._wake = threading.Event()
        self._closing = self._closed = False
        self._left = False
        """Whether the end of the run did not wait for the thread: another mirror may follow the file by now."""
        self._thread = threading.Thread(target=self._follow, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, axis: str, step: int, values: Mapping[str, Any]) -> None:
        """A row was written to the file: have it sent. The values are read from there."""
        self._wake.set()
        self._tell()

    def close(self) -> None:
        """Wait until all is sent, `close_s` seconds at most, and say what is not; idempotent."""
        if self._closed:
            return
        self._closing = self._closed = True
        self._wake.set()
        self._thread.join(self._close_s)
        self._left = self._thread.is_alive()
        self._tell()
        left = sum(1 for _ in _rows_after(self._source, self._position.sent))
        if left or self._thread.is_alive():
            GIVEN_UP.set()
        if left:
            self._say(f"{self.name}: {left} rows are not sent; they are in {self._source}, and a resume sends them")
        elif self._thread.is_alive():
            self._say(f"{self.name}: all rows are handed over, but it does not close within {self._close_s:g} s")
        if self._position.refused:
            self._say(f"{self.name}: {self._position.refused} rows were refused since the start of the run; they are in {self._source}")

    # --- the thread

    def _follow(self) -> None:
        wait = self._retry_s[0]
        while True:
            self._wake.clear()
            closing = self._closing
            try:
                self._catch_up()
                if closing and self._tracker is not None:
                    self._tracker.close()
                wait = self._retry_s[0]
            except Exception as error:  # noqa: BLE001 - behind a service lies foreign code: the rows are in the file, the run goes on
                self._complain(error)
                if not closing:
                    self._pause(wait)
                    wait = min(2 * wait, self._retry_s[1])
            if closing:
                return
            self._wake.wait()

    def _catch_up(self) -> None:
        if self._tracker is None:
            self._save(self._position)  # before the service knows the id, so that it is never opened twice
            self._tracker = self._open(self._position.run)
        for row, end in _rows_after(self._source, self._position.sent):
            if self._left:
                return
            refused = 0
            if row is not None:
                axis, step = row.pop("axis"), row.pop("step")
                try:
                    self._tracker.log(axis, step, named(axis, step, _numbers(row), self._conventions))
                except ValueError as error:
                    self._complain(error)
                    refused = 1
            self._make_durable(end)
            self._save(replace(self._position, sent=end, refused=self._position.refused + refused))

    def _make_durable(self, end: int) -> None:
        """A position beyond what a power failure leaves of the file would pass over rows that are written later."""
        if end > self._durable:
            size = self._source.stat().st_size
            sync(self._source)
            self._durable = size

    def _pause(self, seconds: float) -> None:
        """Wait before another attempt, whatever rows arrive meanwhile; closing ends it."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            if not self._closing:
                self._wake.clear()
        self._wake.set()

    def _complain(self, error: Exception) -> None:
        """Once per run of this process: a service that comes and goes must not fill the screen."""
        if not self._failed:
            self._failed = True
            self._messages.append(f"{self.name}: {type(error).__name__}: {error}; its rows are kept in {self._source}, the run goes on")

    def _save(self, position: Position) -> None:
        """Move on, and keep it. What could not be kept is not sent again by this process."""
        if self._left:
            return
        self._position = position
        with whole(self._keep) as aside:
            aside.write_text(json.dumps(asdict(position)))

    def _tell(self) -> None:
        while self._messages:
            self._say(self._messages.popleft())


def _read(path: Path) -> Position:
    try:
        return Position(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or not ours: a run of its own, with all rows
        return Position(uuid.uuid4().hex)


def _rows_after(path: Path, start: int) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """(row, position behind it) per whole line from a position on; None for a line that a crash cut short."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start if start <= path.stat().st_size else 0)  # another file took its place
        while (line := file.readline()).endswith(b"\n"):
            yield _row(line), file.tell()


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and {"axis", "step", "lineage"} <= row.keys() else None


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, the lineage among them; non-finite ones are texts in the file."""
    texts = ("NaN", "Infinity", "-Infinity")
    return {name: float(value) for name, value in row.items() if isinstance(value, (int, float)) or value in texts}
