"""The plan of a run as text: what `--dry-run` prints."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.config.memory import SYMBOLS, Memory
from paceline.config.plan import Plan
from paceline.core.presets import traits
from paceline.core.schedule import AUTO, Schedule


def plan_text(plan: Plan) -> RenderableType:
    """Two tables: counts and memory."""
    return Group(_counts(plan), Text(), _memory(plan.memory))


def _counts(plan: Plan) -> Table:
    s = plan.schedule
    table = Table("plan", "", "", box=None, header_style="bold", pad_edge=False)
    table.add_row("schedule", s.preset, _schedule(s))
    table.add_row("in flight", *_in_flight(s))
    table.add_row("generation", *_generation(s))
    table.add_row("training", *_training(s))
    table.add_row("at publish", *_at_publish(s))
    table.add_row("updates", f"{plan.updates:,}", f"of {s.groups_per_update} groups (prompts) x {s.group_size} samples")
    if plan.rounds is not None:
        table.add_row("rounds", f"{plan.rounds:,}", f"of {s.groups_per_round} groups under one version")
    table.add_row("publishes", f"{plan.publishes:,}", "version 0, the starting weights, included")
    table.add_row("checkpoints", *_checkpoints(s))
    table.add_row("prompts per epoch", _at_most(plan.rows), "before duplicates and bad rows are removed")
    for name, groups in plan.groups_by_task:
        table.add_row(f"prompts of {name}", f"~ {groups:,}", "its share of the run")
    if plan.updates_per_epoch is not None and plan.epochs is not None:
        table.add_row("updates per epoch", f"{plan.updates_per_epoch:,.4g}", "prompts per epoch / groups per update")
        table.add_row("epochs", f"{plan.epochs:,.3g}", "prompts of the run / prompts per epoch")
    table.add_row("prompts", f"{plan.groups:,}", _more(plan))
    table.add_row("samples", f"{plan.samples:,}", "prompts x group_size")
    table.add_row("prompt tokens", f"<= {plan.prompt_tokens:,}", "prompts x max_prompt_tokens")
    table.add_row("sampled tokens", f"<= {plan.sampled_tokens:,}", "samples x max_tokens")
    table.add_row("trained tokens", f"<= {plan.trained_tokens:,}", "rows through the trainer; sampled tokens enter the loss")
    return table


def _at_most(rows: int | None) -> str:
    return "unknown" if rows is None else f"<= {rows:,}"


def _more(plan: Plan) -> str:
    short = plan.groups < plan.updates * plan.schedule.groups_per_update
    where = "epochs x prompts per epoch; the last update is short" if short else "updates x groups per update"
    return f"{where}; up to {plan.more_prompts:,} more as replacements" if plan.more_prompts else where


def _schedule(s: Schedule) -> str:
    parts = [f"dispatches of {s.groups_per_dispatch} groups", f"{s.updates_per_publish} update(s) per publish"]
    parts.append(f"staleness <= {s.bound} version(s)")
    if s.frontier is not None:
        parts.append(f"frontier {s.frontier}")
    return ", ".join(parts)


def _in_flight(s: Schedule) -> tuple[str, str]:
    """How much is under way at a time, at most. Texts here fit a line of 80 characters."""
    if not traits(s).rounds:
        return f"<= {traits(s).cap}", "groups, requested and not consumed"
    if s.frontier is None:
        return f"<= {s.groups_per_round}", "groups: the whole round"
    if s.frontier == AUTO:
        return AUTO, "groups' worth, chosen for each round"
    return f"<= {s.frontier}", "groups' worth of trajectories (frontier)"


def _generation(s: Schedule) -> tuple[str, str]:
    """When new groups may start."""
    if traits(s).rounds:
        return "in rounds", f"the next after the publish{' and its evaluation' if s.evaluate_every else ''}"
    if s.preset == "multiversion":
        return "goes on", "new groups on the newest version"
    if s.at_publish == "drain":
        return "pauses", "before a publish, until new weights are there"
    return "goes on", f"while fewer than {s.buffer_groups} groups are trainable"


def _training(s: Schedule) -> tuple[str, str]:
    """What training starts with."""
    if s.start_when == "dispatch":
        return f"from {s.groups_per_dispatch}", "trainable groups on"
    whole = s.groups_per_round if traits(s).rounds else s.groups_per_publish
    return f"from {whole}", "trainable groups on, all until the next publish"


def _checkpoints(s: Schedule) -> tuple[str, str]:
    """How much a crash leaves to be made again."""
    if s.checkpoint_every:
        return f"every {s.checkpoint_every}", "updates (at the publish after), and at the end"
    return "one", "at the end: a crash begins at the start"


_UNFINISHED = {
    "keep": "samples go on under it, KV cache kept",
    "recompute": "samples go on under it, KV cache rebuilt",
    "drain": "an instance loads when its samples are done",
}


def _at_publish(s: Schedule) -> tuple[str, str]:
    """Versions that are live beside each other, and what becomes of unfinished work."""
    if s.preset == "multiversion":
        return f"<= {s.version_window} versions", "groups go on, each under its own version"
    return "1 version", "nothing is under way" if traits(s).rounds else _UNFINISHED[s.at_publish]


def _memory(items: tuple[Memory, ...]) -> RenderableType:
    if not items:
        return Text("memory: unknown, since there is no model, or its config.json is not here or names its sizes otherwise")
    table = Table("memory, at most", "MB", "formula", box=None, header_style="bold", pad_edge=False)
    for process, group in groupby(items, lambda item: item.process):
        parts = list(group)
        table.add_row(Text(process, style="bold"), f"{sum(part.bytes for part in parts) / 1e6:,.0f}", "each" if process == "engine" else "")
        for part in parts:
            table.add_row(f"  {part.what}", f"{part.bytes / 1e6:,.0f}", Text(part.formula))
    return Group(table, Text(), Text("; ".join(f"{letter} {meaning}" for letter, meaning in SYMBOLS.items())))
