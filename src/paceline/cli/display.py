"""What one sees of a run: a live panel on a terminal, exactly one line per update elsewhere. Notices go to standard error."""

from __future__ import annotations

import io
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from types import TracebackType
from typing import IO, Any, Protocol, Self, cast

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.types.progress import Progress

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = {
    "reward": "reward",
    "reward_std": "std",
    "loss": "loss",
    "grad_norm": "grad",
    "entropy": "entropy",
    "kl": "kl",
    "logprob_gap/mean": "gap",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut",
    "staleness/mean": "stale",
    "trainer_waiting_ratio/all": "wait",
    "rollout_tokens_per_second": "tok/s",
    "step_time": "s",
}
"""Metrics shown of an update, by name, and how they are headed; those absent are left out."""


def sparkline(values: list[float], width: int = 60) -> str:
    """The last `width` values as bars between their least and largest."""
    shown = [value for value in values[-width:] if math.isfinite(value)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((value - low) / step)] for value in shown)


def number(value: float) -> str:
    """A value in about four significant digits; counts without a fraction."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.1f}" if 100 <= abs(value) < 1e6 else f"{value:.4g}"


def update_line(progress: Progress) -> str:
    """One update in one line."""
    shown = [f"{head} {number(progress.metrics[name])}" for name, head in COLUMNS.items() if name in progress.metrics]
    return "  ".join([f"update {progress.update}/{progress.total}", *shown])


def evaluation_line(update: int, metrics: Mapping[str, float]) -> str:
    """One evaluation in one line."""
    values = (f"{name.removeprefix('eval/')} {number(value)}" for name, value in metrics.items())
    return "  ".join([f"evaluation after update {update}", *values])


class History:
    """What was shown so far: every reward, the first and last evaluation, the last row and notices."""

    def __init__(self) -> None:
        self.now = Progress(0, 0)
        self.rewards: list[float] = []
        self.row: Mapping[str, float] = {}
        self.evaluations: list[Mapping[str, float]] = []
        self.notices: deque[str] = deque(maxlen=3)
        self._last = 0

    def feed(self, progress: Progress) -> str:
        """Take it in; returns the line of a new update or evaluation, else nothing."""
        if progress.update < self._last:  # a lost trainer took updates along: they are made, and shown, again
            del self.rewards[max(0, len(self.rewards) - (self._last - progress.update)) :]
            self._last = progress.update
        self.now = progress
        if progress.message:
            self.notices.append(progress.message)
        if progress.metrics and all(name.startswith("eval/") for name in progress.metrics):
            self.evaluations[1:] = [progress.metrics]
            return evaluation_line(progress.update, progress.metrics)
        if not progress.metrics or progress.update <= self._last:
            return ""
        self._last, self.row = progress.update, progress.metrics
        if "reward" in progress.metrics:
            self.rewards.append(progress.metrics["reward"])
        return update_line(progress)

    def summary(self) -> list[str]:
        """How reward and evaluation went from the beginning to the end."""
        lines = []
        if len(self.rewards) > 1:
            few = min(5, len(self.rewards) // 2)
            first, last = fmean(self.rewards[:few]), fmean(self.rewards[-few:])
            which = "first and last" + (f" {few} updates" if few > 1 else "")
            lines.append(f"reward {first:.3f} -> {last:.3f} ({which})  {sparkline(self.rewards)}")
        if len(self.evaluations) > 1:
            before, after = self.evaluations
            values = (f"{name.removeprefix('eval/')} {before[name]:.3f} -> {value:.3f}" for name, value in after.items() if name in before)
            lines.append("  ".join(["evaluation", *values]))
        return lines


class Display(Protocol):
    """A context in which progress is shown."""

    history: History

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def __call__(self, progress: Progress) -> None:
        """Show it; cheap, never raises for odd values."""


class Lines:
    """One line per update and per evaluation; for files, pipes and logs."""

    def __init__(self, out: Console, err: Console) -> None:
        self.history = History()
        self._out, self._err = out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def __call__(self, progress: Progress) -> None:
        """Print the line of an update once, of an evaluation, and of a notice."""
        if progress.message:
            plain(self._err, progress.message)
        if line := self.history.feed(progress):
            plain(self._out, line)


class Panel:
    """Phase, bar, reward curve, the last update's values and the last notices, redrawn in place."""

    def __init__(self, out: Console, err: Console) -> None:
        """err: gets the notices as well, where it is not the screen."""
        self.history = History()
        self._out, self._err = out, None if err.file.isatty() else err
        self._began = time.monotonic()
        self._evaluation = ""
        self._live = Live(console=out, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Take it in; the panel redraws itself four times a second."""
        if progress.message and self._err is not None:
            plain(self._err, progress.message)
        line = self.history.feed(progress)
        if line.startswith("evaluation"):
            self._evaluation = line

    def render(self) -> RenderableType:
        """The panel as it stands."""
        seen, now, width = self.history, self.history.now, self._out.width
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(now.total, 1), completed=now.update, width=max(8, min(40, width - 36)))
        elapsed = time.monotonic() - self._began
        head.add_row(Text(now.phase or "start", style="bold"), bar, f"{now.update}/{now.total}", f"{elapsed:.0f} s")
        parts: list[RenderableType] = [head]
        if seen.rewards:
            low, high = min(seen.rewards), max(seen.rewards)
            ends = f"{number(seen.rewards[-1])} ({number(low)} to {number(high)})"
            parts.append(Text(f"reward {sparkline(seen.rewards, max(8, min(60, width - len(ends) - 9)))} {ends}"))
        if seen.row:
            parts.append(_row(seen.row))
        if self._evaluation:
            parts.append(Text(self._evaluation, style="cyan"))
        parts.extend(Text(notice, style="yellow") for notice in tuple(seen.notices))
        return Group(*parts)


def _row(metrics: Mapping[str, float]) -> Columns:
    """Names and values in as many columns as the screen is wide for; none is broken."""
    shown = [(head, number(metrics[name])) for name, head in COLUMNS.items() if name in metrics]
    return Columns([Text.assemble((head, "dim"), " ", value, no_wrap=True) for head, value in shown], padding=(0, 2))


def plain(console: Console, text: str) -> None:
    """Print one line as it is: no markup, no wrapping."""
    console.print(Text(text), soft_wrap=True)


class _Lasting:
    """A text stream that goes mute where its reader has left or its disk is full, and never raises for it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale that lacks the bars of a sparkline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or not."""
        try:
            self._stream.write(text)
        except OSError:
            self._mute()
        return len(text)

    def flush(self) -> None:
        """Flush, or not."""
        try:
            self._stream.flush()
        except OSError:
            self._mute()

    def _mute(self) -> None:
        """What is still buffered goes nowhere, at the exit of the interpreter too."""
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def screen(stream: IO[str] | None) -> Console:
    """A console on a standard stream. What it shows is never worth a run: a closed pipe or terminal only ends the showing."""
    return Console(quiet=True) if stream is None else Console(file=cast(IO[str], _Lasting(stream)))


def display(out: Console, err: Console) -> Display:
    """A live panel if `out` is a terminal that can be redrawn, else lines: also where a pipe is only told to be coloured (FORCE_COLOR)."""
    return Panel(out, err) if out.is_interactive and out.file.isatty() else Lines(out, err)
