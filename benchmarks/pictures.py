"""docs/figures/timeline.svg: a part of a recorded real run, as `paceline timeline --format svg` draws it. Part of `make figures`."""

from __future__ import annotations

import gzip
import json

from evidence import ROOT
from paceline.core.codec import decode
from paceline.core.schedule import Resume, Schedule
from paceline.timeline.story import tell
from paceline.timeline.svg import Items, draw

RECORDED = ROOT / "tests" / "core" / "recorded" / "seed-0.jsonl.gz"
PART = (40.0, 100.0)
"""Seconds since the run's first record."""


def main() -> None:
    """Write the figure."""
    head, *lines = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
    deadlines = tuple((kind, seconds) for kind, seconds in head["schedule"].pop("deadlines"))
    schedule = Schedule(**head["schedule"], deadlines=deadlines)
    resume = Resume(**{**head["resume"], "pending": tuple(head["resume"]["pending"])})
    items = Items()
    items.take(tell(schedule, resume, ((line["now"], decode(line["record"])) for line in lines)))
    title = f"The quickstart, {schedule.preset}: {PART[0]:g} to {PART[1]:g} s of the run"
    (ROOT / "docs" / "figures" / "timeline.svg").write_text(draw(items, title, [], *PART), encoding="utf-8")


if __name__ == "__main__":
    main()
