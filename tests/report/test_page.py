"""The page: one file without references to anything outside, for every kind of run, with what it was made of in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_runs import cut, keep, plan, recorded, simulated
from tests.core.test_recorded_runs import RECORDED
from typer.testing import CliRunner, Result

from paceline.cli.main import app
from paceline.core import commands as c
from paceline.core import events as e
from paceline.core.schedule import Resume
from paceline.report.cards import learning, times
from paceline.report.gather import gather
from paceline.report.page import embedded, render
from paceline.runtime.metrics import time_metrics
from paceline.runtime.notices import Notices
from paceline.sim.driver import simulate
from paceline.sim.world import FakeInstance, World

import made_runs  # isort: skip  # report_runs makes it importable


def report(run: Path, *words: Any) -> Result:
    return CliRunner().invoke(app, ["report", str(run), *map(str, words)])


class Page(HTMLParser):
    """Which elements there are, what they refer to, and whether they are closed in order."""

    VOID = frozenset(("meta", "input", "br", "hr", "img", "link"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.references += [str(given[name]) for name in ("src", "href", "xlink:href") if given.get(name)]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closed in itself."""

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.crossed.append(tag)


def checked(text: str) -> Page:
    page = Page(text)
    assert page.crossed == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.startswith("#") for reference in page.references), page.references
    assert "@import" not in text
    assert not re.search(r"url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    return page


def data(text: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_run_of_every_schedule_becomes_one_page_without_references_outside(path: Path, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", path)
    told = report(run)
    assert told.exit_code == 0, told.output
    text = (run / "report.html").read_text()
    page = checked(text)
    sections = ("wrong", "learning", "time", "timeline", "lengths", "samples", "configuration", "audit")
    assert [name for name in page.ids if name in sections] == list(sections)
    assert "every rule holds" in text


def test_a_whole_run_shows_learning_evaluations_samples_and_times_of_its_ledger(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trace = made_runs.write(run, made_runs.schedule(12, 2), made_runs.world())
    assert report(run, "--samples", 30).exit_code == 0
    text = (run / "report.html").read_text()
    checked(text)
    samples, hover = data(text, "data"), data(text, "hover")
    assert len(samples) == 30
    finished = sum(isinstance(record, e.TrajectoryFinished) for _, record in trace.records)
    assert f"30 of the {finished} trajectories" in text
    assert hover["x"] == list(range(1, 13))
    gathered = gather(run, 0)
    rows = gathered.latest.updates
    assert hover["values"]["step_time"] == [float(f"{time_metrics(row)['step_time']:.4g}") for row in rows]
    assert {"Reward", "Entropy", "Evaluation", "Staleness", "Rollout speed", "Trainer waiting ratio"} <= set(
        re.findall(r"<b>([^<]+)</b>", text)
    )
    assert len(gathered.evaluations) == len({row.update for row in gathered.evaluations}) > 2


def test_the_table_of_evaluations_names_the_updates(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made_runs.write(run, made_runs.schedule(12, 2), made_runs.world())
    text = render(gather(run, 0))
    rows = re.findall(r"<tr><td>([^<]*)</td><td>(\d+)</td><td>200</td>", text)
    assert [int(update) for update, _ in rows] == [row.update for row in gather(run, 0).evaluations]
    assert "method" not in text


def test_an_emulated_run_says_that_its_rewards_are_pretended(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run")
    assert "Emulated" not in render(gather(run, 0))
    (run / "config.toml").write_text('[rollout]\nengine = "emulated"\n[emulated]\ntime_scale = 20.0\n')
    text = render(gather(run, 0))
    assert "Answers, rewards and losses are pretended; seconds here are real ones, 20 times as many" in text
    (run / "config.toml").write_text('[rollout]\nengine = "torch"\n')
    assert "pretended" not in render(gather(run, 0))


def test_the_frontier_that_was_chosen_for_every_round_stands_on_the_page(tmp_path: Path) -> None:
    chosen = plan(frontier="auto", groups_per_dispatch=1)
    records = simulate(chosen, World((FakeInstance("rollout-0"),), report=0.05)).records
    run = keep(tmp_path / "run", chosen, Resume(), records)
    assert report(run).exit_code == 0
    page = (run / "report.html").read_text()
    told = [record.words for _, record in records if isinstance(record, c.SetFrontier)]
    assert len(told) == 3
    assert "F = " in told[-1]
    assert re.findall(r"frontier of round [^<]*", page) == told


def test_a_live_run_says_on_its_page_what_it_waits_for(tmp_path: Path) -> None:
    text = render(gather(cut(tmp_path / "run", lambda value: isinstance(value, e.GroupMaterialized)), 0))
    assert "Waited for, when the records end" in text
    assert re.search(r"<li>rewards: group \d", text)


def test_the_time_of_a_life_that_left_no_checkpoint_is_in_the_total(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", lambda value: isinstance(value, c.Dispatch) and value.update == 2)
    alone = gather(run, 0).total
    chosen = plan()
    keep(run, chosen, Resume(), simulate(chosen, World((FakeInstance("rollout-0"),))).records)
    gathered = gather(run, 0)
    assert gathered.total.seconds == pytest.approx(alone.seconds + gathered.latest.total.seconds)
    assert alone.seconds > 0
    assert list(gathered.updates) == [1, 2, 3, 4, 5, 6]
    text = render(gathered)
    checked(text)
    assert "2 lives: continued after update 0" in text
    assert "Nothing in the latest life, lineage 2: no attempt failed" in text


def test_time_that_no_update_has_is_told_beside_the_bars(tmp_path: Path) -> None:
    """An evaluation after the last update is in the figures at the top: without a word the two would contradict each other."""
    run = tmp_path / "run"
    made_runs.write(run, made_runs.schedule(3, 2), made_runs.world())
    gathered = gather(run, 0)
    after = gathered.total.seconds - sum(row.tally.seconds for row in gathered.latest.updates)
    assert after > 0.01 * gathered.total.seconds
    assert all(card.note.endswith(f"not in it: {after:,.1f} s after the last update") for card in times(gathered)[:2])


def test_a_card_for_several_tasks_and_reward_functions_says_what_it_leaves_out(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run")
    values = {"reward": 0.5, "reward/easy": 0.75, "reward/hard": 0.25, **{f"rewards/r{i}/mean": i / 10 for i in range(8)}}
    rows = [{"axis": "update", "step": step, "lineage": 1, **values} for step in range(1, 7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cards = {card.title: card for card in learning(gather(run, 0))}
    assert [(key.words, key.value) for key in cards["Reward by task"].keys] == [("easy", "0.75"), ("hard", "0.25")]
    assert len(cards["Reward functions"].keys) == 6
    assert cards["Reward functions"].note == "2 more are in metrics.jsonl"


def test_a_name_and_an_error_with_half_a_character_are_written_all_the_same(tmp_path: Path) -> None:
    run = cut(tmp_path / "caf\udce9", lambda value: isinstance(value, e.DispatchConsumed))
    Notices(run / "notices.jsonl", 1).add("row 3: \ud83d", fatal=True)
    told = report(run)
    assert told.exit_code == 0, told.output
    checked((run / "report.html").read_text(encoding="utf-8"))


def test_samples_cannot_leave_their_script_and_names_cannot_leave_their_element(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- \u2028"
    assert "<" not in embedded([{"text": evil}])
    assert json.loads(embedded([{"text": evil}])) == [{"text": evil}]
    run = simulated(tmp_path / "<img src=x>")
    (run / "config.toml").write_text("# <script>alert(1)</script>")
    text = render(gather(run, 0))
    assert "<img" not in text
    assert "alert(1)" in text
    assert "<script>alert" not in text


def test_a_run_of_one_decision_a_killed_and_a_resumed_run_have_a_page(tmp_path: Path) -> None:
    short = keep(tmp_path / "short", plan(), Resume(), [(0.0, e.Started()), (0.0, c.Publish(1, 0, 0))])
    killed = cut(tmp_path / "killed", lambda value: isinstance(value, c.Dispatch) and value.update == 4)
    chosen, resume = plan(), Resume(2, 1, (), 4)
    resumed = cut(tmp_path / "resumed", lambda value: isinstance(value, c.Dispatch) and value.update == 4)
    keep(resumed, chosen, resume, simulate(chosen, World((FakeInstance("rollout-0"),)), resume).records, parent=1)
    for run in (short, killed, resumed):
        told = report(run)
        assert told.exit_code == 0, told.output
        checked((run / "report.html").read_text())
    gathered = gather(resumed, 0)
    assert list(gathered.updates) == [1, 2, 3, 4, 5, 6], "what the first life did after update 2 is void"
    assert [[row.step for row in told.updates] for told in gathered.lives] == [[1, 2], [3, 4, 5, 6]]
    assert "continued after update 2" in (resumed / "report.html").read_text()


def test_what_a_pointer_reads_of_a_very_long_run_is_bounded_and_ends_with_the_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated(tmp_path / "run", total_updates=10)
    assert data(render(gather(run, 0)), "hover")["x"] == list(range(1, 11))
    monkeypatch.setattr("paceline.report.page.READ", 4)
    hover = data(render(gather(run, 0)), "hover")
    assert hover["x"] == [1, 4, 7, 10]
    assert all(len(values) == 4 for values in hover["values"].values())


def test_a_long_run_shows_its_beginning_its_slowest_period_and_its_end(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", total_updates=250)
    assert report(run).exit_code == 0
    text = (run / "report.html").read_text()
    assert re.findall(r'<label for="view\d">([^<]+)</label>', text) == ["beginning", "slowest period", "end"]


def test_what_is_no_run_an_empty_ledger_and_a_missing_directory_are_refused(tmp_path: Path) -> None:
    assert report(tmp_path).exit_code == 2
    empty = keep(tmp_path / "empty", plan(), Resume(), [])
    told = report(empty)
    assert told.exit_code == 2
    assert "before its first decision" in told.output
    told = report(simulated(tmp_path / "run"), "-o", tmp_path / "no" / "page.html")
    assert told.exit_code == 2
    assert "there is no directory" in told.output


def test_reporting_and_diagnosing_load_no_torch(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run")
    code = (
        "import sys; from paceline.cli.report import doctor, report; from pathlib import Path; run = Path(sys.argv[1]);"
        "report(run, None, 10); doctor(run); print([m for m in ('torch', 'transformers', 'reasoning_gym') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ODD = [
    b"", bytes(range(128, 256)), b"\0" * 512, b"[" * 100_000, b"9" * 5000, b"[]", b"7", b"null", b"{}",
    b'{"axis": "update", "step": "7", "lineage": 1}', b'{"axis": [], "step": 7, "lineage": 1}', b'{"axis": "update", "step": 7, "lineage": null}',
    b'{"lineage": [], "update": 1}', b'{"lineage": 1, "update": 1}',
    b'{"lineage": 1, "update": 1, "version": 1, "problems": 1, "greedy": 1, "sampled": null, "parsed": null, "pass_at": {}}',
    b'{"lineage": 1, "time": "", "update": 1, "message": "m", "odd": 1}',
]  # fmt: skip
"""Lines that a disk, a crash or another program may leave."""


def test_an_odd_line_in_a_file_of_lines_is_passed_over_or_told_by_file_and_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made_runs.write(run, made_runs.schedule(2, 1, 2), made_runs.world())
    assert (run / "eval.jsonl").is_file()
    for name in ("metrics.jsonl", "eval.jsonl", "notices.jsonl"):
        whole = (run / name).read_bytes() if (run / name).is_file() else b""
        for line in ODD:
            (run / name).write_bytes(whole + line + b"\n")
            for done in (report(run), CliRunner().invoke(app, ["doctor", str(run)])):
                assert done.exception is None or isinstance(done.exception, SystemExit), (name, line[:80], done.exception)
                assert done.exit_code in (0, 1) or f"{name} line {1 + whole.count(10)}: not a line of" in done.stderr, (name, line[:80])
        (run / name).write_bytes(whole)
