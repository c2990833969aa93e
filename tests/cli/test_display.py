"""What is shown of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from typing import IO

import pytest
from rich.console import Console

from paceline.cli.display import BARS, COLUMNS, History, Lines, Panel, display, number, plain, screen, sparkline
from paceline.types.progress import Progress


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=120, height=40), out


def test_a_sparkline_spans_from_the_least_to_the_largest_value() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == BARS[0] + BARS[4] + BARS[-1]
    assert sparkline([3.0, 3.0]) == BARS[0] * 2
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(100)], width=60)) == 60
    assert sparkline([0.0, float("nan"), 1.0]) == BARS[0] + BARS[-1]


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.123456, "0.1235"), (1234.56, "1234.6"), (2e-5, "2e-05"), (float("nan"), "nan"), (float("inf"), "inf"), (1e9, "1e+09")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_an_update_is_one_line_however_often_it_is_told() -> None:
    out, text = console()
    err, notices = console()
    with Lines(out, err) as show:
        for _ in range(3):
            show(Progress(1, 9, {"reward": 0.5, "unknown": 1.0}, "train"))
        show(Progress(1, 9, phase="publish"))
        show(Progress(2, 9, {"reward": float("nan")}, "train", message="[bold] stays as it is"))
    assert text.getvalue() == "update 1/9  reward 0.5\nupdate 2/9  reward nan\n"
    assert notices.getvalue() == "[bold] stays as it is\n"


def test_updates_that_a_lost_trainer_took_along_are_shown_again_when_they_are_made_again() -> None:
    out, text = console()
    with Lines(out, out) as show:
        for update in (1, 2, 3):
            show(Progress(update, 9, {"reward": float(update)}, "train"))
        show(Progress(1, 9, message="goes on from step-1"))
        show(Progress(2, 9, {"reward": 2.5}, "train"))
    assert text.getvalue().splitlines()[3:] == ["goes on from step-1", "update 2/9  reward 2.5"]
    assert show.history.rewards == [1.0, 2.5]


def test_long_lines_are_not_wrapped() -> None:
    out, text = console()
    with Lines(out, out) as show:
        show(Progress(0, 1, message="x" * 500))
    assert text.getvalue() == "x" * 500 + "\n"


def test_the_panel_shows_phase_curve_values_evaluation_and_the_last_notices() -> None:
    out, _ = console(terminal=True)
    shown, text = console()
    err, notices = console()
    with Panel(out, err) as show:
        show(Progress(1, 9, {"reward": 0.25, "rollout_tokens_per_second": 321.0}, "train"))
        show(Progress(2, 9, {"reward": 0.75, "loss": float("inf")}, "train"))
        show(Progress(2, 9, {"eval/greedy": 0.5}, "evaluate"))
        for index in range(5):
            show(Progress(2, 9, phase="checkpoint", message=f"notice {index}"))
        shown.print(show.render())
    panel = text.getvalue()
    assert "checkpoint" in panel
    assert "2/9" in panel
    assert f"reward {BARS[0]}{BARS[-1]} 0.75 (0.25 to 0.75)" in panel
    assert "inf" in panel
    assert "evaluation after update 2  greedy 0.5" in panel
    assert "notice 1" not in panel
    assert "notice 4" in panel
    assert notices.getvalue().splitlines() == [f"notice {index}" for index in range(5)], "standard error is no terminal: a log has them all"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_panel_breaks_no_value_however_narrow_the_terminal(width: int) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=width, height=40, color_system=None)
    show = Panel(shown, shown)
    values = {name: 0.1234 + place for place, name in enumerate(COLUMNS)}
    for update in range(1, 100):
        show(Progress(update, 100, {**values, "reward": update / 100}, "checkpoint"))
    with shown.capture() as captured:
        shown.print(show.render())
    lines = captured.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "checkpoint" in lines[0]
    assert "99/100" in lines[0]
    assert lines[1].endswith(" 0.99 (0.01 to 0.99)")
    for name, head in COLUMNS.items():
        words = f"{head} {number(0.99 if name == 'reward' else values[name])}"
        assert any(words in line for line in lines), words


def test_the_summary_compares_beginning_and_end() -> None:
    history = History()
    assert history.summary() == []
    for greedy in (0.25, 0.4, 0.5):
        history.feed(Progress(0, 9, {"eval/greedy": greedy, "eval/pass@4": 0.75}))
    for update in range(1, 13):
        history.feed(Progress(update, 12, {"reward": 0.0 if update <= 6 else 1.0}))
    assert history.summary() == [
        f"reward 0.000 -> 1.000 (first and last 5 updates)  {BARS[0] * 6}{BARS[-1] * 6}",
        "evaluation  greedy 0.250 -> 0.500  pass@4 0.750 -> 0.750",
    ]


def test_an_empty_panel_can_be_drawn() -> None:
    out, _ = console(terminal=True)
    shown, text = console()
    shown.print(Panel(out, out).render())
    assert "0/0" in text.getvalue()


@pytest.fixture
def terminal() -> Iterator[IO[str]]:
    """What `isatty` says yes to."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream
    os.close(ours)


def test_the_display_follows_the_kind_of_output(terminal: IO[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    pipe, _ = console()
    assert isinstance(display(screen(terminal), pipe), Panel)
    assert isinstance(display(pipe, screen(terminal)), Lines)


def test_a_terminal_that_cannot_be_redrawn_and_a_log_that_wants_colours_get_lines(
    terminal: IO[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display(screen(terminal), screen(terminal)), Lines)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    log = io.StringIO()
    shown = screen(log)
    with display(shown, shown) as show:
        show(Progress(1, 9, {"reward": 0.5}, "train"))
    assert log.getvalue() == "update 1/9  reward 0.5\n", "nothing moves the cursor"


def test_a_reader_that_leaves_ends_the_showing_and_nothing_else() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        shown = screen(stream)
        plain(shown, "first")
        os.close(reader)
        for _ in range(3):
            plain(shown, "x" * 100_000)  # and closing the stream, as at exit, raises nothing either


def test_a_locale_without_bars_shows_something_in_their_place() -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    plain(screen(stream), f"reward {BARS}")
    assert content.getvalue() == b"reward ????????\n"


def test_without_a_standard_output_nothing_is_shown() -> None:
    plain(screen(None), "nobody sees it")
