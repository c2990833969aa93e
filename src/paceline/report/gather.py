"""Everything that the page shows, read from a run directory: what is missing there is missing here, and nothing is guessed."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from paceline.core.account import Row
from paceline.core.account.tally import Tally, increase
from paceline.core.events import TrajectoryFinished
from paceline.durable import read_lines
from paceline.report.doctor import Diagnosis, diagnose
from paceline.report.lives import Life, lives_of
from paceline.report.samples import Selection, select
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader
from paceline.runtime.metrics import time_metrics
from paceline.timeline.story import Item, Story, TrajectorySpan
from paceline.trackers.jsonl import read as read_metrics
from paceline.types.errors import ConfigError, DataError
from paceline.types.results import AuditReport, Share


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is shown of a line of eval.jsonl."""

    lineage: int
    update: int
    version: int
    problems: int
    greedy: Share | None
    sampled: Share | None
    parsed: Share | None
    pass_at: dict[int, float]


_EVALUATION = TypeAdapter(Evaluation)


@dataclass
class Told:
    """One life, told: what there is to draw, and its stretches as far as they hold."""

    life: Life
    items: list[Item] = field(default_factory=list)
    """Without trajectories."""
    updates: list[Row] = field(default_factory=list)
    periods: list[Row] = field(default_factory=list)
    end: float = 0.0
    """Seconds since the first record, as all times of the story."""
    total: Tally = field(default_factory=Tally)
    lengths: dict[int, int] = field(default_factory=dict)
    """Trajectories by number of sampled tokens."""


@dataclass(frozen=True)
class Run:
    """A run as the page tells it."""

    name: str
    lives: list[Told]
    updates: dict[int, dict[str, float]]
    """Update -> its metrics: what was learnt from metrics.jsonl, times and staleness from the ledger."""
    evaluations: list[Evaluation]
    samples: Selection
    config: str
    audit: AuditReport
    diagnosis: Diagnosis

    @property
    def latest(self) -> Told:
        """The present life, or the last one."""
        return self.lives[-1]

    @property
    def total(self) -> Tally:
        """All lives together, also what a resume voided: the time was spent."""
        tally = Tally()
        for told in self.lives:
            tally.add(told.total)
        return tally


def gather(run: Path, samples: int) -> Run:
    """Read a run directory, also while the run writes it. `samples`: trajectories that are shown at most.

    Raises ConfigError for what is no run or has decided nothing yet, LedgerError and RecordError for a ledger that cannot be read.
    """
    ledger = run / "ledger.sqlite"
    if not ledger.is_file():
        raise ConfigError(f"{run}: is no run directory, it holds no ledger.sqlite")
    with closing(LedgerReader(ledger)) as reader:
        lives = [_told(reader, life) for life in lives_of(reader)]
    if not lives:
        raise ConfigError(f"{ledger}: is empty: the run ended, or is, before its first decision; paceline doctor {run} says more")
    config, audited = run / "config.toml", audit(ledger)
    return Run(
        name=run.resolve().name,
        lives=lives,
        updates=_updates(run, lives),
        evaluations=_evaluations(run / "eval.jsonl", [told.life for told in lives]),
        samples=select(run / "trajectories", [told.life for told in lives], samples),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        audit=audited,
        diagnosis=diagnose(run, audited),
    )


def _told(reader: LedgerReader, life: Life) -> Told:
    story, told = Story(life.lineage.schedule, life.lineage.resume), Told(life)
    for record in reader.records(life.lineage.id):
        if isinstance(record.value, TrajectoryFinished):
            increase(told.lengths, record.value.tokens, 1)
        told.items += _drawn(story.feed(record.value, record.now))
    told.items += _drawn(story.close())
    told.end, told.total = story.account.now, story.account.total
    told.updates = [row for row in story.rows if row.axis == "update" and life.holds(row.step)]
    end = told.updates[-1].now if told.updates and math.isfinite(life.last) else math.inf
    told.periods = [row for row in story.rows if row.axis == "publish" and row.trained <= end]
    return told


def _drawn(items: list[Item]) -> list[Item]:
    return [item for item in items if not isinstance(item, TrajectorySpan)]


def _updates(run: Path, lives: list[Told]) -> dict[int, dict[str, float]]:
    """The ledger's rows are the truth about time; a metric that only the trainer knows comes from metrics.jsonl."""
    metrics = run / "metrics.jsonl"
    logged = [row for row in read_metrics(metrics) if row["axis"] == "update"] if metrics.is_file() else []
    learnt = {int(row["step"]): {name: _number(value) for name, value in row.items() if name not in ("axis", "step")} for row in logged}
    timed = {row.step: time_metrics(row) for told in lives for row in told.updates}
    return {step: {**learnt.get(step, {}), **timed[step]} for step in sorted(timed)}


def _number(value: Any) -> float:
    """A number as metrics.jsonl has it, NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _evaluations(path: Path, lives: list[Life]) -> list[Evaluation]:
    """Those of the run as it stands, in order of update, without the single answers. Raises DataError for a line that is none."""
    if not path.is_file():
        return []
    found: dict[int, Evaluation] = {}
    by_id = {life.lineage.id: life for life in lives}
    for number, line in read_lines(path):
        try:
            row = _EVALUATION.validate_python(line)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise DataError(f"{path} line {number}: not a line of evaluations{place and f' ({place})'}") from error
        life = by_id.get(row.lineage)
        if life is not None and life.lineage.resume.update <= row.update <= life.last:
            found[row.update] = row
    return [found[update] for update in sorted(found)]
