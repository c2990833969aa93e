"""Trajectories to read: a bounded choice in which every stretch of the run and every kind of answer is seen."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paceline.report.lives import Life

STRETCHES = 24
"""The updates of a run are parted into so many stretches of equal length."""
SHORT, LONG = 1500, 3000
"""Characters kept of a prompt and of an answer; of what is longer the beginning and the end."""
_SMALL = ("group", "sample", "update", "reward", "finish", "reasons")
_WHOLE = (
    "group", "sample", "attempt", "update", "row", "task", "prompt", "gold", "version", "finish", "text", "reward", "outcome", "parts",
    "reasons", "extracted", "instance", "seconds",
)  # fmt: skip
_NAME = re.compile(r"(\d+)-update-(\d+)-\d+\.parquet")


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and out of how many."""

    samples: list[dict[str, Any]]
    """In order of update, group and sample."""
    count: int
    """Trajectories that the run, as it stands, trained on."""
    kinds: int = 0
    """Kinds of answers: by reason, or by reward where no reason is given, those cut at the limit apart."""
    stretches: int = 0
    """Stretches of updates that hold any."""
    unreadable: tuple[str, ...] = ()
    """Files that could not be read."""


def select(directory: Path, lives: Sequence[Life], most: int) -> Selection:
    """At most `most` trajectories, the same for the same files: in turn one of every (stretch, kind), drawn by a hash of group and sample.

    Two passes: small columns of everything, then texts of what was chosen.
    """
    strata: dict[tuple[int, str], list[tuple[int, Path, int]]] = defaultdict(list)
    files = list(_files(directory, lives))
    width = max(1, math.ceil(max((update for _, update in files), default=0) / STRETCHES))
    count, bad = 0, []
    for path, update in files:
        try:
            rows = pq.read_table(path, columns=list(_SMALL)).to_pylist()
        except (OSError, ValueError) as error:  # damaged: pyarrow's errors are ValueErrors
            bad.append(f"{path.name}: {error}")
            continue
        count += len(rows)
        for index, row in enumerate(rows):
            strata[update // width, _kind(row)].append((_draw(row["group"], row["sample"]), path, index))
    chosen: dict[Path, list[int]] = defaultdict(list)
    for path, index in _in_turn(strata, most):
        chosen[path].append(index)
    samples: list[dict[str, Any]] = []
    for path, indices in chosen.items():
        try:
            samples += _read(path, indices)
        except (OSError, ValueError) as error:  # where the texts lie, or deleted meanwhile
            bad.append(f"{path.name}: {error}")
    samples.sort(key=lambda sample: (sample["update"], sample["group"], sample["sample"]))
    return Selection(samples, count, len({kind for _, kind in strata}), len({stretch for stretch, _ in strata}), tuple(bad))


def _files(directory: Path, lives: Sequence[Life]) -> Iterator[tuple[Path, int]]:
    """Segments that hold, with their update."""
    by_id = {life.lineage.id: life for life in lives}
    for path in sorted(directory.glob("*.parquet")):
        match = _NAME.fullmatch(path.name)
        life = None if match is None else by_id.get(int(match[1]))
        if match is not None and life is not None and life.holds(int(match[2])):
            yield path, int(match[2])


def _kind(row: dict[str, Any]) -> str:
    reasons = ", ".join(sorted(reason for _, reason in row["reasons"] or ()))
    return f"{reasons or format(row['reward'], '.2g')}{' cut' if row['finish'] == 'length' else ''}"


def _draw(group: int, sample: int) -> int:
    """A number that mixes well; the same in every report."""
    mixed = (group * 0x9E3779B1 + sample * 0x85EBCA6B + 1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return mixed ^ (mixed >> 12)


def _in_turn(strata: dict[tuple[int, str], list[tuple[int, Path, int]]], most: int) -> Iterator[tuple[Path, int]]:
    """The first of every pile, then the second of each, and so on; the piles in turn from every stretch, so that rewards of many values,
    each a kind of its own, leave no stretch out."""
    by_stretch: dict[int, list[list[tuple[int, Path, int]]]] = defaultdict(list)
    for stretch, kind in sorted(strata):
        by_stretch[stretch].append(sorted(strata[stretch, kind]))
    ranked = [sorted(piles) for piles in by_stretch.values()]  # by the draw of their first
    piles = [pile for same_rank in zip_longest(*ranked) for pile in same_rank if pile is not None]
    left = most
    for depth in range(max(map(len, piles), default=0)):
        for pile in piles:
            if left and depth < len(pile):
                left -= 1
                yield pile[depth][1:]


def _read(path: Path, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    columns = [name for name in _WHOLE if name in file.schema_arrow.names]  # earlier versions wrote fewer
    table = file.read(columns=columns)
    for index in sorted(indices):
        row = table.slice(index, 1).to_pylist()[0]
        versions = row.pop("version")
        yield {
            **row,
            "prompt": shorten(row.get("prompt") or "", SHORT),
            "text": shorten(row["text"], LONG),
            "gold": shorten(row["gold"] or "", SHORT),
            "tokens": len(versions),
            "versions": sorted(set(versions)),
            "parts": dict(row["parts"] or ()),
            "reasons": dict(row["reasons"] or ()),
            "extracted": dict(row.get("extracted") or ()),
        }


def shorten(text: str, most: int) -> str:
    """The text, or its beginning and end and how much was left out between."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
