"""The guide quotes what runs printed when they failed, and what they printed names what a tired reader has to know."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import quotes  # isort: skip

FIGURES: dict[str, Any] = json.loads(quotes.EVIDENCE.read_text(encoding="utf-8"))["figures"]


def said(name: str, step: int) -> str:
    return "\n".join(FIGURES[name]["steps"][step]["output"])


def codes(name: str) -> list[int]:
    return [step["exit"] for step in FIGURES[name]["steps"]]


def test_the_guide_quotes_every_failure_as_the_evidence_has_it() -> None:
    text = quotes.GUIDE.read_text(encoding="utf-8")
    assert quotes.inserted(text, FIGURES) == text
    assert [match[2] for match in quotes.QUOTE.finditer(text)] == list(quotes.FAILURES) == list(FIGURES)


def test_no_quote_holds_a_path_of_the_machine_that_made_it_or_a_traceback() -> None:
    for name in FIGURES:
        for step in range(len(FIGURES[name]["steps"])):
            assert "/tmp" not in said(name, step), name
            assert "Traceback" not in said(name, step) or name in ("raise", "crash"), "a traceback of the user's own code at most"


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("hang", 0, ("trainer: waits for rewards", "rewards: group ", "group 3", "due in", "reward.timeout_s", "process")),
        ("hang", 1, ("rewards solved gave no answer on group 3 (row 3 of rows [rows.jsonl line 4]: 'What is 10 + 3?'), samples 0-3", "within 30 s", "reward.timeout_s")),
        ("hang", 2, ("could not be judged", "row 3 of rows", "--resume", "this needs you")),
        ("raise", 0, ("reward solved raised ValueError on row 3 of rows [rows.jsonl line 4] (group 3, samples 0-3)", "status 502", "reward.py line")),
        ("raise", 1, ("row 3 of rows", "--resume", "this needs you")),
        ("crash", 0, ("row 3 of rows", "signal SIGSEGV", "group 3")),
        ("crash", 1, ("signal SIGSEGV", "--resume", "this needs you")),
        ("disk", 0, ("failed: disk/RUN/", "No space left on device", "paceline doctor disk/RUN", "--resume")),
        ("disk", 1, ("the disk is nearly full", "--resume", "this needs you")),
        ("column", 0, ("rows.jsonl: no column 'gold' (task.gold_column): set task.gold_column = 'answer'", "columns present: prompt, answer")),
        ("column", 1, ("is no run directory",)),
        ("trainer", 0, ("worker trainer was lost", "signal SIGKILL (from outside: kill -9, or the kernel out of memory)")),
        ("killed", 1, ("died after", "--resume", "checkpoints/step-", "this needs you")),
        ("killed", 2, ("done after 5 of 5 updates",)),
    ],
)  # fmt: skip
def test_each_says_what_failed_where_and_what_to_do(name: str, step: int, words: tuple[str, ...]) -> None:
    assert [word for word in words if word not in said(name, step)] == []


def test_exit_codes_tell_a_watchdog_what_happened() -> None:
    assert codes("hang") == [0, 1, 1], "while it hangs within its deadline nothing needs anybody"
    assert codes("raise") == codes("crash") == codes("disk") == [1, 1]
    assert codes("column") == [2, 2]
    assert codes("killed") == [137, 1, 0]
