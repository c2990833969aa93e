"""The page in a real browser: it opens without an error, fits a phone, reads values under the pointer and finds samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_runs  # makes benchmarks importable
from test_samples import group, write

from paceline.core import commands as c
from paceline.report.gather import gather
from paceline.report.page import render

import made_runs  # isort: skip
from browser import Browser, find  # isort: skip

COMMAND = find()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="there is no chromium on this machine (apt-get install chromium)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("browser") / "run"
    made_runs.write(run, made_runs.schedule(12, 2), made_runs.world())
    path = run / "report.html"
    path.write_text(render(gather(run, 60)))
    return path


def ask(page: Path, script: str, width: int = 1280) -> Any:
    assert COMMAND is not None
    return Browser(COMMAND).ask(page, script, width)


@pytest.mark.parametrize(("width", "narrowest"), [(390, 300), (320, 230)])
def test_at_phone_width_nothing_is_wider_than_the_screen_but_what_scrolls_by_itself(page: Path, width: int, narrowest: int) -> None:
    script = """
    const inside = (node) => node.closest(".scroll, svg") !== null;
    const wide = [...document.querySelectorAll("main *, header *")].filter((n) => !inside(n) && n.getBoundingClientRect().right > window.innerWidth + 1);
    const small = [...document.querySelectorAll(".card .plot svg")].map((svg) => svg.getBoundingClientRect().width);
    return { scroll: document.documentElement.scrollWidth, wide: wide.map((n) => n.className || n.tagName), narrowest: Math.min(...small) };
    """
    found = ask(page, script, width)
    assert found["scroll"] == width
    assert found["wide"] == []
    assert found["narrowest"] >= narrowest, "labels of 11 pixels stay readable"


def test_a_pointer_reads_every_chart_at_one_update_and_leaves_the_last_values_behind(page: Path) -> None:
    script = """
    const plot = document.querySelector("[data-hover] .plot"), box = plot.getBoundingClientRect();
    const values = () => [...document.querySelectorAll('[data-name="step_time"], [data-name="reward"]')].map((b) => b.textContent);
    const before = values();
    const at = (share) => ({ clientX: box.left + share * box.width, bubbles: true });
    plot.dispatchEvent(new window.PointerEvent("pointermove", at(0.13)));
    const during = values(), said = new Set([...document.querySelectorAll("[data-hover] output")].map((o) => o.textContent));
    plot.dispatchEvent(new window.PointerEvent("pointerleave", at(0.13)));
    const hover = JSON.parse(document.getElementById("hover").textContent).values;
    return { same: String(before) === String(values()), during, said: [...said], wanted: [hover.reward[0], hover.step_time[0]].map(String) };
    """
    found = ask(page, script)
    assert found["said"] == ["update 1"]
    assert found["during"] == found["wanted"]
    assert found["same"]


def test_samples_are_found_by_text_reason_and_reward_and_open_with_what_was_found_marked(page: Path) -> None:
    script = """
    const all = JSON.parse(document.getElementById("data").textContent), results = {};
    const count = () => document.getElementById("found").textContent;
    const set = (id, value) => { const x = document.getElementById(id); x.value = value; x.dispatchEvent(new window.Event("input")); };
    results.all = count();
    set("reason", "numeric: no_answer"); results.reason = count();
    results.wanted = all.filter((s) => s.reasons.numeric === "no_answer").length;
    set("reason", ""); set("which", "best"); results.best = count();
    results.right = all.filter((s) => s.reward > 0).length;
    set("which", ""); set("find", "TENS ARE"); results.find = count();
    const first = document.querySelector(".sample"); first.open = true;
    await new Promise((done) => window.setTimeout(done, 50));
    results.marks = [...new Set([...first.querySelectorAll("mark")].map((m) => m.textContent))];
    results.headings = [...first.querySelectorAll("h3")].map((h) => h.textContent.split(" ")[0]);
    set("find", "nothing says this"); results.none = count();
    return results;
    """
    found = ask(page, script)
    assert found["all"] == "60 of 60"
    assert found["reason"] == f"{found['wanted']} of 60"
    assert found["wanted"] > 0
    assert found["best"] == f"{found['right']} of 60"
    assert found["find"].endswith(" of 60")
    assert not found["find"].startswith("0 ")
    assert found["marks"] == ["tens are"]
    assert found["headings"] == ["prompt", "answer", "gold", "verdict"]
    assert found["none"] == "0 of 60"


def test_a_wrong_answer_that_shaping_pays_well_is_not_shown_as_a_right_one(tmp_path: Path) -> None:
    run = report_runs.simulated(tmp_path / "run")
    (run / "trajectories").mkdir()
    write(run / "trajectories", 1, 1, group(1, (1.0, 0.9, 0.1), ("", "", "")))
    page = run / "report.html"
    page.write_text(render(gather(run, 60)), encoding="utf-8")
    script = """
    const tones = [...document.querySelectorAll(".sample .reward")].map((n) => n.className), found = {};
    const x = document.getElementById("which");
    for (const { value } of x.options) { x.value = value; x.dispatchEvent(new window.Event("input")); found[value] = document.getElementById("found").textContent; }
    return { tones, found };
    """
    told = ask(page, script)
    assert told["tones"] == ["reward good", "reward bad", "reward bad"]
    counts = {kind: int(text.split()[0]) for kind, text in told["found"].items()}
    assert counts == {"": 3, "right": 1, "wrong": 2, "best": 2, "worst": 1, "cut": 0}


HOSTILE = (
    "</script><script>parent.owned = window.owned = true</script>",
    "<img src=x onerror='window.owned = true'> &lt;b&gt; <!-- ]]>",
    "\x00\x07\x1b[2J \u2028 \u2029 \ufeff \u202e dlrow \U0001f600 \u0130",
    "a^2 (b+c) [x] \\boxed{3} $5 " + "x" * 1_000_000,
)


def test_whatever_a_model_wrote_is_text_and_is_found_as_it_was_written(tmp_path: Path) -> None:
    run = report_runs.simulated(tmp_path / "<b>run")
    (run / "trajectories").mkdir()
    for number, text in enumerate(HOSTILE, start=1):
        write(run / "trajectories", 1, number, group(number, (1.0,), ("",), text=text))
    page = run / "report.html"
    page.write_text(render(gather(run, 60)), encoding="utf-8")
    script = """
    const set = (value) => { const x = document.getElementById("find"); x.value = value; x.dispatchEvent(new window.Event("input")); };
    const found = {};
    for (const words of ["<\\/SCRIPT>", "&lt;b&gt;", "\\\\boxed{3} $5", "a^2 (B+C) [x]", "b.c"]) {
      set(words); found[words] = document.getElementById("found").textContent;
    }
    set("onerror");
    const first = document.querySelector(".sample"); first.open = true;
    await new Promise((done) => window.setTimeout(done, 50));
    const toned = document.querySelectorAll(".reward.good, .reward.bad").length;
    return { found, owned: Boolean(window.owned), images: document.images.length, body: first.querySelectorAll("pre")[1].textContent, toned };
    """
    told = ask(page, script)
    assert list(told["found"].values()) == ["1 of 4", "1 of 4", "1 of 4", "1 of 4", "0 of 4"]
    assert (told["owned"], told["images"]) == (False, 0)
    assert told["body"] == HOSTILE[1]
    assert told["toned"] == 0, "all rewards are alike: none is worse than the others"


def test_pages_of_runs_that_have_little_to_show_open_without_an_error(tmp_path: Path) -> None:
    nothing = report_runs.cut(tmp_path / "nothing", lambda value: isinstance(value, c.Dispatch))
    one = report_runs.cut(tmp_path / "one", lambda value: isinstance(value, c.Dispatch) and value.update == 2)
    for run in (nothing, one):
        page = run / "report.html"
        page.write_text(render(gather(run, 60)), encoding="utf-8")
        assert ask(page, "return document.getElementById('samples').textContent", 390).count("No trajectory is kept") == 1


def test_dark_and_light_are_told_apart_and_text_stands_out_in_both(page: Path, tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    assert COMMAND is not None
    means = []
    for dark in (False, True):
        target = tmp_path / f"{dark}.png"
        Browser(COMMAND).picture(page, target, 800, 600, dark=dark)
        grey = Image.open(target).convert("L")
        low, high = grey.getextrema()
        assert high - low > 150
        means.append(sum(value * n for value, n in enumerate(grey.histogram())) / (800 * 600))
    assert means[0] > 200
    assert means[1] < 60
