"""What a run shows and keeps of itself: one row of metrics per update, alarms, progress. It never influences the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.core.commands import Dispatch, Terminal
from paceline.ports.data import Tracker
from paceline.runtime.alarms import Alarms
from paceline.runtime.metrics import Counts, update_metrics
from paceline.runtime.stopwatch import Stopwatch
from paceline.types.progress import Progress, UpdateReport
from paceline.types.records import ScoredGroup

OnProgress = Callable[[Progress], None]


class Recorder:
    """Collects between two updates, and writes a row at each. Steps of an axis ascend, also across a resume from `update`."""

    def __init__(
        self, trackers: Sequence[Tracker], on_progress: OnProgress, watch: Stopwatch, total: int, update: int, tokens: int = 0
    ) -> None:
        self._trackers = trackers
        self._on_progress = on_progress
        self._watch = watch
        self._total = total
        self._update = update
        self._alarms = Alarms()
        self._phase = ""
        self._terminal = {"filtered": 0, "failed": 0}
        self._tokens = tokens
        self._staleness = 0
        self._verifier_errors = 0
        self._failed_attempts = 0
        self.restarts = 0

    @property
    def update(self) -> int:
        """Updates done, those of earlier lineages included."""
        return self._update

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens trained on, those of earlier lineages included."""
        return self._tokens

    def dispatched(self, command: Dispatch) -> None:
        """Groups were consumed."""
        self._staleness = max((self._staleness, *command.staleness))

    def terminal(self, command: Terminal) -> None:
        """A group reached its end."""
        if command.state != "trained":
            self._terminal[command.state] += 1

    def count_verifier_error(self) -> None:
        """A group could not be judged."""
        self._verifier_errors += 1

    def count_failed_attempt(self) -> None:
        """An attempt ended without a trajectory."""
        self._failed_attempts += 1

    def updated(self, command: Dispatch, groups: list[ScoredGroup], report: UpdateReport) -> None:
        """An update is done: write its row."""
        row = update_metrics(groups, report, self._watch.cut(), self._counts())
        self._update, self._tokens = command.update, int(row["num_tokens"])
        self._verifier_errors = self._failed_attempts = self._staleness = 0
        self._terminal = dict.fromkeys(self._terminal, 0)
        self.log("update", command.update, row)
        for warning in self._alarms.feed(row):
            self.notice(f"update {command.update}: {warning}")
        self._on_progress(Progress(self._update, self._total, row, "train"))

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

    def _counts(self) -> Counts:
        return Counts(
            staleness=self._staleness,
            verifier_errors=self._verifier_errors,
            filtered_groups=self._terminal["filtered"],
            failed_groups=self._terminal["failed"],
            failed_attempts=self._failed_attempts,
            restarts=self.restarts,
            tokens_before=self._tokens,
        )
