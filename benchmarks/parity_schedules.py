"""How far whole runs of other schedules are from serial with the same U, on a tiny float64 model through the real runtime.

Per schedule: whether the same groups with the same tokens were consumed, the largest relative L2 difference of an update's gradient, the
largest difference of a final weight, and the largest |recorded - recomputed| log-prob of a token, recomputed by a plain padded model of
the token's version. Where the learner moves between sampling and consumption the order of consumption decides what it becomes: there it
is stated whether a fresh engine with the weights of each version samples every trajectory again; answers of several versions are compared
by log-prob alone, those that kept their KV cache with a plain forward pass that changes weights at the same tokens. Workers live in
one process.
Usage: python benchmarks/parity_schedules.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from evidence import ROOT, measured
from paceline.models.tiny import write_tiny

sys.path.insert(0, str(ROOT / "tests" / "parity"))
from schedule_runs import Played, behaviour_error, consumed, distance, kept_error, largest, mixed, play, regenerated, same_tokens, schedule

BOUNDS = {"gradient": 1e-12, "weight": 1e-9, "logprob": 1e-12}
SERIAL = {
    "pipelined, D = 1": ("pipelined", {"groups_per_dispatch": 1}),
    "pipelined, D = 2": ("pipelined", {"groups_per_dispatch": 2}),
    "pipelined, D = 3": ("pipelined", {"groups_per_dispatch": 3}),
    "pipelined, D = U": ("pipelined", {}),
    **{
        f"pipelined, D = 2, F = {frontier}, refill {refill}": (
            "pipelined",
            {"groups_per_dispatch": 2, "frontier": frontier, "refill": refill},
        )
        for frontier in (1, 2, 4, "auto")
        for refill in ("group", "sample")
    },
    "streaming, S = 0, drain": ("streaming", {"staleness": 0, "at_publish": "drain", "buffer_groups": 6, "groups_per_dispatch": 2}),
    "streaming, S = 0, keep": ("streaming", {"staleness": 0, "at_publish": "keep", "buffer_groups": 6, "groups_per_dispatch": 2}),
    "multiversion, W = 1": ("multiversion", {"version_window": 1, "groups_per_dispatch": 2}),
}
"""Schedules that are on-policy and must equal serial with R = U = 6."""
OTHERS: dict[str, tuple[str, int, dict[str, Any], dict[str, int]]] = {
    "pipelined, U = 2, D = 1": ("pipelined", 6, {"groups_per_dispatch": 1}, {"slots": 24}),
    "pipelined, U = 2, D = 2, F = 2, refill group": ("pipelined", 6, {"frontier": 2, "refill": "group"}, {"slots": 24}),
    "pipelined, U = 2, D = 2, F = 4, refill sample": ("pipelined", 6, {"frontier": 4, "refill": "sample"}, {"slots": 24}),
    **{
        f"streaming, U = 2, S = {s}, {at_publish}": (
            "streaming",
            2,
            {"staleness": s, "at_publish": at_publish, "buffer_groups": 4},
            {"slots": 3},
        )
        for s, at_publish in ((1, "drain"), (2, "keep"), (2, "recompute"))
    },
    "multiversion, U = 2, W = 2, two engines": ("multiversion", 2, {"version_window": 2}, {"instances": 2, "slots": 3}),
    "multiversion, U = 2, W = 3, three engines": ("multiversion", 2, {"version_window": 3}, {"instances": 3, "slots": 2}),
    "multiversion, U = 2, W = 3, one engine of three versions": (
        "multiversion",
        2,
        {"version_window": 3},
        {"versions_held": 3, "slots": 3},
    ),
}
"""Schedules whose learner moves on while groups of a version are consumed: preset, groups per version, changes, engines."""


def row(directory: Path, run: Played, right: Played) -> dict[str, Any]:
    """A run against serial."""
    return {
        "same_tokens": same_tokens(run, right),
        "other_order": consumed(run) != consumed(right),
        "gradient": max(map(distance, run.witness.gradients, right.witness.gradients)),
        "weight": largest(run.weights, right.weights),
        "logprob": behaviour_error(directory, run),
        "violations": len(run.violations),
    }


def within(found: dict[str, Any]) -> bool:
    """Whether everything that was compared holds."""
    bounds = all(found[name] <= bound for name, bound in BOUNDS.items() if name in found)
    return bounds and found.get("same_tokens", True) and found.get("regenerated", True) and not found["violations"]


def measure(scratch: Path, figures: dict[str, Any]) -> None:
    """Fill in every schedule."""
    directory = write_tiny(scratch / "model")
    right = play(directory, scratch / "serial", schedule(groups=6, update=6, rounds=3), slots=5)
    figures |= {"bounds": BOUNDS, "updates": len(right.witness.reports), "trajectories": len(right.trajectories)}
    figures["one update per round, against serial"] = same = {}
    for place, (name, (preset, changes)) in enumerate(SERIAL.items()):
        run = play(directory, scratch / f"run-{place}", schedule(preset, groups=6, update=6, rounds=3, **changes), slots=24)
        same[name] = row(directory, run, right)
        print(name, same[name], flush=True)
    figures["updates between sampling and consumption"] = others = {}
    for place, (name, (preset, groups, changes, engines)) in enumerate(OTHERS.items()):
        plan = schedule(preset, groups=groups, update=2, rounds=18 // groups, **changes)
        run = play(directory, scratch / f"other-{place}", plan, **engines)
        again = scratch / f"again-{place}"
        again.mkdir()
        others[name] = {
            **({} if mixed(run) else {"regenerated": regenerated(directory, again, run)}),
            "logprob": (kept_error if changes.get("at_publish") == "keep" else behaviour_error)(directory, run),
            "versions": len(run.witness.versions),
            "answers_of_several_versions": mixed(run),
            "moved": run.moved,
            "largest_staleness": max(report["staleness/max"] for report in run.metrics),
            "order_of_consumption": consumed(run),
            "violations": len(run.violations),
        }
        print(name, others[name], flush=True)
    rows = [*same.values(), *others.values()]
    figures["largest"] = {name: max(found[name] for found in rows if name in found) for name in BOUNDS}
    figures["holds"] = all(map(within, rows))


def main() -> None:
    """Measure, write the evidence; exit 1 when a bound is broken."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, measured("parity-schedules") as figures:
        measure(Path(scratch), figures)
    raise SystemExit(0 if figures["holds"] else "a bound is broken")


if __name__ == "__main__":
    main()
