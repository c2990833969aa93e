"""What a live or dead run waits for, since when and until when; what went wrong; and whether someone has to do something."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from paceline.core import commands as c
from paceline.core.account.causes import TRAINER, trainer
from paceline.core.account.scene import Scene
from paceline.core.events import StopRequested, UpdateFinished
from paceline.core.outbox import Wait
from paceline.report.troubles import Finding, Level, Troubles, count, named
from paceline.runtime.alarms import Alarms
from paceline.runtime.audit import Replay
from paceline.runtime.ledger import LedgerReader, Lineage
from paceline.runtime.notices import Notice
from paceline.runtime.notices import read as read_notices
from paceline.runtime.rundir import RunDir, controller, read_origin
from paceline.trackers.jsonl import updates
from paceline.types.errors import CheckpointError, ConfigError
from paceline.types.results import AuditReport

SILENT_S = 60.0
"""A controller records its timer every few seconds: one that recorded nothing for so long is stuck itself."""
FULL = 1 << 20
"""With fewer bytes left a disk is full."""
ROOM = 64 << 20
"""With fewer bytes left it is nearly full, whatever a checkpoint needs."""
STANDS = "it does not go on by itself"
SHOWN = 8
"""Waits and notices that are shown at most."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What one owner owes, the most pressing first."""

    kind: str
    owner: str
    what: tuple[str, ...]
    """All of it, in words, the oldest first."""
    since: float
    """Seconds that the oldest has been waited for."""
    left: float
    """Seconds until the first is due; negative: overdue by so much."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run, looked at once."""

    state: str
    """starting, running, stuck, ending, done, left, failed, died, or nothing (no record, no process)."""
    headline: str
    facts: tuple[str, ...]
    """Where it stands, what can be continued."""
    trainer: str
    """What the trainer does or waits for, or did when the records end."""
    owed: tuple[Owed, ...]
    findings: tuple[Finding, ...]
    notices: tuple[str, ...]
    """The last of what the run showed."""
    lineages: int

    @property
    def healthy(self) -> bool:
        """Whether nobody has to do anything: it runs or ended as it should, nothing is overdue, no finding is a fault."""
        overdue = self.state == "running" and any(owed.left < 0 for owed in self.owed)
        return self.state not in ("stuck", "failed", "died", "nothing") and not overdue and all(f.level != "fault" for f in self.findings)


@dataclass(slots=True)
class _Replayed:
    """A lineage, read once."""

    lineage: Lineage
    replay: Replay
    scene: Scene
    troubles: Troubles
    stop: c.Stop | None = None
    asked: str = ""
    """Who asked it to stop."""
    done: int = 0
    """Updates that the trainer has finished."""
    last: float = 0.0
    records: int = 0
    fault: str = ""
    """Where the machine could not follow; the audit says the same."""

    @property
    def open(self) -> bool:
        """Whether it began and has not come to its end."""
        return self.records > 0 and self.stop is None

    @property
    def began(self) -> float:
        """When the lineage began, seconds since the epoch."""
        return datetime.fromisoformat(self.lineage.started).timestamp()

    def ended_by(self, moment: float) -> bool:
        """Whether nothing was recorded since a moment: then who took the run at that moment has not begun a lineage of its own."""
        return self.began + self.last < moment

    @property
    def doing(self) -> str:
        """What the trainer does or waits for; "" at the end."""
        return TRAINER[trainer(self.scene)] if self.open else ""

    def owed(self, now: float) -> tuple[Owed, ...]:
        """What is waited for, of a run that the machine can follow to where it is."""
        return tuple(_owed(self.replay.machine.waits(now), now)) if self.open and not self.fault else ()


def diagnose(run: Path, audited: AuditReport | None = None, wall: float | None = None) -> Diagnosis:
    """Look at a run directory: once at every record of its last lineage. `audited`: its audit, if it was made already, whose findings are
    told then; `wall`: seconds since the epoch, now by default.

    Raises ConfigError for what is no run, LedgerError and RecordError for a ledger that cannot be read.
    """
    rundir = RunDir(run)
    if not rundir.ledger.is_file():
        raise ConfigError(f"{run}: is no run directory, it holds no ledger.sqlite")
    process, taken = controller(run), _taken(run)
    with closing(LedgerReader(rundir.ledger)) as reader:
        lineages = reader.lineages()
        if not lineages:
            return _empty(process)
        read = _replay(reader, lineages[-1])
    notices = [notice for notice in read_notices(rundir.notices) if notice.lineage == read.lineage.id]
    wall = time.time() if wall is None else wall
    now = _now(read, process, wall)
    over = process is not None and read.ended_by(taken)  # all that is recorded is of a life before the present one
    state, headline, wrong = _look(read, rundir, None if over else process, now, notices)
    if over:
        state, headline, wrong = "starting", f"{_starts(process or 0, wall - taken)}; the life before {headline}", []
    findings = [*wrong, *_rules(run, read, audited), *_disk(state, run)]
    return Diagnosis(
        state=state,
        headline=headline,
        facts=tuple(_facts(read, rundir, len(lineages))),
        trainer="" if over else read.doing,
        owed=() if over else read.owed(now),
        findings=tuple(sorted(findings, key=lambda finding: ("fault", "warning", "note").index(finding.level))),
        notices=_told(notices),
        lineages=len(lineages),
    )


def _look(read: _Replayed, rundir: RunDir, process: int | None, now: float, notices: Sequence[Notice]) -> tuple[str, str, list[Finding]]:
    """The state that a lineage is in, its headline, and what is wrong with it."""
    if process is None:
        fatal = next((notice.message for notice in reversed(notices) if notice.fatal), "")
        state, headline = _gone(read, rundir, fatal, shutil.disk_usage(rundir.root).free < FULL)
    else:
        state, headline = _held(read, process, now)
    return state, headline, [*_ended(state, rundir), *read.troubles.findings(), *_alarms(rundir, state)]


def _told(notices: Sequence[Notice]) -> tuple[str, ...]:
    """The last of them; what ended the run is its headline."""
    lines = [f"{notice.time}  after update {notice.update}: {notice.message}" for notice in notices if not notice.fatal]
    return tuple(lines[-SHOWN:])


def _replay(reader: LedgerReader, lineage: Lineage) -> _Replayed:
    read = _Replayed(lineage, Replay(lineage), Scene(lineage.schedule, lineage.resume), Troubles(), done=lineage.resume.update)
    for record in reader.records(lineage.id):
        read.records, read.last = read.records + 1, record.now
        read.scene.take(record.value)
        read.troubles.feed(record.value, record.now)
        if isinstance(record.value, c.Stop):
            read.stop = record.value
        if isinstance(record.value, StopRequested):
            read.asked = record.value.reason
        if isinstance(record.value, UpdateFinished):
            read.done = record.value.update
        read.fault = read.fault or read.replay.feed(record)
    return read


def _now(read: _Replayed, process: int | None, wall: float) -> float:
    """The lineage's clock now; where nothing runs, when it ended."""
    return read.last if process is None else max(read.last, wall - read.began)


def _taken(run: Path) -> float:
    """When a controller last took the run, seconds since the epoch; 0 where none ever did."""
    lock = run / "lock"
    return lock.stat().st_mtime if lock.is_file() else 0.0


def _empty(process: int | None) -> Diagnosis:
    state, words = ("starting", "is starting: its ledger has no lineage yet") if process is not None else ("nothing", "never began")
    return Diagnosis(state, words, (), "", (), (), (), 0)


# In which state it is


def _who(process: int) -> str:
    return f"process {process}" if process else "a process"


def _starts(process: int, seconds: float) -> str:
    return f"starts, for {duration(max(0.0, seconds))}: {_who(process)} loads models and data, and has decided nothing yet"


def _held(read: _Replayed, process: int, now: float) -> tuple[str, str]:
    """Of a run that a process holds."""
    if read.stop is not None and read.stop.ok:
        return "ending", f"ends ({read.stop.reason}): {_who(process)} writes the model and stops its workers"
    if read.stop is not None:
        return "failed", f"failed after {duration(read.last)}: {read.stop.reason}"
    if not read.records:
        return "starting", _starts(process, now)
    silent = now - read.last
    if silent > SILENT_S:
        return "stuck", f"is stuck: {_who(process)} holds the run, and has recorded nothing for {duration(silent)}"
    return "running", f"runs ({_who(process)}), for {duration(now)}; the last record is {duration(silent)} old"


def _gone(read: _Replayed, rundir: RunDir, fatal: str, full: bool) -> tuple[str, str]:
    """Of a run that no process holds. fatal: the error that ended it."""
    if read.stop is not None and (not read.stop.ok or not fatal):
        return _stopped(read, read.stop, rundir)
    if fatal:
        return "failed", f"failed after {duration(read.last)}: {fatal}"
    if not read.records:
        return "nothing", "ended before its first decision, and left no error: it was killed, or could not write"
    if full:
        return "died", f"died after {duration(read.last)}: its disk is full, so that it could not even write why"
    return "died", f"died after {duration(read.last)} without a word: killed (kill -9, out of memory, a reboot), or the power went"


def _stopped(read: _Replayed, stop: c.Stop, rundir: RunDir) -> tuple[str, str]:
    """Of a run that decided to stop, and whose process is gone."""
    if not stop.ok:
        return "failed", f"failed after {duration(read.last)}: {stop.reason}"
    if rundir.weights.is_dir() and not _exported(read, rundir):  # an orderly end removes it
        return "died", f"died after {duration(read.last)}, when its updates were done and before its model was written: killed"
    if read.asked and read.done < read.lineage.schedule.total_updates:
        return "left", f"was left after {duration(read.last)}, as {read.asked} asked; it goes on with {rundir.way_on}"
    return "done", f"is done after {duration(read.last)}: {stop.reason}"


def _exported(read: _Replayed, rundir: RunDir) -> bool:
    """Whether the lineage has written its model; a model that does not say whose it is counts."""
    try:
        return read_origin(rundir.model).lineage == read.lineage.id
    except CheckpointError:
        return rundir.model.is_dir()


def _ended(state: str, rundir: RunDir) -> list[Finding]:
    """What to do about a run that does not go on by itself; what happened is its headline."""
    if state not in ("failed", "died", "stuck", "nothing"):
        return []
    how = rundir.way_on if rundir.config.is_file() else "paceline train CONFIG --resume"
    if state == "stuck":
        return [Finding("fault", STANDS, (), f"look at the process (py-spy dump, top) and at the disk; stop it, then: {how}")]
    try:
        checkpoint = rundir.latest_checkpoint()
    except OSError:
        checkpoint = None
    where = f"from {checkpoint}" if checkpoint is not None else "from the beginning: there is no checkpoint"
    where = f"when {gone} is put back, its last checkpoint" if (gone := rundir.lost_checkpoint()) else where
    return [Finding("fault", STANDS, (), f"mend the cause, then: {how} (it goes on {where}); workers' logs: {rundir.logs}")]


def _facts(read: _Replayed, rundir: RunDir, lineages: int) -> list[str]:
    schedule, scene = read.lineage.schedule, read.scene
    facts = [f"{read.done} of {schedule.total_updates} updates done, schedule {schedule.preset}, {count(scene.slots, 'slot')} up"]
    if lineages > 1:
        facts.append(f"lineage {read.lineage.id} of {lineages}, continued after update {read.lineage.resume.update}")
    checkpoint = rundir.latest_checkpoint() if rundir.checkpoints.is_dir() else None
    gone = rundir.lost_checkpoint()
    none = f"its last checkpoint, {gone}, is gone" if gone else "no checkpoint yet"
    facts.append(f"last complete checkpoint: {checkpoint.name}" if checkpoint is not None else none)
    return facts


# What it waits for


def _owed(waits: Sequence[Wait], now: float) -> list[Owed]:
    """By owner and kind, the most pressing first."""
    by_owner: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for wait in waits:
        by_owner[wait.kind, wait.owner].append(wait)
    found = []
    for (kind, owner), owed in by_owner.items():
        owed.sort(key=lambda wait: wait.since)
        deadline = min(wait.deadline for wait in owed)
        found.append(Owed(kind, owner, tuple(wait.what for wait in owed), now - owed[0].since, deadline - now))
    return sorted(found, key=lambda owed: owed.left)


KEYS = {"materialize": "reward.timeout_s", "dispatch": "pool.train_timeout_s"}
"""Keys of the configuration that deadlines follow from; all others from pool.answer_timeout_s."""


def debt(owed: Owed, live: bool) -> str:
    """What one owner owes, in a line. live: the run goes on, so that what is not overdue still has time."""
    due = f"due in {duration(owed.left)}" if owed.left >= 0 else f"OVERDUE by {duration(-owed.left)}"
    key = KEYS.get(owed.kind, "pool.answer_timeout_s")
    return f"{owed.owner}: {named(owed.what)}, for {duration(owed.since)}" + (f"; {due} ({key})" if live or owed.left < 0 else "")


# What else is wrong


def _alarms(rundir: RunDir, state: str) -> list[Finding]:
    """Conditions that hold at the last update, from the first update that the run goes back to. Of a run that is done they are warnings:
    there is nothing left to stop."""
    alarms = Alarms()
    for row in updates(rundir.metrics):
        alarms.feed(row)
    level: Level = "warning" if state == "done" else "fault"
    return [Finding(level, f"for {count(alarm.streak, 'update')}: {alarm.what}", (), alarm.advice) for alarm in alarms.present()]


def _rules(run: Path, read: _Replayed, audited: AuditReport | None) -> list[Finding]:
    """The run checks every rule itself, and a broken one ends it. Here the decisions are compared, which the replay does in passing."""
    own = (f"replay: {read.fault}",) if read.fault else ()
    broken = own if audited is None else audited.violations
    if not broken:
        return []
    what = f"{count(len(broken), 'rule')} broken: what the run did is not what the schedule promises"
    advice = f"this is a fault of paceline, or the ledger was changed: please report it, with what paceline audit {run} says"
    return [Finding("fault", what, broken[:SHOWN], advice)]


def _disk(state: str, run: Path) -> list[Finding]:
    """A checkpoint is as large as the last one; the next must fit beside it, if there will be one."""
    if state == "done":
        return []
    free, needed = shutil.disk_usage(run).free, 0
    with suppress(OSError):  # a live run may take a checkpoint away meanwhile
        newest = max((run / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime, default=None)
        needed = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) if newest is not None else 0
    if free >= max(needed, ROOM):
        return []
    what = f"the disk is nearly full: {free / 1e6:,.1f} MB free, a checkpoint needs {needed / 1e6:,.1f} MB"
    return [Finding("fault", what, (), "make room, or move run.dir; the state on disk stays usable")]


def duration(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
