"""A run directory as a real run leaves it, made of a simulated run: ledger, metrics, trajectories, evaluations. No model, no process."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.account import Account
from paceline.core.evaluation import summarize
from paceline.core.schedule import Resume, Schedule
from paceline.runtime.ledger import Ledger
from paceline.runtime.metrics import publish_metrics, time_metrics, update_metrics
from paceline.runtime.segments import Segments
from paceline.sim.driver import Trace, simulate
from paceline.sim.world import FakeInstance, Lengths, World, draw
from paceline.trackers.jsonl import JsonlTracker
from paceline.types.progress import UpdateReport
from paceline.types.records import Prompt, Score, ScoredGroup, Trajectory
from paceline.types.results import Answers, Verdict

MAX_TOKENS = 400


def schedule(updates: int, groups: int, group_size: int = 8, **changes: Any) -> Schedule:
    """Multi-version, `groups` per update and publish, W = 3."""
    plain = Schedule(
        preset="multiversion", group_size=group_size, groups_per_round=groups, groups_per_update=groups, groups_per_dispatch=groups,
        updates_per_publish=1, start_when="dispatch", total_updates=updates, version_window=3, on_failure="drop_group",
        evaluate_every=max(1, updates // 8), checkpoint_every=max(1, updates // 8),
        deadlines=(("admit", 900.0), ("groups", 900.0), ("load", 900.0)),
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def world(failure: float = 0.002, **changes: Any) -> World:
    """Two instances, long tails, now and then a failed attempt; one instance is lost once."""
    fleet = (
        FakeInstance("rollout-0", slots=64, versions_held=2),
        FakeInstance("rollout-1", slots=64, versions_held=2, outages=((40.0, 55.0),)),
    )
    return World(fleet, lengths=Lengths("long_tail", 120, MAX_TOKENS), failure=failure, **changes)


def write(root: Path, chosen: Schedule, met: World, started: str = "2026-01-01T00:00:00+00:00") -> Trace:
    """Simulate a run and leave its directory."""
    trace = simulate(chosen, met)
    (root / "trajectories").mkdir(parents=True)
    (root / "config.toml").write_text(
        f'[run]\ndir = "{root.name}"\nupdates = {chosen.total_updates}\n\n[schedule]\npreset = "{chosen.preset}"\n'
    )
    ledger, tracker, segments = Ledger(root / "ledger.sqlite"), JsonlTracker(root / "metrics.jsonl", 1), Segments(root / "trajectories", 1)
    ledger.open_lineage(chosen, Resume(), None, started)
    account, kept, told = Account(chosen, Resume()), dict[int, c.Dispatch](), dict[tuple[int, int], e.TrajectoryFinished]()
    for now, value in trace.records:
        ledger.append("event" if isinstance(value, e.Event) else "command", now, value)
        if isinstance(value, e.TrajectoryFinished):
            told[value.group, value.sample] = value
        if isinstance(value, c.Dispatch):
            kept[value.update] = value
            segments.write(value, [_group(group, chosen, value.update, told) for group in value.groups])
        if isinstance(value, c.Evaluate):
            _evaluate(root, value, chosen.total_updates)
        if (row := account.feed(value, now)) is not None and row.axis == "update":
            groups = [_group(group, chosen, row.step, told) for group in kept[row.step].update_groups]
            tracker.log("update", row.step, {**update_metrics(groups, _report(row.step, chosen.total_updates)), **time_metrics(row)})
        elif row is not None:
            tracker.log("publish", row.step, publish_metrics(row))
    ledger.close()
    tracker.close()
    return trace


def _skill(update: int, total: int) -> float:
    """Probability of a right answer, rising as runs do."""
    return 0.15 + 0.6 * (1 - math.exp(-3 * update / total))


def _group(group: int, chosen: Schedule, update: int, told: dict[tuple[int, int], e.TrajectoryFinished]) -> ScoredGroup:
    finished = [told[group, sample] for sample in range(chosen.group_size) if (group, sample) in told]
    a, b = group % 90 + 10, (group * 7) % 90 + 10
    right = [draw(1, group, event.sample) < _skill(update, chosen.total_updates) for event in finished]
    scores = [
        Score(1.0, "", True, str(a + b)) if good else Score(0.0, "no_answer", False) if draw(2, group, event.sample) < 0.1
        else Score(0.0, "wrong", True, str(a + b + 1 + event.sample))
        for event, good in zip(finished, right, strict=True)
    ]  # fmt: skip
    trajectories = tuple(_trajectory(event, a, b, score) for event, score in zip(finished, scores, strict=True))
    rewards = tuple(float(good) for good in right)
    prompt = Prompt(group, group % 5000, np.arange(24, dtype=np.int32), f"What is {a} + {b}? Think, then answer.", str(a + b), task="sums")
    return ScoredGroup(group, prompt, trajectories, rewards, rewards, {"numeric": rewards}, {"numeric": tuple(scores)})


def _trajectory(event: e.TrajectoryFinished, a: int, b: int, score: Score) -> Trajectory:
    size = event.tokens
    columns = {
        "logprob": np.full(size, -0.5, dtype=np.float32),
        "version": np.full(size, event.version_min, dtype=np.int32),
    }
    thought = f"First {a // 10} tens and {b // 10} tens are {10 * (a // 10 + b // 10)}, then {a % 10} and {b % 10} are {a % 10 + b % 10}. "
    text = (thought * (1 + size // 40))[: 4 * size] + (f"The answer is {score.extracted}." if score.parsed else "I am not sure")
    finish = "length" if size >= MAX_TOKENS else "eos"
    ids = np.arange(size, dtype=np.int32)
    return Trajectory(
        event.group, event.sample, event.attempt, np.arange(24, dtype=np.int32), ids, columns, finish, text, event.instance, size / 100
    )


def _report(update: int, total: int) -> UpdateReport:
    share, noise = update / total, draw(3, update) - 0.5
    metrics = {
        "loss": 0.02 * noise, "grad_norm": 1.2 - 0.5 * share + 0.4 * noise, "learning_rate": 2e-5 * min(1.0, update / 10),
        "entropy": 1.6 - share + 0.1 * noise, "approx_kl": 0.002 + 0.002 * share + 0.002 * abs(noise),
        "clip_ratio/region_mean": 0.01 + 0.02 * abs(noise), "logprob_gap/mean": 0.02 + 0.004 * noise,
        "logprob_gap/p99": 0.14 + 0.04 * noise,
    }  # fmt: skip
    return UpdateReport(update, True, (), 0, 0, metrics)


def _evaluate(root: Path, command: c.Evaluate, total: int) -> None:
    skill, (greedy, sampled) = _skill(command.update, total), (4, 5)
    answers = [
        Answers(
            Verdict(draw(greedy, problem) < min(1.0, skill + 0.05), True),
            tuple(Verdict(draw(sampled, problem, s) < skill, draw(6, problem, s) < 0.9) for s in range(4)),
        )
        for problem in range(200)
    ]
    record = {"lineage": 1, "update": command.update, "version": command.version, **dataclasses.asdict(summarize(answers, model=""))}
    with (root / "eval.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
