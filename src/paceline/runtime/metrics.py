"""Metrics as pure functions: of an update's groups and the trainer's report, and of where its time went. Names follow TRL where it has one.

Lengths count every sampled token of every sample, masked or not. `reward_std` is the mean over groups of the standard deviation
within a group (divisor n - 1), `rewards/NAME/std` the one over all samples to which the function applied.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paceline.algo.shaping import length_metrics
from paceline.core.account import Row
from paceline.core.account.causes import ROLLOUT, TRAINER
from paceline.core.account.tally import LEVELS, mean, shares
from paceline.types.progress import UpdateReport
from paceline.types.records import ScoredGroup
from paceline.types.signal import has_signal


def update_metrics(groups: Sequence[ScoredGroup], report: UpdateReport, *, by_task: bool = False) -> dict[str, float]:
    """What an update was made of and what came of it. `groups` are all groups of the update, never empty. by_task: also for each task
    of a mixture."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        **dict(report.metrics),
        **_rewards(groups),
        **(_tasks(groups) if by_task else {}),
        **length_metrics([len(t.ids) for t in trajectories], [t.finish == "length" for t in trajectories]),
        "num_tokens": sum(len(t.prompt_ids) + len(t.ids) for t in trajectories),
        "update/applied": float(report.applied),
        "update/groups": len(groups),
        "update/samples": len(trajectories),
    }


def time_metrics(row: Row) -> dict[str, float]:
    """Times, staleness and counts since the update before, and the window so far."""
    tally = row.tally
    return {
        "step_time": tally.seconds,
        **{f"{stage}_seconds": tally.busy.get(stage, 0.0) for stage in ("rollout", "reward", "train", "publish")},
        **_window(row),
        "reward_waiting_ratio": shares(tally.trainer).get("reward", 0.0),
        **_speed(row),
        "staleness/max": max(tally.staleness, default=0),
        "staleness/mean": mean(tally.staleness),
        "staleness_updates/max": max(tally.staleness_updates, default=0),
        "staleness_updates/mean": mean(tally.staleness_updates),
        "verifier_errors": tally.failed_rewards,
        "groups/filtered": tally.filtered,
        "groups/overstale": tally.overstale,
        "groups/failed": tally.failed,
        "attempts/failed": tally.failed_attempts,
    }


def publish_metrics(row: Row) -> dict[str, float]:
    """A round or publish period: its window, what each pool did with its time and why it did nothing, staleness, levels."""
    tally = row.tally
    levels = {f"{name}/mean": tally.mean_level(level) for level, name in _LEVELS.items()}
    return {
        "seconds": tally.seconds,
        **_window(row),
        **_speed(row),
        **_shares("trainer", TRAINER, tally.trainer),
        **_shares("rollout", ROLLOUT, tally.slots),
        **levels,
        **{f"{name}/max": tally.most.get(level, 0) for level, name in _LEVELS.items()},
        "groups/consumed": tally.groups,
        **{f"staleness/{versions}": count for versions, count in sorted(tally.staleness.items())},
        **{f"staleness_updates/{updates}": count for updates, count in sorted(tally.staleness_updates.items())},
        "migrations": tally.migrated,
        "migrations/prefilled_tokens": tally.prefilled,
    }


_LEVELS: Mapping[str, str] = dict(
    zip(
        LEVELS,
        ("groups/in_flight", "groups/decoding", "groups/judging", "groups/trainable", "trajectories/decoding", "versions/live"),
        strict=True,
    )
)
"""Levels by their names in metrics."""


def _window(row: Row) -> dict[str, float]:
    first, overall = row.window.waiting(row.trained)
    return {
        "rollout_to_train_end_seconds": row.window.seconds(row.trained),
        "trainer_waiting_ratio": first,
        "trainer_waiting_ratio/all": overall,
    }


def _shares(pool: str, states: Iterable[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """The share of every state, those included that did not occur."""
    found = shares(seconds)
    return {f"{pool}/{state}": found.get(state, 0.0) for state in states}


def _speed(row: Row) -> dict[str, float]:
    """Sampled tokens of the trajectories that finished, over the time in which any decoded since the row before that had some.

    Tokens are known when their trajectory ends. Without such an end there is no value: 0 would be said of an engine at full speed.
    """
    return {"rollout_tokens_per_second": row.tally.tokens / row.decoded} if row.tally.trajectories and row.decoded > 0 else {}


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


def _tasks(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Mean reward, mean outcome and number of groups of each task that the update has."""
    by_task: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_task.setdefault(group.prompt.task, []).append(group)
    row = {}
    for name, own in sorted(by_task.items()):
        row[f"reward/{name}"] = statistics.fmean(reward for group in own for reward in group.rewards)
        row[f"outcome/{name}"] = statistics.fmean(outcome for group in own for outcome in group.outcomes)
        row[f"update/groups/{name}"] = len(own)
    return row


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


def _std(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
