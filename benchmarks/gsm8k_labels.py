"""The 800 labelled GSM8K answers (200 problems, 4 models) against the `numeric` reward: how many are judged as their label says.

The documented setting is `kind = "numeric", marker = "A:"`: the number on the line after the last `A:`, no marker, no credit. The gold is
read in the same way from the row's own solution. Settings beside it show what the marker does.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from evidence import measured
from paceline.rewards import extract, verify

SETTINGS: dict[str, dict[str, Any]] = {
    "marker": {"marker": "A:"},
    "marker, first number": {"marker": "A:", "which": "first"},
    "no marker": {},
}


def judge(path: Path) -> dict[str, Any]:
    """Counts per setting: answers, agreeing with the label, and the rows of those that do not."""
    agree: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {name: [] for name in SETTINGS}
    answers = without_marker = 0
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        gold = extract(row["ground_truth"], kind="numeric", marker="A:")
        assert gold is not None, f"row {number} has no gold"
        for model, answer in row.items():
            if not isinstance(answer, dict):
                continue
            answers += 1
            without_marker += extract(answer["solution"], kind="numeric", marker="A:") is None
            for name, setting in SETTINGS.items():
                if verify(gold, answer["solution"], kind="numeric", **setting) == float(answer["is_correct"]):
                    agree[name] += 1
                else:
                    wrong[name].append(f"row {number}, {model}")
    return {"answers": answers, "without_marker": without_marker, "agree": dict(agree), "disagree": wrong}


def main() -> None:
    """Judge, print, write the evidence; exit 1 when the documented setting disagrees with a label."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[1].parent / "shared/data/gsm8k/model_solutions_sample.jsonl")
    arguments = parser.parse_args()
    with measured("gsm8k-labels") as figures:
        figures.update(judge(arguments.data))
        print(json.dumps(figures, indent=2))
    raise SystemExit(figures["agree"]["marker"] != figures["answers"])


if __name__ == "__main__":
    main()
