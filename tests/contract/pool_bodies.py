"""Bodies that the pool contract runs in workers; factories are named `pool_bodies:NAME`."""

import logging
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.ports.pool import Nap
from paceline.types.errors import EngineError


class Body:
    """Counts down as its own work, and does what the contract asks for."""

    def __init__(self, closed_file: str = "", warning: str = "") -> None:
        if warning:
            self.warn(warning)
        self.left = 0
        self.closed_file = closed_file
        self.naps, self.asleep = 0.0, False

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def tick(self) -> Sequence[Any] | Nap | None:
        if self.naps:
            self.asleep = not self.asleep
            return Nap(self.naps, ["asleep"]) if self.asleep else self.wake()
        if self.left == 0:
            return None
        self.left -= 1
        return [("left", self.left)] if self.left % 2 == 0 else []

    def close(self) -> None:
        if self.closed_file:
            Path(self.closed_file).write_text("closed")

    def warn(self, text: str) -> None:
        logging.getLogger("paceline.somewhere").warning("%s", text)
        logging.getLogger("paceline.somewhere").info("not %s", text)
        logging.getLogger("elsewhere").warning("not %s", text)

    def echo(self, value: Any) -> Any:
        return value

    def nap(self, seconds: float) -> None:
        self.naps = seconds

    def wake(self) -> Sequence[Any]:
        self.naps = 0.0
        return ["awake"]

    def count_down(self, start: int) -> None:
        self.left = start

    def refuse(self, kind: str) -> None:
        errors = {"engine": EngineError, "value": ValueError, "own": Odd, "stop": StopIteration}
        if kind in errors:
            raise errors[kind]("no such thing")
        if kind == "group":
            raise ExceptionGroup("no such thing", [ValueError(1)])
        raise UnicodeDecodeError("ascii", b"x", 0, 1, "no such thing")

    def die(self, code: int) -> None:
        print("these are my last words", flush=True)
        raise SystemExit(code)

    def start_child(self) -> int:
        return subprocess.Popen(["sleep", "60"]).pid

    def fork_child(self) -> int:
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        return child

    def fork_and_go_on_in_both(self) -> int:
        os.fork()
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def about(self) -> dict[str, Any]:
        variables = {"threads": "OMP_NUM_THREADS", "kept": "MALLOC_TRIM_THRESHOLD_", "mapped": "MALLOC_MMAP_THRESHOLD_"}
        settings = {name: os.environ.get(variable) for name, variable in variables.items()}
        return {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), **settings}


class Odd(Exception):
    """An error of a library that the controller does not know."""


def body(**arguments: Any) -> Body:
    return Body(**arguments)


def broken() -> Body:
    raise ValueError("this factory refuses")
