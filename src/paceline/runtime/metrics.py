"""Metrics of one update, as a pure function of its groups, the trainer's report and the times. Names follow TRL where it has one.

Lengths count every sampled token of every sample, masked or not. `reward_std` is the mean over groups of the standard deviation
within a group (divisor n - 1), `rewards/NAME/std` the one over all samples to which the function applied.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.algo.shaping import length_metrics
from paceline.types.progress import UpdateReport
from paceline.types.records import ScoredGroup
from paceline.types.signal import has_signal


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since the row before: what each stage was busy for, and how the trainer waited in this round."""

    step: float
    """Wall time since the row before (or the start)."""
    rollout: float
    """At least one trajectory was decoding."""
    reward: float
    """At least one group was being scored."""
    train: float
    """The trainer computed: accumulate and step."""
    publish: float
    """Weights were written, or loaded by an instance."""
    window: float
    """From the round's first admission to the end of this update, publish and evaluation excluded."""
    first_wait: float
    """From the round's first admission to its first dispatch."""
    round_train: float
    """`train` since the round's first admission."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Things that are counted between two rows."""

    staleness: int = 0
    """Largest staleness of any group of the update, in versions."""
    verifier_errors: int = 0
    filtered_groups: int = 0
    failed_groups: int = 0
    failed_attempts: int = 0
    restarts: int = 0
    """Workers restarted since the start of the run."""
    tokens_before: int = 0
    """Prompt and sampled tokens trained on before this update."""


def update_metrics(groups: Sequence[ScoredGroup], report: UpdateReport, times: Times, counts: Counts) -> dict[str, float]:
    """One row. `groups` are all groups of the update, never empty."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    tokens = sum(len(t.prompt_ids) + len(t.ids) for t in trajectories)
    return {
        **dict(report.metrics),
        **_rewards(groups),
        **length_metrics([len(t.ids) for t in trajectories], [t.finish == "length" for t in trajectories]),
        **_times(times, sum(len(t.ids) for t in trajectories)),
        "num_tokens": counts.tokens_before + tokens,
        "update/applied": float(report.applied),
        "update/groups": len(groups),
        "update/samples": len(trajectories),
        "staleness/max": counts.staleness,
        "verifier_errors": counts.verifier_errors,
        "groups/filtered": counts.filtered_groups,
        "groups/failed": counts.failed_groups,
        "attempts/failed": counts.failed_attempts,
        "workers/restarts": counts.restarts,
    }


def _rewards(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    deviations = [_std(group.rewards) for group in groups]
    return {
        "reward": statistics.fmean(reward for group in groups for reward in group.rewards),
        "reward_std": statistics.fmean(deviations),
        "frac_reward_zero_std": statistics.fmean(not has_signal(group.rewards) for group in groups),
        "outcome": statistics.fmean(outcome for group in groups for outcome in group.outcomes),
        **_reward_parts(groups),
        **_unparsed(groups),
        **_reasons(groups),
    }


def _reward_parts(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Mean and deviation of each reward function, where it applied."""
    row = {}
    for name in dict.fromkeys(name for group in groups for name in group.parts):
        values = [value for group in groups for value in group.parts.get(name, ()) if value is not None]
        if values:
            row[f"rewards/{name}/mean"] = statistics.fmean(values)
            row[f"rewards/{name}/std"] = _std(values)
    return row


def _unparsed(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """How often no answer could be read, where a reward function says so."""
    judged = [score.parsed for group in groups for scores in group.scores.values() for score in scores if score.parsed is not None]
    return {"unparsed_ratio": judged.count(False) / len(judged)} if judged else {}


def _reasons(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Answers per reason that a reward function gave for its value: `wrong`, `no_answer`, `not_compared_in_time`, ..."""
    columns = [column for group in groups for column in group.scores.items()]
    given = Counter((name, score.reason.replace(" ", "_")) for name, scores in columns for score in scores if score.reason)
    return {f"rewards/{name}/reason/{reason}": float(count) for (name, reason), count in sorted(given.items())}


def _times(times: Times, sampled: int) -> dict[str, float]:
    row = {
        "step_time": times.step,
        "rollout_seconds": times.rollout,
        "reward_seconds": times.reward,
        "train_seconds": times.train,
        "publish_seconds": times.publish,
        "rollout_to_train_end_seconds": times.window,
        "trainer_waiting_ratio": times.first_wait / times.window if times.window > 0 else 0.0,
        "trainer_waiting_ratio/all": 1 - times.round_train / times.window if times.window > 0 else 0.0,
    }
    if times.rollout > 0:
        row["rollout_tokens_per_second"] = sampled / times.rollout
    return row


def _std(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
