"""The guide is made from the models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.config.checks import RULES
from paceline.config.keys import known
from paceline.config.reference import BEGIN, END, insert, render

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "configuration.md"


def test_the_guide_is_up_to_date_with_the_models() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert text == insert(text), "run python -m paceline.config.reference docs/guides/configuration.md"


def test_the_reference_names_every_key_and_every_rule() -> None:
    reference = render()
    assert [key for key in known() if f"`{key.rpartition('.')[2]}`" not in reference and "." in key] == []
    assert [rule.name for rules in RULES.values() for rule in rules if f"`{rule.name}`" not in reference] == []


def test_limits_and_alternatives_are_shown() -> None:
    reference = render()
    assert "| `frontier` | integer >= 1 \\| `auto` \\| unset | `unset` |" in reference
    assert "| `betas` | list of 2: number >= 0 < 1 | `[0.9, 0.95]` |" in reference
    assert "| `top_p` | number > 0 <= 1 | `1.0` |" in reference


def test_a_guide_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="each marker once"):
        insert(f"text {BEGIN}")


def test_the_module_writes_the_guide(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    subprocess.run([sys.executable, "-m", "paceline.config.reference", str(guide)], check=True, timeout=60)
    assert guide.read_text() == f"before\n{BEGIN}\n\n{render()}\n{END}\nafter\n"
