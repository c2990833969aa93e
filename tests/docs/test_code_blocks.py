"""Every python block of the documentation runs; every toml block is a valid configuration."""

import re
import tomllib
from pathlib import Path

import pytest

from paceline.config.load import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASK = '[task]\nkind = "reasoning_gym"\nname = "chain_sum"\n'
"""Stands before a block that shows other sections only."""
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list:
    """One pytest parameter per block of a language, named page:line."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 1
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_of_the_documentation_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "documentation", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_toml_block_of_the_documentation_is_a_valid_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text if "task" in tomllib.loads(text) else TASK + text, encoding="utf-8")
    load(path, [])
