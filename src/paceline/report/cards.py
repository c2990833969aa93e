"""Which charts the page has: names of metrics, how they are called, what is drawn together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.account.causes import ROLLOUT, TRAINER
from paceline.core.account.tally import shares
from paceline.report import charts
from paceline.report.charts import Series
from paceline.report.gather import Run


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


def learning(run: Run) -> list[Card]:
    """What was learnt, over updates; a card for each reward function where there are several."""
    names = sorted({n.split("/")[1] for row in run.updates.values() for n in row if n.startswith("rewards/") and n.endswith("/mean")})
    parts = Curve("Reward functions", "mean", tuple((f"rewards/{name}/mean", name) for name in names[:6]))
    wanted = (LEARNING[0], parts, *LEARNING[1:]) if len(names) > 1 else LEARNING
    return [card for curve in wanted if (card := _curve(run, curve)) is not None]


def times(run: Run) -> list[Card]:
    """Where the time went."""
    cards = [card for curve in TIME if (card := _curve(run, curve)) is not None]
    return [*_waiting(run), *cards]


def histograms(run: Run) -> list[Card]:
    """Staleness and lengths, over the whole run."""
    total, lengths = run.total, dict[int, int]()
    for told in run.lives:
        for length, number in told.lengths.items():
            lengths[length] = lengths.get(length, 0) + number
    cards = []
    for title, unit, counts, hue in (
        ("Staleness at consumption", "groups by versions", total.staleness, 0),
        ("Staleness in updates", "groups by updates", total.staleness_updates, 2),
        ("Lengths", "trajectories by sampled tokens", lengths, 3),
    ):
        if counts:
            whole = charts.histogram(counts)
            words = (
                f"{sum(counts.values()):,}, mean {sum(v * n for v, n in counts.items()) / sum(counts.values()):,.4g}, most {max(counts):,}"
            )
            cards.append(Card(title, unit, charts.bars(title, whole, hue), [], note=words))
    return cards


def evaluations(run: Run) -> list[Card]:
    """Evaluations over updates, with their intervals."""
    if not run.evaluations:
        return []
    xs = [float(row["update"]) for row in run.evaluations]
    series, keys = list[Series](), list[Key]()
    for hue, (name, words) in enumerate((("greedy", "greedy"), ("sampled", "sampled"), ("parsed", "answers read"))):
        shares_ = [row.get(name) for row in run.evaluations]
        if any(share is not None for share in shares_):
            values = [math.nan if share is None else share["value"] for share in shares_]
            error = [(math.nan, math.nan) if share is None else (share["low"], share["high"]) for share in shares_]
            series.append(Series(name, values, hue, error))
            keys.append(Key(words, f"v{hue}", value=f"{values[-1]:.3f}"))
    return [Card("Evaluation", "share right, 95 % interval", charts.curves("Evaluation", xs, series, share=True), keys)]


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
    xs = [float(row.step) for row in rows]
    found = []
    for title, unit, states, seconds, whole in (
        ("What the trainer did and waited for", "seconds per update", TRAINER, [row.tally.trainer for row in rows], False),
        ("What rollout slots did and waited for", "share of slot-seconds", ROLLOUT, [shares(row.tally.slots) for row in rows], True),
    ):
        used = [state for state in states if any(one.get(state, 0.0) for one in seconds)]
        parts = {_mark(state, whole): [one.get(state, 0.0) for one in seconds] for state in used}
        total = _sum([row.tally.slots if whole else row.tally.trainer for row in rows])
        keys = [Key(f"{state}: {states[state]}", f"t-{_mark(state, whole)}", value=f"{100 * shares(total)[state]:.0f} %") for state in used]
        sums = [sum(one.values()) for one in seconds]
        cut = sum(height > charts.ceiling(sums) for height in sums)
        note = f"{cut} of {len(sums)} updates took longer than is drawn, at most {max(sums):,.1f} s" if cut else ""
        found.append(Card(title, unit, charts.stacked(title, xs, parts, whole), keys, note=note))
    return found


def _mark(state: str, slot: bool) -> str:
    """Colours are those of the trainer's lane where both have the state."""
    return (
        {"decode": "decode", "frontier": "order", "buffer": "reward", "placement": "rollout", "end": "fleet"}.get(state, state)
        if slot
        else state
    )


def _sum(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0.0) + value
    return total
