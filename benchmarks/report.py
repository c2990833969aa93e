"""The page of a long run: what it weighs, what making it costs, how long a browser takes to open it and to search its samples.

The run is simulated (benchmarks/made_runs.py): no model, but ledger, metrics and trajectory files as a real one leaves them.
`--pictures RUN` writes docs/figures/report-*.png from a run directory instead, `--timeline` that of a timeline, from a simulated run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from PIL import Image

import made_runs
from browser import NAMES, Browser, find
from evidence import ROOT, commit, measured
from paceline.sim.world import FakeInstance

OPENED = """
const timing = window.performance.timing;
document.body.offsetHeight;
const began = window.performance.now();
const find = document.getElementById("find");
find.value = "answer is 9";
find.dispatchEvent(new window.Event("input"));
document.body.offsetHeight;
return {
  open_ms: began, load_ms: timing.loadEventStart - timing.navigationStart, interactive_ms: timing.domInteractive - timing.navigationStart,
  search_ms: window.performance.now() - began, nodes: document.querySelectorAll("*").length, wide: document.documentElement.scrollWidth,
  found: document.querySelectorAll("#list .sample").length,
};
"""


def make(root: Path, updates: int, groups: int) -> int:
    """Leave a run; how many records it has. One that the same code made before stays."""
    mark, wanted = root / "made.json", {"commit": commit(), "updates": updates, "groups": groups}
    kept = json.loads(mark.read_text()) if mark.is_file() else {}
    if wanted.items() <= kept.items() and not wanted["commit"].endswith("+"):
        return int(kept["records"])
    shutil.rmtree(root, ignore_errors=True)
    trace = made_runs.write(root, made_runs.schedule(updates, groups), made_runs.world())
    assert not trace.violations
    mark.write_text(json.dumps({**wanted, "records": len(trace.records)}))
    return len(trace.records)


def cost(root: Path, updates: int, groups: int) -> dict[str, Any]:
    """What looking at a run and making its page cost; sizes in MB, CPU seconds. All in processes of their own, or this one's size would be
    taken for theirs."""
    made = run([__file__, "--make", str(root), "--updates", str(updates), "--groups", str(groups)])
    looked, page = (run(["-m", "paceline.cli.main", name, str(root)], ends) for name, ends in (("doctor", (0, 1)), ("report", (0,))))
    return {
        "updates": updates,
        "records": int(made.said.split()[-1]),
        "said": page.said.splitlines()[-1].replace(str(root), "RUN"),
        "page_mb": round((root / "report.html").stat().st_size / 1e6, 3),
        "cpu_s": page.cpu_s,
        "doctor_cpu_s": looked.cpu_s,
        "peak_mb": page.peak_mb,
        "doctor_peak_mb": looked.peak_mb,
    }


class Done(NamedTuple):
    """A process that ended well."""

    cpu_s: float
    peak_mb: int
    said: str


def run(words: list[str], ends: tuple[int, ...] = (0,)) -> Done:
    """Run Python with these words: what it printed, what it took. ends: exit codes that are well; a doctor that finds something says 1."""
    with TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, *words], stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    assert process.returncode in ends, said
    return Done(round(used.ru_utime + used.ru_stime, 1), round(used.ru_maxrss / 1024), said)


def main() -> None:
    """Measure, and write the evidence; or take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, nargs="+", default=[40, 1000])
    parser.add_argument("--groups", type=int, default=13, help="groups of 8 per update")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pictures", type=Path, help="a run directory with a report.html")
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make is not None:
        return print(make(arguments.make, *arguments.updates, arguments.groups))
    command = find()
    assert command is not None, f"only a browser tells how a page opens and looks; none of these is there: {', '.join(NAMES)}"
    browser = Browser(command)
    if arguments.timeline:
        return timeline(browser)
    if arguments.pictures is not None:
        return pictures(browser, arguments.pictures / "report.html")
    with measured("report", arguments.repeats) as figures:
        for updates in arguments.updates:
            root = ROOT / "runs" / "made" / f"updates-{updates}"
            row = cost(root, updates, arguments.groups)
            widths = [1280] * arguments.repeats + [390]
            row["browser"] = [browser.ask(root / "report.html", OPENED, width, measures=True) for width in widths]
            assert all(opened["found"] for opened in row["browser"]), "the page shows samples, and the search finds some"
            figures[f"updates_{updates}"] = row


SCROLL = 'document.documentElement.style.scrollBehavior = "auto"; document.getElementById("{}").scrollIntoView();'
OPEN = "for (const sample of [...document.querySelectorAll('.sample')].slice(0, 2)) sample.open = true;"


def pictures(browser: Browser, page: Path) -> None:
    """Desktop, dark, phone, and samples that are open."""
    folder = ROOT / "docs" / "figures"
    browser.picture(page, folder / "report-desktop.png", 1280, 1240)
    browser.picture(page, folder / "report-dark.png", 1280, 1240, dark=True, script=SCROLL.format("time"))
    browser.picture(page, folder / "report-samples.png", 1280, 900, script=SCROLL.format("samples") + OPEN)
    phone = folder / "report-phone.png"
    browser.picture(page, phone, 390, 1100)
    Image.open(phone).crop((0, 0, 390, 1100)).save(phone, optimize=True)  # no window is so narrow


def timeline(browser: Browser) -> None:
    """Versions in colour, moves, what is in flight and the window: a short run of the multi-version schedule on three full instances."""
    root = ROOT / "runs" / "made" / "timeline"
    shutil.rmtree(root, ignore_errors=True)
    fleet = tuple(FakeInstance(f"rollout-{number}", slots=32) for number in range(3))
    made_runs.write(root, made_runs.schedule(12, 8), dataclasses.replace(made_runs.world(), instances=fleet))
    run(["-m", "paceline.cli.main", "report", str(root)])
    browser.picture(root / "report.html", ROOT / "docs" / "figures" / "report-timeline.png", 1280, 850, script=SCROLL.format("timeline"))


if __name__ == "__main__":
    main()
