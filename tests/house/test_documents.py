"""Documents name only what exists: tests, files, benchmarks."""

import re
from pathlib import Path

import pytest

from paceline.cli.main import app
from paceline.config.keys import field_at

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
SCRIPT = re.compile(r"`(benchmarks/\w+\.py)`")
COMMAND = re.compile(r"(?:`|^    |^\$ )paceline ([a-z]+)\b", re.MULTILINE)
KEY = re.compile(r"`~?((?:run|model|task|mix|reward|rollout|schedule|algorithm|trainer|pool|emulated|eval|tracking)\.[\w.]+)[`=]")
NOT_OURS = {"rollout.n", "model.name", "task.counts", "task.skipped"}
"""Keys of other trainers, attributes of objects."""
FREE = re.compile(r"(.*\.(?:parameters|arguments|template_arguments))\.\w+")
"""Below these a user's own names stand."""
FILE = re.compile(r".*\.(py|json|jsonl|md|safetensors)")
CASE = re.compile(r"^\| ([A-Z]\d\d): ", re.MULTILINE)
CASES = {
    *("A01", "A03", "A07", "A09", "A10"),
    *("D03", "D05", "D07", "D09", "D11"),
    *("L01", "L03", "L05", "L06", "L07", "L09", "L11", "L13"),
    *("T02", "T03", "T04", "T06", "T07", "T09", "T11"),
    *("V01", "V03", "V06", "V07", "V09", "V10", "V12", "V14", "V20"),
    *("D03", "D05", "D07", "D11", "R02", "R03", "R05", "R08"),
    *("W01", "W05", "W07", "W08", "W09", "W10", "W11", "W12"),
}
POLICIES = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")


def test_every_test_named_by_the_policies_exists() -> None:
    named = NAMED_TEST.findall(POLICIES)
    assert len(named) > len(CASES)
    missing = [f"{file}::{name}" for file, name in named if not re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text("utf-8"))]
    assert missing == []


def test_every_case_has_a_policy_and_a_test() -> None:
    rows = [line for line in POLICIES.splitlines() if CASE.match(line)]
    assert [row for row in rows if not NAMED_TEST.search(row)] == []
    listed = CASE.findall(POLICIES)
    assert len(rows) == len(set(row.split("|")[1] for row in rows))
    assert set(listed) >= CASES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_only_to_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = [(page.parent / link if link else page, part) for link, part in LINK.findall(text) if not link.startswith("http")]
    places += [(ROOT / script, "") for script in SCRIPT.findall(text)]
    assert [str(place) for place, _ in places if not place.exists()] == []
    assert [(str(place), part) for place, part in places if part and part not in headings(place)] == []


def headings(page: Path) -> set[str]:
    """The names by which the headings of a page are linked."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines if line.startswith("#")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_is_one(page: Path) -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(COMMAND.findall(page.read_text(encoding="utf-8"))) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_that_a_page_names_is_a_key(page: Path) -> None:
    named = {FREE.sub(r"\1", key) for key in KEY.findall(page.read_text(encoding="utf-8"))} - NOT_OURS
    each = {key: re.sub(r"^(reward|mix)\.(?![N\d])", r"\1.N.", key) for key in named if not FILE.fullmatch(key)}
    assert [key for key, full in each.items() if field_at(full) is None] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [page for page in (ROOT / "docs").rglob("*.md") if page != index and page.resolve() not in linked] == []
