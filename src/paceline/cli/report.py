"""`paceline report` and `paceline doctor`: a run directory as a page, and as a few lines for whoever is on call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.durable import whole
from paceline.report.doctor import SHOWN, Diagnosis, debt, diagnose
from paceline.report.gather import gather
from paceline.report.page import default_output, render
from paceline.types.errors import ConfigError


def report(run: Path, output: Path | None, samples: int) -> list[str]:
    """Write the page; what to tell the user about it."""
    output = output or default_output(run)
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no directory {output.parent}")
    gathered = gather(run, samples)
    text = render(gathered)
    with whole(output) as aside:
        aside.write_text(text, encoding="utf-8", errors="replace")  # a name or an error message may hold half a character
    shown = f"{len(gathered.samples.samples):,} of {gathered.samples.count:,} trajectories"
    return [f"{gathered.name} {gathered.diagnosis.headline}", f"report: {output} ({len(text) / 1e6:.2f} MB, {shown}; opens offline)"]


def doctor(run: Path) -> tuple[list[str], bool]:
    """What is wrong with a run, in lines; whether nothing is."""
    diagnosis = diagnose(run)
    return list(lines(run, diagnosis)), diagnosis.healthy


def lines(run: Path, diagnosis: Diagnosis) -> Iterator[str]:
    """A diagnosis as text: what is, what is waited for, what went wrong."""
    yield f"{run} {diagnosis.headline}"
    yield from (f"  {fact}" for fact in diagnosis.facts)
    yield from _waiting(diagnosis)
    for finding in diagnosis.findings:
        yield f"{finding.level}: {finding.what}"
        yield from (f"  {line}" for line in finding.details[:SHOWN])
        if len(finding.details) > SHOWN:
            yield f"  and {len(finding.details) - SHOWN} more"
        if finding.advice:
            yield f"  -> {finding.advice}"
    if diagnosis.notices:
        yield "the last notices it showed"
        yield from (f"  {line}" for line in diagnosis.notices)
    yield "nothing needs you" if diagnosis.healthy else "this needs you"


def _waiting(diagnosis: Diagnosis) -> Iterator[str]:
    live = diagnosis.state == "running"
    if diagnosis.trainer:
        yield f"  trainer: {diagnosis.trainer}"
    if diagnosis.owed:
        yield "waits for" if live else "waited for, when the records end"
        yield from (f"  {debt(owed, live)}" for owed in diagnosis.owed[:SHOWN])
    if len(diagnosis.owed) > SHOWN:
        yield f"  and {len(diagnosis.owed) - SHOWN} more"
