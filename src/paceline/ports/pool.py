"""How worker processes are made and talked to. A process pool, an in-process pool and later a Ray pool look the same."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What to start. `factory` is `module:function`, called in the worker with `arguments`; it returns a WorkerBody."""

    name: str
    factory: str
    arguments: Mapping[str, Any]
    threads: int = 1
    cores: tuple[int, ...] = ()
    """CPU cores to pin to; empty = no pinning."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nap:
    """What a tick returns when the next one would find nothing to do before `seconds` have passed. A call ends it early."""

    seconds: float
    reports: Sequence[Any] = ()


class WorkerBody(Protocol):
    """What runs inside a worker: answers calls, and ticks while it has work of its own."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer one call; an exception travels back to the caller and the worker lives on."""

    def tick(self) -> Sequence[Any] | Nap | None:
        """Advance own work and return what to report (may be empty); None = nothing to do, wait for a call. A Nap waits for a while."""

    def close(self) -> None:
        """Release everything; the process ends afterwards."""


def after(tick: Sequence[Any] | Nap | None) -> tuple[float | None, Sequence[Any]]:
    """What a tick asks for: seconds until the next one (None = only after a call), and what to report."""
    if isinstance(tick, Nap):
        return max(0.0, tick.seconds), tick.reports
    return (None, ()) if tick is None else (0.0, tick)


def make_body(spec: WorkerSpec) -> WorkerBody:
    """Call the factory that `spec` names (`module:function`) with its arguments. Runs inside the worker."""
    module, _, function = spec.factory.partition(":")
    return cast(WorkerBody, getattr(importlib.import_module(module), function)(**spec.arguments))


class Worker(Protocol):
    """A handle on a started worker."""

    name: str

    def call(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """Send a call into the body, before this returns: calls arrive and are answered in the order in which they are made. Raises,
        here or when awaited, what the body raised, or WorkerLost when the worker ended."""

    async def stop(self, grace_s: float) -> None:
        """Close the body; kill what is left after `grace_s` seconds."""

    def kill(self) -> None:
        """End it at once."""


class Pool(Protocol):
    """Starts workers."""

    async def start(self, spec: WorkerSpec, on_report: Callable[[Any], None], on_lost: Callable[[str], None]) -> Worker:
        """Start a worker; its reports and its loss (with the reason) arrive through the two callables, on the event loop.
        Raises what the factory raised. `on_lost` is called once for any end that `stop` did not ask for, `kill` included."""
