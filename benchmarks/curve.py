"""Draw docs/figures/quickstart.svg from docs/evidence/quickstart.json: reward per update, and held-out accuracy with intervals."""

from __future__ import annotations

import json
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from evidence import ROOT

COLOURS = ("#1b6ca8", "#2a9d8f", "#7b5ea7")
GREY = "#888888"


def draw_rewards(axes: Axes, rewards: dict[str, list[float]]) -> None:
    """Mean reward per update, one line per seed, the control in grey."""
    for name, values in rewards.items():
        control = name == "control"
        colour = GREY if control else COLOURS[int(name.removeprefix("seed-")) % len(COLOURS)]
        axes.plot(range(1, len(values) + 1), values, color=colour, lw=1.6, ls=":" if control else "-", label=name.replace("-", " "))
    axes.set(xlabel="update", ylabel="mean reward, 128 samples", ylim=(0, 1), title="training reward")
    axes.legend(frameon=False, fontsize=8)


def draw_accuracy(axes: Axes, figures: dict[str, Any]) -> None:
    """Held-out accuracy before and after, pooled over the seeds, with 95 % intervals."""
    for offset, (kind, colour) in enumerate((("greedy", COLOURS[0]), ("sampled", COLOURS[1]))):
        shares = [figures["before"][kind], figures["after"][kind]]
        values = [share["value"] for share in shares]
        errors = [[s["value"] - s["low"] for s in shares], [s["high"] - s["value"] for s in shares]]
        places = [0.06 * offset, 1 + 0.06 * offset]
        axes.errorbar(places, values, yerr=errors, color=colour, marker="o", capsize=4, lw=1.6, label=kind)
    axes.set(xticks=[0.03, 1.03], xticklabels=["before", "after"], ylim=(0, 1), xlim=(-0.3, 1.4), title="held-out accuracy, three seeds")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def main() -> None:
    """Write the figure."""
    figures = json.loads((ROOT / "docs" / "evidence" / "quickstart.json").read_text())["figures"]
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "paceline"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), width_ratios=(2, 1), layout="constrained")
    draw_rewards(left, figures["rewards"])
    draw_accuracy(right, figures)
    path = ROOT / "docs" / "figures" / "quickstart.svg"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    print(path)


if __name__ == "__main__":
    main()
