"""The command line. Help, plans and every configuration error come without torch; commands that work import `jobs` when they start.

Exit codes: 0 done, 1 the run failed, 2 configuration or data are wrong, 130 interrupted.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.display import display, plain, screen
from paceline.cli.lazy import checks, jobs, reports
from paceline.cli.plan_text import plan_text
from paceline.cli.results import DONE, FAILED, INTERRUPTED, REFUSED, tell_audit, tell_evaluation, tell_outcome, way_on
from paceline.cli.timeline import Format, timeline
from paceline.config.checks import warnings
from paceline.config.faults import refuse
from paceline.config.inspect import ModelShape, missing_files, model_shape, task_rows, task_sections
from paceline.config.load import load
from paceline.config.plan import plan as make_plan
from paceline.config.schema import Config
from paceline.config.scoring import only_scoring
from paceline.native import machine
from paceline.timeline.range import Range
from paceline.trackers.link import GIVEN_UP
from paceline.types.errors import CheckpointError, ConfigError, DataError, ModelError, PacelineError

app = typer.Typer(
    name="paceline",
    help="Reinforcement learning on verifiable rewards for language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG.toml] [KEY=VALUE ...]", help="A TOML file, then keys to set (dotted), or ~KEY for its default."),
]
_Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key; the same as KEY=VALUE, applied last.")]
_Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]", help="Keys to set (dotted), or ~KEY for its default.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Reinforcement learning on verifiable rewards for language models."""


@app.command()
def train(
    words: _Words = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the run directory's last complete checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    set_: _Set = None,
) -> None:
    """Train a model. Ctrl-C once: checkpoint and leave; twice: leave."""
    with _told():
        config = _load(words, set_)
        if dry_run:
            _print_plan(config)
            return
        out, err = screen(sys.stdout), screen(sys.stderr)
        with _the_way_on(config), display(out, err) as show:
            outcome = jobs().train(config, resume=resume, on_progress=show)
        raise typer.Exit(tell_outcome(outcome, show.history.summary(), config.run.dir, out, err))


@app.command()
def plan(words: _Words = None, set_: _Set = None) -> None:
    """Print what a configuration amounts to.

    The same as train --dry-run.
    """
    with _told():
        _print_plan(_load(words, set_))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A model directory, a packaged model's name, or a run directory.")],
    overrides: _Overrides = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file; default: the run's own config.toml.")] = None,
    set_: _Set = None,
) -> None:
    """Score a model on eval.task.

    Greedy, sampled and pass@k, with 95 % intervals.
    """
    with _told():
        settings = only_scoring(load(_eval_config(model, config), [*(overrides or ()), *(set_ or ())]))
        _present(settings)
        out, err = screen(sys.stdout), screen(sys.stderr)
        with display(out, err) as show:
            result = jobs().evaluate(settings, model, on_progress=show)
        tell_evaluation(result, out)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New directory to write; default: model-step-N in RUN.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="The checkpoint after this update; default: the newest.")] = None,
) -> None:
    """Write a checkpoint as a Hugging Face directory.

    What a run trained to its end lies in RUN/model already.
    """
    with _told():
        if not (run / "config.toml").is_file():
            raise ConfigError(f"{run}: is no run directory, it holds no config.toml")
        checkpoint, model = jobs().export(load(run / "config.toml", [f"run.dir={run}"]), step, output)
        typer.echo(f"model: {model} (the weights of {checkpoint})")
        typer.echo(f"score it: paceline eval {shlex.quote(str(model))} --config {shlex.quote(str(run / 'config.toml'))}")


@app.command()
def audit(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Check the rules of a run over its ledger.

    Exactly once, whole groups, pinned versions, bounded staleness, publishes; and that its events give its decisions again.
    """
    with _told():
        if not (run / "ledger.sqlite").is_file():
            raise ConfigError(f"{run}: is no run directory, it holds no ledger.sqlite")
        report = jobs().audit(run)
        raise typer.Exit(tell_audit(report, screen(sys.stdout)))


@app.command("timeline")
def draw(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: timeline.json or .svg in RUN.")] = None,
    form: Annotated[Format | None, typer.Option("--format", help="Default: by the name of the output, else perfetto.")] = None,
    lineage: Annotated[int | None, typer.Option("--lineage", help="Which life of a resumed run; default: the last.")] = None,
    start: Annotated[
        float | None, typer.Option("--from", metavar="SECONDS", help="Leave out what ended before; 0 = the first record.")
    ] = None,
    end: Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="Leave out what began after.")] = None,
) -> None:
    """Draw a run, and say what its time went into.

    From the ledger, as a trace for ui.perfetto.dev or as one SVG.
    """
    with _told():
        only = Range(-math.inf if start is None else start, math.inf if end is None else end)
        _say(timeline(run, output, form, lineage, only))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: report.html in RUN.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Trajectories that are shown at most.")] = 240,
) -> None:
    """Write one offline page of a run.

    Curves, timeline, waiting and its causes, samples, configuration, audit.
    """
    with _told():
        _say(reports().report(run, output, samples))


@app.command()
def doctor(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Say what a run waits for, and what went wrong.

    Of a live or a dead run. Exit code 0: nothing needs you; 1: something does; 2: no run is there.
    """
    with _told():
        lines, healthy = reports().doctor(run)
        _say(lines)
        raise typer.Exit(DONE if healthy else FAILED)


def _say(lines: Sequence[str]) -> None:
    """Lines to standard output, whatever characters they hold and however early its reader leaves."""
    out = screen(sys.stdout)
    for line in lines:
        plain(out, line)


def _load(words: Sequence[str] | None, settings: Sequence[str] | None) -> Config:
    """The configuration of `[CONFIG.toml] [KEY=VALUE ...]`, its warnings told."""
    words = list(words or ())
    if not words and not settings:
        raise ConfigError("name a configuration file, or set keys as KEY=VALUE; see docs/guides/configuration.md")
    files = [word for word in words if not _is_override(word)]
    if len(files) > 1 or (files and words[0] != files[0]):
        raise ConfigError(f"{files[-1]}: expected key=value; one configuration file may come first")
    overrides = [*words[len(files) :], *(settings or ())]
    config = load(Path(files[0]), _at_home(Path(files[0]), overrides)) if files else load(None, overrides)
    _present(config)
    _reference_shape(config)  # who scores a model needs none
    for warning in (*warnings(config), *_lacking(config)):
        typer.echo(f"warning: {warning}", err=True)
    return config


def _at_home(file: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides; before them, for a run's own file, where the run lies now: its directory may have been moved."""
    lies = (file.parent / "ledger.sqlite").is_file() and load(file, overrides).run.dir
    return [f"run.dir={file.parent}", *overrides] if lies and Path(lies).resolve() != file.parent.resolve() else list(overrides)


def _present(config: Config) -> None:
    """Refuse what names files that are not there, before anything heavy is loaded."""
    _shape(config)
    if missing := missing_files(config):
        raise refuse(missing, "the configuration")


def _is_override(word: str) -> bool:
    return re.match(r"~|[\w.]+=", word) is not None


def _eval_config(model: str, config: Path | None) -> Path:
    own = Path(model) / "config.toml"
    if config is None and not own.is_file():
        what = "is no run directory with a config.toml" if Path(model).exists() else "there is no such directory"
        raise ConfigError(f"{model}: {what}; for a model that is no run, name a configuration with --config")
    return config or own


def _print_plan(config: Config) -> None:
    if any(task.kind == "file" for task in task_sections(config).values()):
        checks().check_data(config)
    if any(reward.function is not None for reward in config.reward):
        checks().check_rewards(config)
    console = screen(sys.stdout)
    if not console.is_terminal:
        console.width = 140
    rows = [task_rows(task, section) for section, task in task_sections(config).items() if section != "eval.task"]
    shape = _shape(config)
    engine, trainer = (shape is not None and _panels(config, shape, which) for which in (_decodes_by_kernels, _trains_by_kernels))
    plan = make_plan(config, rows, shape, panels=engine, trainer_panels=trainer, reference=_reference_shape(config))
    console.print(plan_text(plan))


def _panels(config: Config, shape: ModelShape, wanted: Callable[[Config], bool]) -> bool:
    """Whether compiled kernels will multiply, as far as it can be told without a model."""
    inputs = max(shape.width, shape.intermediate, shape.heads * shape.head_dim)
    return wanted(config) and config.model.implementation != "transformers" and machine.panels(config.model.dtype, shape.head_dim, inputs)


def _lacking(config: Config) -> Iterator[str]:
    """What this machine lacks."""
    chosen = {
        "rollout.kernels": (config.rollout.kernels, _decodes_by_kernels),
        "trainer.kernels": (config.trainer.kernels, _trains_by_kernels),
    }
    if config.model.dtype == "float64" or machine.compiler() is not None:
        return
    for setting, meaning in (("auto", "so a run takes longer"), ("native", "so a run will be refused here")):
        if asking := " and ".join(key for key, (choice, wanted) in chosen.items() if choice == setting and wanted(config)):
            yield f"{asking} = {setting}: no C++ compiler on the path, {meaning}; install g++ or clang++"


def _decodes_by_kernels(config: Config) -> bool:
    return config.rollout.engine == "torch" and config.rollout.kernels != "torch" and set(config.pool.rollout_devices) == {"cpu"}


def _trains_by_kernels(config: Config) -> bool:
    return config.rollout.engine == "torch" and config.trainer.kernels != "torch" and config.pool.trainer_device == "cpu"


def _shape(config: Config) -> ModelShape | None:
    """The model's sizes, where there is a model and they are known."""
    return model_shape(config.model.path) if config.rollout.engine != "emulated" else None


def _reference_shape(config: Config) -> ModelShape | None:
    """The same of a reference model that is not the starting weights."""
    path = config.algorithm.reference
    return model_shape(path, "algorithm.reference") if path is not None and config.rollout.engine != "emulated" else None


@contextmanager
def _the_way_on(config: Config) -> Iterator[None]:
    """After the error that ended a run, say how it goes on."""
    try:
        yield
    except (PacelineError, OSError) as error:
        if isinstance(error, ValueError):
            raise
        raise _failed(error, way_on(config.run.dir)) from error


def _failed(error: Exception, after: Sequence[str] = ()) -> typer.Exit:
    for line in (f"failed: {error}", *after):
        typer.echo(line, err=True)
    return typer.Exit(FAILED)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a user can cause into a message on standard error and an exit code, without a traceback."""
    try:
        yield
    except (ConfigError, DataError, ModelError, CheckpointError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    except (PacelineError, OSError) as error:  # also no permission, no such file: the error names it
        raise _failed(error) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


def main() -> None:
    """Entry point of the `paceline` command."""
    try:
        app()
    except SystemExit as end:
        if GIVEN_UP.is_set() and isinstance(end.code, int):  # W&B's exit handler waits for its uploads, for days
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, AttributeError):
                    stream.flush()
            os._exit(end.code)
        raise


if __name__ == "__main__":
    main()
