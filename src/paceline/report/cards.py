"""Which charts the page has: names of metrics, how they are called, what is drawn together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.account.causes import ROLLOUT, TRAINER
from paceline.core.account.tally import increase, mean, shares
from paceline.report import charts
from paceline.report.charts import Series
from paceline.report.gather import Run
from paceline.types.results import Share


@dataclass(frozen=True, slots=True)
class Key:
    """One line of a legend. `name`: the metric that hovering reads; "" = none."""

    words: str
    mark: str
    """Class of its colour."""
    name: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A chart with its heading."""

    title: str
    unit: str
    svg: str
    keys: Sequence[Key]
    hover: bool = False
    """Whether x is the update, so that a pointer reads values."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A card of curves over updates: (metric, words) each."""

    title: str
    unit: str
    metrics: tuple[tuple[str, str], ...]
    share: bool = False
    note: str = ""


LEARNING = (
    Curve("Reward", "mean of the update", (("reward", "reward"), ("reward_std", "within-group deviation"))),
    Curve("Signal", "share", (("frac_reward_zero_std", "groups of equal rewards"), ("unparsed_ratio", "answers not read")), share=True),
    Curve(
        "Length", "tokens",
        (("completions/mean_length", "mean"), ("completions/max_length", "longest"), ("completions/min_length", "shortest")),
    ),
    Curve("Cut at the limit", "share of samples", (("completions/clipped_ratio", "cut"),), share=True),
    Curve("Entropy", "nats per token", (("entropy", "entropy"),)),
    Curve("KL", "nats per token", (("kl", "to the reference"), ("approx_kl", "to the sampling policy"))),
    Curve(
        "Engine against trainer", "nats", (("logprob_gap/mean", "mean"), ("logprob_gap/p99", "99 %")),
        note="difference of log-probs of the same tokens under the same weights",
    ),
    Curve("Clipped tokens", "share", (("clip_ratio/region_mean", "clipped"),)),
    Curve("Gradient norm", "before clipping", (("grad_norm", "norm"),)),
    Curve("Loss", "", (("loss", "loss"),)),
    Curve("Learning rate", "", (("learning_rate", "rate"),)),
)  # fmt: skip
TIME = (
    Curve("Rollout speed", "tokens/s", (("rollout_tokens_per_second", "while anything decodes"),)),
    Curve(
        "Trainer waiting ratio", "share of the window",
        (("trainer_waiting_ratio", "before the first dispatch"), ("trainer_waiting_ratio/all", "all of it")), share=True,
    ),
    Curve("Window", "seconds", (("rollout_to_train_end_seconds", "rollout to end of training"), ("step_time", "update to update"))),
    Curve("Staleness", "versions", (("staleness/max", "largest"), ("staleness/mean", "mean"))),
)  # fmt: skip


PARTS = 6
"""Reward functions, or tasks, that one card shows."""


def learning(run: Run) -> list[Card]:
    """What was learnt, over updates; a card for reward functions and one for the tasks of a mixture, where there are several."""
    parts = (*_parts(run, "Reward functions", "rewards/", "/mean"), *_parts(run, "Reward by task", "reward/"))
    return [card for curve in (LEARNING[0], *parts, *LEARNING[1:]) if (card := _curve(run, curve)) is not None]


def _parts(run: Run, title: str, before: str, after: str = "") -> list[Curve]:
    """A curve for each of the metrics `before` NAME `after`; none where there is only one."""
    found = {name for row in run.updates.values() for name in row if name.startswith(before) and name.endswith(after)}
    shown = [(name, name.removeprefix(before).removesuffix(after)) for name in sorted(found)]
    more = f"{len(shown) - PARTS} more are in metrics.jsonl" if len(shown) > PARTS else ""
    return [Curve(title, "mean", tuple(shown[:PARTS]), note=more)] if len(shown) > 1 else []


def times(run: Run) -> list[Card]:
    """Where the time went."""
    cards = [card for curve in TIME if (card := _curve(run, curve)) is not None]
    return [*_waiting(run), *cards]


def histograms(run: Run) -> list[Card]:
    """Staleness and lengths, over the whole run."""
    total, lengths = run.total, dict[int, int]()
    for told in run.lives:
        for length, number in told.lengths.items():
            increase(lengths, length, number)
    found = (
        _histogram("Staleness at consumption", "groups by versions", total.staleness, 0),
        _histogram("Staleness in updates", "groups by updates", total.staleness_updates, 2),
        _histogram("Lengths", "trajectories by sampled tokens", lengths, 3),
    )
    return [card for card in found if card is not None]


def _histogram(title: str, unit: str, counts: Mapping[int, int], hue: int) -> Card | None:
    if not counts:
        return None
    words = f"{sum(counts.values()):,}, mean {mean(counts):,.4g}, most {max(counts):,}"
    return Card(title, unit, charts.bars(title, charts.histogram(counts), hue), [], note=words)


def evaluations(run: Run) -> list[Card]:
    """Evaluations over updates, with their intervals."""
    if not run.evaluations:
        return []
    measured = ((0, "greedy", "greedy"), (1, "sampled", "sampled"), (2, "parsed", "answers read"))
    lines = [(_scores(run, name, hue), words) for hue, name, words in measured if any(getattr(row, name) for row in run.evaluations)]
    keys = [Key(words, f"v{one.hue}", value=f"{one.values[-1]:.3f}") for one, words in lines]
    xs = [float(row.update) for row in run.evaluations]
    svg = charts.curves("Evaluation", xs, [one for one, _ in lines], share=True)
    return [Card("Evaluation", "share right, 95 % interval", svg, keys)]


def _scores(run: Run, name: str, hue: int) -> Series:
    """One measured share over the evaluations, with its intervals."""
    none = Share(math.nan, math.nan, math.nan, 0)
    found: list[Share] = [getattr(row, name) or none for row in run.evaluations]
    return Series(name, [share.value for share in found], hue, [(share.low, share.high) for share in found])


def resumed(run: Run) -> list[float]:
    """Updates after which the run was continued."""
    return [float(told.life.lineage.resume.update) + 0.5 for told in run.lives[1:]]


def _curve(run: Run, curve: Curve) -> Card | None:
    xs = [float(update) for update in run.updates]
    series, keys = list[Series](), list[Key]()
    for name, words in curve.metrics:
        values = [row.get(name, math.nan) for row in run.updates.values()]
        if any(map(math.isfinite, values)):
            hue = len(series)
            series.append(Series(name, values, hue))
            keys.append(Key(words, f"v{hue}", name, charts.short(values[-1]) if math.isfinite(values[-1]) else "-"))
    if not series:
        return None
    svg = charts.curves(curve.title, xs, series, resumed(run), curve.share)
    return Card(curve.title, curve.unit, svg, keys, hover=True, note=curve.note)


def _waiting(run: Run) -> list[Card]:
    """Time by cause: the trainer's and that of rollout slots, per update."""
    rows = [row for told in run.lives for row in told.updates]
    if not rows:
        return []
    xs, trainer, slots = [float(row.step) for row in rows], [row.tally.trainer for row in rows], [row.tally.slots for row in rows]
    sums = [sum(one.values()) for one in trainer]
    cut = sum(height > charts.ceiling(sums) for height in sums)
    note = f"{cut} of {len(sums)} updates took longer than is drawn, at most {max(sums):,.1f} s" if cut else ""
    other = _left_out(run, sum(row.tally.seconds for row in rows))
    return [
        _causes("What the trainer did and waited for", "seconds per update", xs, trainer, TRAINER, "; ".join(filter(None, (note, other)))),
        _causes("What rollout slots did and waited for", "share of slot-seconds", xs, slots, ROLLOUT, other),
    ]


def _left_out(run: Run, shown: float) -> str:
    """Time that no update has, and the figures at the top do: an evaluation at the end, say."""
    left = run.total.seconds - shown
    voided = " or voided by a resume" if len(run.lives) > 1 else ""
    return f"not in it: {left:,.1f} s after the last update{voided}" if left > 0.01 * run.total.seconds else ""


def _causes(title: str, unit: str, xs: list[float], seconds: list[dict[str, float]], states: Mapping[str, str], note: str) -> Card:
    """Bars by state; for slots the shares, since how many are up may change."""
    slots = states is ROLLOUT
    shown = [shares(one) for one in seconds] if slots else seconds
    total: dict[str, float] = {}
    for one in seconds:
        for state, value in one.items():
            increase(total, state, value)
    used = [state for state in states if total.get(state, 0.0) > 0]
    marks = {state: _SLOT_MARKS.get(state, state) if slots else state for state in used}
    parts = {marks[state]: [one.get(state, 0.0) for one in shown] for state in used}
    keys = [Key(f"{state}: {states[state]}", f"t-{marks[state]}", value=f"{100 * shares(total)[state]:.0f} %") for state in used]
    return Card(title, unit, charts.stacked(title, xs, parts, slots), keys, note=note)


_SLOT_MARKS = {"frontier": "order", "buffer": "reward", "placement": "rollout", "end": "fleet"}
"""Colours are those of the trainer's lane where both have the state; other states of a slot borrow one."""
