"""The run directory: what lies where, whose it is, and how a file or directory becomes complete in one moment."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from paceline.core.schedule import Resume
from paceline.durable import named, put_back, put_in_place, remove, sealed, sync, undamaged, unsealed, whole
from paceline.runtime.ledger import last_checkpoint, unused
from paceline.types.errors import CheckpointDamaged, CheckpointError, ConfigError

COMPLETE = re.compile(r"step-(\d+)")
ASIDE = re.compile(r"\..+\.\d+\.tmp")
"""What `durable.whole` and the export of a model write to before it gets its name; the number is a process id."""
ORIGIN = "paceline.json"
"""File of an exported model that says where its weights come from."""
EXPLAINS = ("task.", "eval.")
"""Parts of an identity whose names begin so never refuse a resume; they are shown where another part does."""
MENDED = "contents of reward."
"""Parts whose names begin so never refuse a resume either: who mends a reward that raised goes on with it. `mended` names them."""
FOLLOWS = "prompts of the run"
"""The part of an identity that follows from others: it is shown only where none of those differs."""
LOCK_S = 0.5
"""Seconds that a lock is waited for: a process that was killed a moment ago may still have it, or one that only asks who has it."""
PUT_ASIDE = "damaged-"
"""Checkpoints whose names begin so were found damaged; they count for nothing, and only users delete them."""


@dataclass(frozen=True, slots=True)
class ResumeInfo:
    """`resume.json` of a checkpoint: where the machine continues, and what the run was made of."""

    update: int
    version: int
    pending: tuple[int, ...]
    next_index: int
    lineage: int
    """Lineage that wrote the checkpoint."""
    identity: Mapping[str, str]
    """Name of a part (task, model, ...) -> what it was; a resume refuses when one differs."""
    tokens: int = 0
    """Prompt and sampled tokens trained on so far, where the metric `num_tokens` continues."""

    def resume(self) -> Resume:
        """What the machine needs of it."""
        return Resume(self.update, self.version, self.pending, self.next_index)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which weights of a run an exported model has."""

    lineage: int
    update: int


class RunDir:
    """Layout and lock of one run. Everything in it is written by the controller, except logs, weights and checkpoint payloads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.toml"
        self.ledger = root / "ledger.sqlite"
        self.metrics = root / "metrics.jsonl"
        self.evaluations = root / "eval.jsonl"
        self.notices = root / "notices.jsonl"
        self.trajectories = root / "trajectories"
        self.checkpoints = root / "checkpoints"
        self.logs = root / "logs"
        self.weights = root / "weights"
        self.moves = root / "moves"
        self.model = root / "model"
        self.tracking = root / "tracking"
        self.rows = root / "rows.json"
        self._lock: IO[str] | None = None

    @property
    def way_on(self) -> str:
        """The command that continues the run."""
        return f"paceline train {shlex.quote(str(self.config))} --resume"

    def open(self, *, resume: bool) -> None:
        """Create what is missing and take the lock, held until `close` or the end of this process.

        Raises ConfigError when another controller holds it, when a run or its checkpoints lie here and `resume` is not asked for, or the
        reverse.
        """
        if resume and not self.ledger.exists():
            raise ConfigError(f"run.dir = {self.root}: nothing to resume: no run lies here")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"run.dir = {self.root}: cannot be made: {error.strerror}: {error.filename}") from error
        with named(self.root):
            self._lock = self._locked()
        if not resume:
            self._begin_anew()
        for directory in (self.trajectories, self.checkpoints, self.logs, self.weights, self.moves):
            with named(directory):
                directory.mkdir(exist_ok=True)
        with named(self.root):
            sync(self.root)
        self.mend()

    def _locked(self) -> IO[str]:
        lock = (self.root / "lock").open("a+")
        until = time.monotonic() + LOCK_S
        while not _taken(lock):
            if time.monotonic() > until:
                lock.close()
                raise ConfigError(f"run.dir = {self.root}: another paceline process is running in it")
            time.sleep(0.05)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock

    def _begin_anew(self) -> None:
        """Refuse another run's directory. A run that failed while it started left a ledger without a record: it goes, and with it what
        that run told, which nobody could tell from what this one tells."""
        found = None
        latest = self.latest_checkpoint()
        if not unused(self.ledger):
            gone = self.lost_checkpoint()
            none = f"{gone}, once that is put back" if gone else "its beginning, it has no checkpoint yet"
            where = none if latest is None else latest.name
            found = f"a run lies here already: continue it from {where}: {self.way_on}; or choose another run.dir"
        elif latest is not None:
            found = "holds the checkpoints of a run whose ledger is gone; choose another run.dir"
        if found is not None:
            assert self._lock is not None
            self._lock.close()
            self._lock = None
            raise ConfigError(f"run.dir = {self.root}: {found}")
        for leftover in (*self.root.glob(f"{self.ledger.name}*"), self.notices):
            leftover.unlink(missing_ok=True)

    def mend(self) -> None:
        """Finish or undo what a crash left half done, and forget the weights of an earlier lineage and what moved under them. Nothing
        else may write here meanwhile."""
        for place in (self.root, self.checkpoints):
            put_back(place)
        for leftover in self.checkpoints.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for place in (self.root, self.trajectories, self.tracking, *filter(Path.is_dir, self.tracking.glob("*"))):
            for leftover in filter(lambda path: ASIDE.fullmatch(path.name), place.glob(".*.tmp")):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for passing in (self.weights, self.moves):
            shutil.rmtree(passing)
            passing.mkdir()

    def close(self) -> None:
        """Give the lock back. What engines were sent goes: a resume publishes again. Of a run that was begun since in the place of this
        one, whose directory was deleted, nothing goes."""
        if self._lock is not None:
            lock = self.root / "lock"
            if lock.exists() and os.path.samestat(lock.stat(), os.fstat(self._lock.fileno())):
                for passing in (self.weights, self.moves):
                    shutil.rmtree(passing, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def latest_checkpoint(self) -> Path | None:
        """The complete checkpoint of the highest update; None when there is none."""
        complete = self._complete()
        return complete[-1] if complete else None

    def lost_checkpoint(self) -> str:
        """The last checkpoint that was written, where none is left; "" where one is, or none was written yet.

        Raises LedgerError for a ledger that cannot be read.
        """
        update = None if self._complete() else last_checkpoint(self.ledger)
        return "" if update is None else f"step-{update}"

    def begin_checkpoint(self, update: int) -> Path:
        """A new directory to write a checkpoint into; it counts for nothing before `seal_checkpoint`."""
        aside = self.checkpoints / f".step-{update}"
        shutil.rmtree(aside, ignore_errors=True)
        with named(aside):
            aside.mkdir()
        return aside

    def seal_checkpoint(self, aside: Path, info: ResumeInfo, keep_last: int) -> Path:
        """Make the checkpoint complete: durable content first, then its name. Older ones beyond `keep_last` go afterwards.

        A resume appends to metrics and evaluations where this leaves them, so they are made durable first.
        """
        for kept in filter(Path.exists, (self.metrics, self.evaluations, self.root)):
            with named(kept):
                sync(kept)
        write_durably(aside / "resume.json", sealed(asdict(info)))
        final = self.checkpoints / aside.name.removeprefix(".")
        put_in_place(aside, final)
        for old in self._complete()[:-keep_last]:
            remove(old)
        return final

    def put_aside(self, damaged: Path, why: CheckpointDamaged) -> str:
        """Take a damaged checkpoint out of the count, and say so. Raises CheckpointError where it is the last one: the run must not begin
        again at its start as if there had never been a checkpoint.
        """
        others = [path for path in self._complete() if path != damaged]
        if not others:
            more = sorted(path.name for path in self.checkpoints.glob(f"{PUT_ASIDE}*"))
            gone = f" ({', '.join(more)} {'was' if len(more) == 1 else 'were'} damaged before)" if more else ""
            raise CheckpointError(
                f"{why}; no other checkpoint is whole{gone}. Put a copy of it back, or begin again with another run.dir"
            ) from why
        aside = damaged.with_name(f"{PUT_ASIDE}{damaged.name}")
        with named(aside):
            shutil.rmtree(aside, ignore_errors=True)
            damaged.rename(aside)
        return f"{why}; that checkpoint is kept as {aside.name}, and the run goes on from {others[-1].name}"

    def seal_model(self, aside: Path, origin: Origin) -> None:
        """Put an exported model, a directory beside `model`, in the place of an older one."""
        write_durably(aside / ORIGIN, json.dumps(asdict(origin)).encode())
        put_in_place(aside, self.model)

    def _complete(self) -> list[Path]:
        found = [path for path in self.checkpoints.glob("step-*") if COMPLETE.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def controller(root: Path) -> int | None:
    """Process id of the controller that runs in a directory; None when none does. 0 = one does, and has not said its number."""
    path = root / "lock"
    if not path.is_file():
        return None
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = lock.read()
            return int(text) if text.isdigit() else 0
    return None


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_resume(checkpoint: Path) -> ResumeInfo:
    """The `resume.json` of a checkpoint. Raises CheckpointDamaged when it is missing or is not what was written, CheckpointError when
    another version of paceline wrote it, OSError when it cannot be read now."""
    path = checkpoint / "resume.json"
    with undamaged(path, ValueError):
        fields = unsealed(path.read_bytes())
    try:
        return ResumeInfo(**{**fields, "pending": tuple(fields["pending"])})
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: whole, but another version of paceline wrote it ({error})") from error


def read_origin(model: Path) -> Origin:
    """Where the weights of a run's exported model come from. Raises CheckpointError when its record is missing or damaged."""
    path = model / ORIGIN
    try:
        return Origin(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def check_identity(
    saved: Mapping[str, str], present: Mapping[str, str], where: Path, explain: Mapping[str, Callable[[], str]] | None = None
) -> None:
    """Refuse to resume with other parts than the checkpoint was made with; names every part that differs.

    explain: name of a part -> how it differs, in words, where its values say nothing.
    """
    changed = [name for name in _differ(saved, present) if not name.startswith(MENDED)]
    if all(map(_explains, changed)):
        return
    shown = _shown(changed, saved.keys() & present.keys())
    words = {name: how() for name, how in (explain or {}).items() if name in shown}
    lines = [f"  {name}: {words.get(name) or f'{saved.get(name)} -> {present.get(name)}'}" for name in shown]
    raise CheckpointError(
        "\n".join([f"{where}: the checkpoint belongs to another run; changed since:", *lines, "take it back, or choose another run.dir"])
    )


def _shown(changed: Sequence[str], both: Collection[str]) -> list[str]:
    """Which of the changed parts are worth a line. both: what was there before, and is now: of a task that is new or gone its rows say so,
    and not each of its settings."""
    causes = [name for name in changed if name != FOLLOWS]
    shown = changed if all(map(_explains, causes)) else causes
    return [name for name in shown if not _explains(name) or name in both]


def mended(saved: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """The files of reward functions that hold something else than they did: `reward.0.function, reward.py`."""
    return [name.removeprefix("contents of ") for name in _differ(saved, present) if name.startswith(MENDED)]


def _differ(saved: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*saved, *present}) if saved.get(name) != present.get(name)]


def _explains(name: str) -> bool:
    return name.startswith(EXPLAINS)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that is whole or absent, and on disk."""
    with whole(path) as aside:
        aside.write_bytes(content)
