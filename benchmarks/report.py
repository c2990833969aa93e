"""The page of a long run: what it weighs, what making it costs, how long a browser takes to open it and to search its samples.

The run is simulated (benchmarks/made_runs.py): no model, but ledger, metrics and trajectory files as a real one leaves them.
`--pictures RUN` writes docs/figures/report-*.png from a run directory instead, `--timeline` that of a timeline, from a simulated run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from PIL import Image

import made_runs
from browser import Browser, find
from evidence import ROOT, measured

OPENED = """
const timing = window.performance.timing, began = window.performance.now();
const find = document.getElementById("find");
find.value = "answer is 9";
find.dispatchEvent(new window.Event("input"));
document.body.offsetHeight;
return {
  open_ms: timing.loadEventStart - timing.navigationStart, interactive_ms: timing.domInteractive - timing.navigationStart,
  search_ms: window.performance.now() - began, nodes: document.querySelectorAll("*").length, wide: document.documentElement.scrollWidth,
};
"""


def cost(root: Path, updates: int, groups: int) -> dict[str, Any]:
    """Make a run and its page in a process of its own; sizes in MB, CPU seconds."""
    shutil.rmtree(root, ignore_errors=True)
    trace = made_runs.write(root, made_runs.schedule(updates, groups), made_runs.world())
    assert not trace.violations
    looked_s, _ = spent("doctor", root)
    cpu_s, said = spent("report", root)
    return {
        "updates": updates,
        "records": len(trace.records),
        "said": said.splitlines()[-1].replace(str(root), "RUN"),
        "page_mb": round((root / "report.html").stat().st_size / 1e6, 3),
        "cpu_s": cpu_s,
        "doctor_cpu_s": looked_s,
        "peak_mb": round(getrusage(RUSAGE_CHILDREN).ru_maxrss / 1024),
    }


def spent(name: str, root: Path) -> tuple[float, str]:
    """Run a command on a run directory: its CPU seconds, and what it printed."""
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "paceline.cli.main", name, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    after = getrusage(RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1), done.stdout


def main() -> None:
    """Measure, and write the evidence; or take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, nargs="+", default=[40, 1000])
    parser.add_argument("--groups", type=int, default=13, help="groups of 8 per update")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pictures", type=Path, help="a run directory with a report.html")
    parser.add_argument("--timeline", action="store_true")
    arguments = parser.parse_args()
    command = find()
    if arguments.timeline:
        assert command is not None, "pictures need a browser"
        return timeline(Browser(command))
    if arguments.pictures is not None:
        assert command is not None, "pictures need a browser"
        return pictures(Browser(command), arguments.pictures / "report.html")
    with measured("report", arguments.repeats) as figures:
        for updates in arguments.updates:
            root = ROOT / "runs" / "made" / f"updates-{updates}"
            row = cost(root, updates, arguments.groups)
            if command is not None:
                row["browser"] = [Browser(command).ask(root / "report.html", OPENED, width) for width in [1280] * arguments.repeats + [390]]
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
    """Versions in colour, moves, what is in flight and the window: a short run of the multi-version schedule."""
    root = ROOT / "runs" / "made" / "timeline"
    shutil.rmtree(root, ignore_errors=True)
    made_runs.write(root, made_runs.schedule(12, 8), made_runs.world())
    spent("report", root)
    browser.picture(root / "report.html", ROOT / "docs" / "figures" / "report-timeline.png", 1280, 760, script=SCROLL.format("timeline"))


if __name__ == "__main__":
    main()
