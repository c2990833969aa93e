"""`paceline timeline`: one lineage of a ledger, streamed into a trace for Perfetto or drawn as an SVG."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TextIO, cast

from paceline.core.account import Account
from paceline.core.account.tally import shares
from paceline.durable import whole
from paceline.runtime.ledger import LedgerReader, Lineage
from paceline.timeline.perfetto import PerfettoWriter
from paceline.timeline.range import Range
from paceline.timeline.story import Item, Story
from paceline.timeline.svg import Items, draw
from paceline.types.errors import ConfigError


class Format(StrEnum):
    """What a timeline is written as."""

    PERFETTO = "perfetto"
    SVG = "svg"


def timeline(run: Path, output: Path | None, form: Format | None, lineage: int | None, only: Range) -> list[str]:
    """Draw a run directory's ledger; what to tell the user about it.

    Without `form` the name of `output` decides, without both it is a trace in the run directory. Raises ConfigError for what is no run,
    an empty ledger or an unknown lineage, RecordError and LedgerError for a ledger that cannot be read.
    """
    ledger = run / "ledger.sqlite"
    if not ledger.is_file():
        raise ConfigError(f"{run}: is no run directory, it holds no ledger.sqlite")
    form = form or (Format.SVG if output is not None and output.suffix == ".svg" else Format.PERFETTO)
    output = output or run / ("timeline.svg" if form is Format.SVG else "timeline.json")
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no directory {output.parent}")
    if only.start >= only.end:
        raise ConfigError(f"--from {only.start:g} --to {only.end:g}: nothing lies between them")
    with closing(LedgerReader(ledger)) as reader:
        chosen = _chosen(reader, ledger, lineage)
        told = _Telling(reader, chosen, only)
        name = f"{run.resolve().name}: {chosen.schedule.preset}"
        with _file(output) as out:
            if form is Format.SVG:
                told.picture(out, name)
            else:
                told.trace(out, name)
        count = len(reader.lineages())
    where = f"{output} (open it in ui.perfetto.dev)" if form is Format.PERFETTO else str(output)
    return [f"{name}, lineage {chosen.id} of {count}, {told.length()}", *told.summary(), f"timeline: {where}"]


def _chosen(reader: LedgerReader, ledger: Path, wanted: int | None) -> Lineage:
    """The lineage asked for; by default the last one that decided anything."""
    lineages = reader.lineages()
    known = [one for one in lineages if next(reader.records(one.id), None) is not None]
    if not known:
        raise ConfigError(f"{ledger}: is empty: the run ended, or is, before its first decision")
    if wanted is None:
        return known[-1]
    found = next((one for one in known if one.id == wanted), None)
    if found is None:
        raise ConfigError(f"--lineage {wanted}: {ledger} holds {', '.join(str(one.id) for one in known)}")
    return found


class _Telling:
    """The story of a lineage, told once."""

    def __init__(self, reader: LedgerReader, lineage: Lineage, only: Range) -> None:
        self._reader = reader
        self._lineage = lineage
        self._only = only
        self._story = Story(lineage.schedule, lineage.resume)

    @property
    def account(self) -> Account:
        """As far as it is told."""
        return self._story.account

    def _items(self) -> Iterator[Item]:
        for record in self._reader.records(self._lineage.id):
            yield from self._only.cut(self._story.feed(record.value, record.now))
        yield from self._only.cut(self._story.close())

    def trace(self, out: TextIO, name: str) -> None:
        """As JSON for Perfetto."""
        writer = PerfettoWriter(out, {"run": name, "lineage": self._lineage.id, "started": self._lineage.started})
        writer.write(self._items())
        writer.close()

    def picture(self, out: TextIO, name: str) -> None:
        """As SVG."""
        items = Items()
        items.take(self._items())
        start, end = max(self._only.start, 0.0), min(self._only.end, self.account.now)
        part = "" if self._only == Range() else f"; shown: {start:g} to {end:g} s"
        out.write(draw(items, f"{name}, {self.length()}{part}", self.summary(), start, end))

    def length(self) -> str:
        """Updates and seconds, in words."""
        done = self.account.scene.updates - self._lineage.resume.update
        return f"{done} update{'' if done == 1 else 's'} in {self.account.total.seconds:.1f} s"

    def summary(self) -> list[str]:
        """What both pools did with their time, and how stale what they trained on was."""
        total = self.account.total
        works = ("train", "publish", "checkpoint")
        lines = [f"trainer: {_percent(total.trainer, works, 'waits')}", f"rollout slots: {_percent(total.slots, ('decode',), 'empty')}"]
        if total.staleness:
            counts = ", ".join(f"{count} x {versions}" for versions, count in sorted(total.staleness.items()))
            lines.append(f"groups by staleness in versions: {counts}")
        return lines


def _percent(seconds: Mapping[str, float], works: Collection[str], rest: str) -> str:
    """Shares, the largest first, what is work before what is not; those below half a percent are left out."""
    found = sorted(shares(seconds).items(), key=lambda pair: -pair[1])
    words: dict[bool, list[str]] = {True: [], False: []}
    for name, share in found:
        if share >= 0.005:
            words[name in works].append(f"{name} {100 * share:.0f} %")
    parts = [", ".join(words[True]), f"{rest}: {', '.join(words[False])}" if words[False] else ""]
    return "; ".join(part for part in parts if part) or "nothing"


@contextmanager
def _file(path: Path) -> Iterator[TextIO]:
    """A text file that is whole or absent; compressed if its name ends in .gz."""
    with whole(path) as aside, _opened(aside, path.suffix == ".gz") as out:
        yield out


def _opened(path: Path, compressed: bool) -> TextIO:
    if compressed:
        return cast(TextIO, gzip.open(path, "wt", encoding="utf-8", errors="replace"))
    return path.open("w", encoding="utf-8", errors="replace")  # a name or an error message may hold half a character
