"""Evidence: what was measured, by which command, on which machine, how loaded it was. Written to docs/evidence/NAME.json."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def load() -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes, where the system has them."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


class Quiet:
    """How busy others kept the machine before, during and after a block: shares of all cores, None where the system does not tell.

    Processes that the block started count as its own once they have ended and been waited for.
    """

    def __init__(self, look_s: float = 1.0) -> None:
        self._look_s = look_s
        self.found: dict[str, float | None] = {}

    def __enter__(self) -> Quiet:
        self.found["before"] = self._look()
        self._start = _ticks(), _own()
        return self

    def __exit__(self, *error: object) -> None:
        self.found["during"] = _others(*self._start)
        self.found["after"] = self._look()

    def _look(self) -> float | None:
        start = _ticks(), _own()
        time.sleep(self._look_s)
        return _others(*start)


def _ticks() -> tuple[int, int] | None:
    """Clock ticks that all cores were busy for (time stolen by a host included), and all that passed."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    values = [int(value) for value in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def _own() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _others(before: tuple[int, int] | None, own: float) -> float | None:
    now = _ticks()
    if before is None or now is None or now[1] == before[1]:
        return None
    busy = (now[0] - before[0]) / os.sysconf("SC_CLK_TCK") - (_own() - own)
    return round(max(0.0, busy * os.sysconf("SC_CLK_TCK") / (now[1] - before[1])), 3)


def best_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The least of a few times; one more comes before them."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def machine() -> dict[str, Any]:
    """CPU model and the cores that this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "system": platform.system()}


def commit() -> str:
    """The commit that was measured; `+` marks changes in tracked files."""
    return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def sources(root: Path = ROOT) -> str:
    """A digest of the code that is measured, as it lies there now: what was measured with other code does not count."""
    digest = hashlib.sha256()
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "src", "benchmarks", "recipes", root=root)
    for name in sorted({*listed.splitlines()}):
        file = root / name
        digest.update(f"{name}|{hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ''}|".encode())
    return digest.hexdigest()[:16]


def _git(*arguments: str, root: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def installed(package: str) -> str | None:
    """Version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_evidence(name: str, figures: dict[str, Any], *, load_before: list[float] | None = None, repeats: int = 1) -> Path:
    """Write docs/evidence/NAME.json and return its path. `load_before`: `load()` as it was before the measurement.

    The variable EVIDENCE_SUFFIX goes behind the name: figures of another kind of machine stand beside those that are there.
    """
    path = ROOT / "docs" / "evidence" / f"{name}{os.environ.get('EVIDENCE_SUFFIX', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "name": name,
        "commit": commit(),
        "command": " ".join(["python", *sys.argv]),
        "machine": machine(),
        "python": platform.python_version(),
        "torch": installed("torch"),
        "load_before": load_before,
        "load_after": load(),
        "repeats": repeats,
        "figures": figures,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


@contextmanager
def measured(name: str, repeats: int = 1) -> Iterator[dict[str, Any]]:
    """Fill the yielded dict with figures; they are written, beside the load before and after, when the block ends well."""
    before, figures = load(), {}
    yield figures
    print(write_evidence(name, figures, load_before=before, repeats=repeats))
