"""The page: one HTML file that needs no network, no server and, except for search and hovering, no script."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paceline import __version__
from paceline.core.account.tally import shares
from paceline.core.schedule import Schedule
from paceline.report import cards
from paceline.report.cards import Card
from paceline.report.charts import LEFT, RIGHT, WIDTH, short
from paceline.report.doctor import debt, duration
from paceline.report.gantt import views
from paceline.report.gather import Run
from paceline.timeline.canvas import style
from paceline.timeline.story import Mark

READ = 1000
"""Updates that a pointer can read at most, the last one among them: more than a chart has pixels."""
WORKS = ("train", "publish", "checkpoint")


def render(run: Run, made: datetime | None = None) -> str:
    """The whole file as text. `made`: when, now by default."""
    environment = Environment(loader=PackageLoader("paceline.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    learning, times = cards.learning(run), cards.times(run)
    return environment.get_template("page.html.jinja").render(
        run=run,
        version=__version__,
        made=(made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        started=run.lives[0].life.lineage.started.replace("T", " ")[:16],
        tiles=tiles(run),
        promise=promise(run.latest.life.lineage.schedule),
        emulated=pretended(run.config),
        live=run.diagnosis.state == "running",
        debt=debt,
        decisions=[(item.time, item.text) for item in run.latest.items if isinstance(item, Mark) and item.kind == "frontier"],
        learning=learning,
        evaluations=cards.evaluations(run),
        times=times,
        histograms=cards.histograms(run),
        views=views(run),
        hover=embedded(_hover(run, [*learning, *times])),
        samples=embedded(run.samples.samples),
        style=Markup(style() + f"<style>{_resource('page.css')}</style>"),
        script=Markup(_resource("page.js")),
        safe=Markup,
        short=short,
        duration=duration,
    )


def promise(schedule: Schedule) -> str:
    """The schedule and what it is bounded by, in words."""
    frontier = {"None": "unlimited (fifo)", "auto": "chosen per round"}.get(str(schedule.frontier), schedule.frontier)
    bounds = {
        "serial": "strictly on-policy",
        "pipelined": f"strictly on-policy, frontier {frontier}",
        "streaming": f"staleness at most {schedule.staleness}, {schedule.at_publish} at publish",
        "multiversion": f"window of {schedule.version_window} versions",
    }
    return f"{schedule.preset}: {bounds[schedule.preset]}; {schedule.groups_per_update} groups of {schedule.group_size} per update"


def pretended(config: str) -> str:
    """What an emulated run's numbers are worth; "" for a run of a real model, or of no known configuration."""
    try:
        sections = tomllib.loads(config)
        emulated, scale = sections["rollout"]["engine"] == "emulated", float(sections.get("emulated", {}).get("time_scale", 1.0))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        return ""
    faster = f"; seconds here are real ones, {scale:g} times as many pass in the emulated world" if scale != 1 else ""
    return f"engine and trainer only take their time. Answers, rewards and losses are pretended{faster}." if emulated else ""


Tile = tuple[str, str, str]
"""Heading, value, words."""


def tiles(run: Run) -> list[Tile]:
    """What one wants to know first."""
    total, schedule = run.total, run.latest.life.lineage.schedule
    done = max(run.updates, default=0)
    found = [("Updates", f"{done:,} of {schedule.total_updates:,}", duration(total.seconds)), *_learnt(run)]
    if seconds := total.busy.get("rollout", 0.0):
        made = f"{total.trajectories:,} trajectories, {short(total.tokens)} tokens"
        found.append(("Rollout", f"{short(total.tokens / seconds)} tok/s", made))
    if total.trainer:
        found.append(_waits(shares(total.trainer)))
    if total.staleness:
        found.append(("Staleness", f"at most {max(total.staleness)}", f"versions; the bound is {schedule.bound}"))
    broken = len(run.audit.violations)
    checked = f"rules and replay of {run.audit.events + run.audit.commands:,} records"
    return [*found, ("Audit", f"{broken} broken" if broken else "clean", checked)]


def _learnt(run: Run) -> Iterator[Tile]:
    rewards = [row["reward"] for row in run.updates.values() if math.isfinite(row.get("reward", math.nan))]
    if len(rewards) > 1:
        few = min(5, len(rewards) // 2)
        first, last = fmean(rewards[:few]), fmean(rewards[-few:])
        yield "Reward", f"{first:.3f} → {last:.3f}", "first and last" + (f" {few} updates" if few > 1 else "")
    scores = [row.greedy.value for row in run.evaluations if row.greedy]
    if scores:
        yield "Evaluation, greedy", " → ".join(f"{value:.3f}" for value in (scores[0], *scores[1:][-1:])), "share right"


def _waits(spent: Mapping[str, float]) -> Tile:
    waits = {state: share for state, share in spent.items() if state not in WORKS}
    worst = max(waits, key=lambda state: waits[state], default="")
    return "Trainer waits", f"{100 * sum(waits.values()):.0f} %", f"most for: {worst}" if worst else "never"


def embedded(value: Any) -> Markup:
    """JSON that is safe within a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _hover(run: Run, shown: Sequence[Card]) -> dict[str, Any]:
    """What a pointer over a chart reads: updates, READ of them at most, and the metrics of the legends, in four digits; null = no value."""
    names = [key.name for card in shown if card.hover for key in card.keys]
    updates = list(run.updates)[:: -max(1, math.ceil(len(run.updates) / READ))][::-1]
    values = {name: [_digits(run.updates[update].get(name, math.nan)) for update in updates] for name in names}
    return {"x": updates, "left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH, "values": values}


def _digits(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _resource(name: str) -> str:
    return (files("paceline.report") / name).read_text()


def default_output(run: Path) -> Path:
    """Where the page lies unless told otherwise."""
    return run / "report.html"
