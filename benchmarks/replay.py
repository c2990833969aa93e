"""Replay recorded real runs: do their events give their commands again, and do the rules hold?

Usage: python benchmarks/replay.py [RUN ...] [--keep DIR]. Without runs, those of benchmarks/quickstart.py. `--keep` also writes each
ledger's last lineage as DIR/NAME.jsonl.gz (first line schedule and resume, then one record a line), as tests/core/recorded holds them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence import ROOT, measured
from paceline.core.codec import encode
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader

RUNS = [ROOT / "runs" / "evidence-quickstart" / f"seed-{seed}" for seed in (0, 1, 2)]


def replayed(run: Path) -> dict[str, Any]:
    """Counts of one run's ledger and what does not hold."""
    start = time.perf_counter()
    report = audit(run / "ledger.sqlite")
    return {**asdict(report), "seconds": round(time.perf_counter() - start, 3)}


def keep(run: Path, directory: Path) -> None:
    """Write the last lineage of a run's ledger as compressed lines."""
    reader = LedgerReader(run / "ledger.sqlite")
    lineage = reader.lineages()[-1]
    lines: list[dict[str, Any]] = [{"schedule": asdict(lineage.schedule), "resume": asdict(lineage.resume)}]
    lines += [{"now": r.now, "direction": r.direction, "record": encode(r.value)} for r in reader.records(lineage.id)]
    reader.close()
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (directory / f"{run.name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Replay every run and write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, default=RUNS)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with measured("replay") as found:
        found.update({run.name: replayed(run) for run in arguments.runs})
    for run in arguments.runs if arguments.keep else ():
        keep(run, arguments.keep)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
