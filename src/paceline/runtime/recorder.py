"""What a run shows and keeps of itself: rows of metrics per update and per publish, alarms, progress. It never influences the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.core.account import Account, Row
from paceline.core.commands import Command, Dispatch
from paceline.core.events import Event
from paceline.ports.data import Tracker
from paceline.runtime.alarms import Alarms
from paceline.runtime.metrics import publish_metrics, time_metrics, update_metrics
from paceline.types.progress import Progress, UpdateReport
from paceline.types.records import ScoredGroup

OnProgress = Callable[[Progress], None]


class Recorder:
    """Sees every record, and writes a row when a stretch ends. Steps of an axis ascend, also across a resume from `update`."""

    def __init__(
        self, trackers: Sequence[Tracker], on_progress: OnProgress, account: Account, total: int, update: int, tokens: int = 0
    ) -> None:
        self._trackers = trackers
        self._on_progress = on_progress
        self._account = account
        self._total = total
        self._update = update
        self._alarms = Alarms()
        self._phase = ""
        self._tokens = tokens
        self._reported: dict[int, dict[str, float]] = {}
        """Updates that the trainer has done and the machine has not heard of."""
        self._tasks: set[str] = set()
        """Names of the tasks that came so far."""
        self.restarts = 0

    @property
    def update(self) -> int:
        """Updates done, those of earlier lineages included."""
        return self._update

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens trained on, those of earlier lineages included."""
        return self._tokens

    def recall(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Metrics of the updates before this life, in order: alarms compare with the beginning of the run, and tell nothing twice."""
        for row in rows:
            self._alarms.feed(row)

    def updated(self, command: Dispatch, groups: list[ScoredGroup], report: UpdateReport) -> None:
        """The trainer has done an update. Its row follows when the machine hears of it."""
        self._tasks |= {group.prompt.task for group in groups}
        self._reported[command.update] = update_metrics(groups, report, by_task=len(self._tasks) > 1)

    def feed(self, record: Event | Command, now: float) -> None:
        """An event or command was recorded, at `now` seconds: write the row of the stretch that it ends."""
        row = self._account.feed(record, now)
        if row is None:
            return
        if row.axis == "update":
            self._write(row)
        else:
            self.log("publish", row.step, publish_metrics(row))

    def _write(self, row: Row) -> None:
        values = {**self._reported.pop(row.step), **time_metrics(row), "workers/restarts": self.restarts}
        self._tokens += int(values["num_tokens"])
        values["num_tokens"] = self._tokens
        self._update = row.step
        self.log("update", row.step, values)
        for warning in self._alarms.feed(values):
            self.notice(f"update {row.step}: {warning}")
        self._on_progress(Progress(self._update, self._total, values, "train"))

    def evaluated(self, update: int, values: Mapping[str, float]) -> None:
        """An evaluation is done; `values` are named `eval/...`."""
        self.log("eval", update, values)
        self._on_progress(Progress(self._update, self._total, values, "evaluate"))

    def phase(self, phase: str) -> None:
        """Say what the run does now."""
        if phase != self._phase:
            self._phase = phase
            self._on_progress(Progress(self._update, self._total, {}, phase))

    def notice(self, message: str) -> None:
        """Tell the user something."""
        self._on_progress(Progress(self._update, self._total, {}, self._phase, message))

    def log(self, axis: str, step: int, values: Mapping[str, float]) -> None:
        """A row on any axis."""
        for tracker in self._trackers:
            tracker.log(axis, step, values)

    def close(self) -> None:
        """Flush the trackers."""
        for tracker in self._trackers:
            tracker.close()
