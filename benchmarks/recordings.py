"""Record a short real run of every schedule for tests/core/recorded: real processes, a tiny random model, some seconds each.

Usage: python benchmarks/recordings.py [NAME ...]. Runs lie under runs/recordings; each ledger is written to tests/core/recorded as
`benchmarks/replay.py --keep` does, after its audit.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path

from evidence import ROOT
from paceline.cli import jobs
from paceline.config.load import load
from paceline.models.tiny import write_tiny
from paceline.runtime.audit import audit
from paceline.runtime.ledger import LedgerReader
from replay import keep

RUNS = ROOT / "runs" / "recordings"
CONFIG = """
[run]
updates = 8
checkpoint_every = 4
[model]
path = "{root}/model"
dtype = "float64"
[task]
kind = "file"
path = "{root}/rows.jsonl"
gold_column = "answer"
[[reward]]
kind = "function"
function = "{root}/reward.py:even"
[rollout]
instances = 2
slots = 4
max_prompt_tokens = 60
max_tokens = 40
[schedule]
group_size = 4
groups_per_update = 2
groups_per_dispatch = 1
[trainer]
learning_rate = 1e-3
warmup_updates = 0
[pool]
rollout_threads = 1
trainer_threads = 1
[eval]
every = 4
samples = 1
[eval.task]
kind = "file"
path = "{root}/held_out.jsonl"
gold_column = "answer"
"""
REWARD = "def even(completions, **columns):\n    return [float(len(text) % 2 == 0) for text in completions]\n"
STREAM = ("schedule.preset=streaming", "schedule.staleness=2")
SCHEDULES = {
    "pipelined": ("schedule.preset=pipelined", "schedule.groups_per_round=4", "schedule.frontier=auto"),
    "streaming-keep": (*STREAM, "schedule.at_publish=keep"),
    "streaming-recompute": (*STREAM, "schedule.at_publish=recompute"),
    "streaming-drain": (*STREAM, "schedule.at_publish=drain"),
    "multiversion": ("schedule.preset=multiversion", "schedule.version_window=3", "rollout.instances=3", "rollout.slots=2"),
    "side-by-side": ("schedule.preset=multiversion", "schedule.version_window=2", "rollout.instances=1", "rollout.versions_held=2"),
}


def prepare(root: Path) -> None:
    """Model, rows and reward of all runs."""
    if not (root / "model").is_dir():
        write_tiny(root / "model")
    (root / "reward.py").write_text(REWARD)
    for name, start in (("rows", 0), ("held_out", 100)):
        lines = [json.dumps({"prompt": f"say hello {i}", "answer": str(i)}) for i in range(start, start + 6)]
        (root / f"{name}.jsonl").write_text("\n".join(lines))
    (root / "config.toml").write_text(CONFIG.format(root=root))


def record(name: str) -> None:
    """Run one schedule, audit its ledger and keep it."""
    run = RUNS / name
    shutil.rmtree(run, ignore_errors=True)
    outcome = jobs.train(load(RUNS / "config.toml", [f"run.dir={run}", *SCHEDULES[name]]))
    report = audit(run / "ledger.sqlite")
    if not outcome.ok or report.violations or report.notes:
        raise SystemExit(f"{name}: {outcome.reason} {report}")
    reader = LedgerReader(run / "ledger.sqlite")
    kinds = Counter(type(found.value).__name__ for found in reader.records(1))
    reader.close()
    keep(run, ROOT / "tests" / "core" / "recorded")
    print(f"{name}: {kinds.total()} records, {kinds['Migrate']} moves, {kinds['LoadWeights']} loads")


def main() -> None:
    """Record the schedules named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SCHEDULES))
    RUNS.mkdir(parents=True, exist_ok=True)
    prepare(RUNS)
    for name in parser.parse_args().names:
        record(name)


if __name__ == "__main__":
    main()
