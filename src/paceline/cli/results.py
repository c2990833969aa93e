"""How commands end, as text and exit codes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paceline.cli.display import plain
from paceline.runtime.rundir import RunDir
from paceline.types.results import AuditReport, EvalResult, Outcome, Share

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: done; the run failed (or breaks a rule); configuration or data are wrong; someone interrupted it."""


def way_on(run: str) -> list[str]:
    """What to do about a run that failed after it had begun; nothing where no run lies."""
    if not Path(run, "ledger.sqlite").is_file():
        return []
    place = shlex.quote(run)
    return [
        f"what went wrong: paceline doctor {place}",
        f"what lies in {place} stays usable; when the cause is mended: {RunDir(Path(run)).way_on}",
    ]


def tell_outcome(outcome: Outcome, summary: Sequence[str], run: str, out: Console, err: Console) -> int:
    """Say how a run ended, how it went, where its model lies and how it goes on; returns the exit code. run: its directory."""
    plain(out if outcome.ok else err, _ending(outcome))
    for line in summary:
        plain(out, line)
    if outcome.model:
        pretended = f"no model: nothing was learnt, {outcome.model} holds the counters of an emulated trainer"
        plain(out, pretended if outcome.emulated else f"model: {outcome.model}")
    if not outcome.ok:
        for line in way_on(run):
            plain(err, line)
    elif outcome.resumable and (outcome.update < outcome.total or outcome.interrupted):
        plain(out, f"continue it: {RunDir(Path(run)).way_on}")
    return INTERRUPTED if outcome.interrupted else DONE if outcome.ok else FAILED


def _ending(outcome: Outcome) -> str:
    """How far a run came; why it ended, unless it came to its end."""
    word = "interrupted" if outcome.interrupted else "done" if outcome.ok else "failed"
    whole = outcome.ok and outcome.update == outcome.total
    reason = f": {outcome.reason}" if outcome.reason and not whole else ""
    return f"{word} after {outcome.update} of {outcome.total} updates{reason}"


def tell_evaluation(result: EvalResult, out: Console) -> None:
    """Print accuracies with 95 % intervals, and pass@k."""
    plain(out, f"{result.model or 'model'} on {result.problems} problems")
    table = Table("measure", "value", "95 % interval", "answers", box=None, header_style="bold", pad_edge=False)
    rows: list[tuple[str, Share | None]] = [
        ("greedy accuracy", result.greedy),
        ("  given a parsable answer", result.greedy_if_parsed),
        ("sampled accuracy", result.sampled),
        ("  given a parsable answer", result.sampled_if_parsed),
        ("parsable answers", result.parsed),
    ]
    for name, share in rows:
        if share is not None:
            table.add_row(name, f"{share.value:.3f}", f"{share.low:.3f} to {share.high:.3f}", str(share.count))
    for k, value in result.pass_at.items():
        table.add_row(f"pass@{k}", f"{value:.3f}", "", "")
    out.print(table)


def tell_audit(report: AuditReport, out: Console) -> int:
    """Say what was checked and what does not hold; returns the exit code."""
    lines = [f"{report.events} events and {report.commands} commands in {report.lineages} lineage(s)", *report.notes]
    lines += report.violations or ("every rule holds" if report.events else "nothing was checked: nothing is recorded yet",)
    for line in lines:
        plain(out, line)
    return FAILED if report.violations else DONE
