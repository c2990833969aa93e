"""Draw docs/figures/NAME.svg from docs/evidence/NAME.json, for every NAME that has evidence: quickstart, schedules, learning."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evidence import ROOT

COLOURS = ("#1b6ca8", "#2a9d8f", "#7b5ea7", "#c8553d", "#b8860b", "#3f4b59", "#8aa29e")
GREY = "#888888"
SMOOTH = 5
"""Updates of the moving mean in the learning curves."""


# --- quickstart: reward per update, and held-out accuracy with intervals


def quickstart(figures: Mapping[str, Any]) -> Figure:
    """The main job learns."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), width_ratios=(2, 1), layout="constrained")
    draw_rewards(left, figures["rewards"])
    draw_accuracy(right, figures)
    return figure


def draw_rewards(axes: Axes, rewards: Mapping[str, list[float]]) -> None:
    """Mean reward per update, one line per seed, the control in grey."""
    for name, values in rewards.items():
        control = name == "control"
        colour = GREY if control else COLOURS[int(name.removeprefix("seed-")) % len(COLOURS)]
        axes.plot(range(1, len(values) + 1), values, color=colour, lw=1.6, ls=":" if control else "-", label=name.replace("-", " "))
    axes.set(xlabel="update", ylabel="mean reward, 128 samples", ylim=(0, 1), title="training reward")
    axes.legend(frameon=False, fontsize=8)


def draw_accuracy(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Held-out accuracy before and after, pooled over the seeds, with 95 % intervals."""
    for offset, (kind, colour) in enumerate((("greedy", COLOURS[0]), ("sampled", COLOURS[1]))):
        shares = [figures["before"][kind], figures["after"][kind]]
        values = [share["value"] for share in shares]
        errors = [[s["value"] - s["low"] for s in shares], [s["high"] - s["value"] for s in shares]]
        places = [0.06 * offset, 1 + 0.06 * offset]
        axes.errorbar(places, values, yerr=errors, color=colour, marker="o", capsize=4, lw=1.6, label=kind)
    axes.set(xticks=[0.03, 1.03], xticklabels=["before", "after"], ylim=(0, 1), xlim=(-0.3, 1.4), title="held-out accuracy, three seeds")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


# --- schedules: the window of a round to the serial one


def schedules(figures: Mapping[str, Any]) -> Figure:
    """Window to the serial window, at each balance, with the best that arithmetic allows."""
    balances = figures["balances"]
    figure, places = plt.subplots(1, len(balances), figsize=(9.6, 3.4), sharex=True, layout="constrained")
    for axes, (balance, found) in zip(places, balances.items(), strict=True):
        draw_windows(axes, found)
        axes.set_title(f"rollout : training {balance} (here {found['rollout_to_training']:.2f})", fontsize=8.5)
    label = "rollout-to-train-end over serial, one core each (median, quartiles, rounds); dashed: best possible"
    figure.supxlabel(label, fontsize=8.5)
    return figure


def draw_windows(axes: Axes, found: Mapping[str, Any]) -> None:
    """One bar per schedule; the dashed line is the best possible."""
    told = {name: one for name, one in found["schedules"].items() if name != "serial"}
    for place, (name, one) in enumerate(told.items()):
        ratio = one["to_serial"]
        error = [[ratio["median"] - ratio["low"]], [ratio["high"] - ratio["median"]]]
        axes.barh(place, ratio["median"], xerr=error, color=_colour(name), height=0.66, error_kw={"lw": 1})
        axes.plot(ratio["values"], [place] * len(ratio["values"]), ".", color="black", ms=2.5)
        axes.text(0.02, place, f"{ratio['median'] - 1:+.0%}", va="center", color="white", fontsize=7.5)
    axes.axvline(1 + found["best_possible_change"], color="black", ls="--", lw=1)
    axes.axvline(1, color=GREY, lw=0.8)
    axes.set(yticks=range(len(told)), yticklabels=list(told), xlim=(0, 1.4))
    axes.tick_params(axis="y", labelsize=7.5)
    axes.invert_yaxis()


def _colour(name: str) -> str:
    kinds = {"fifo": 0, "auto": 3, "serial, both cores": 5}
    return COLOURS[kinds.get(name, 1 if name.endswith("sample") else 2)]


# --- learning: reward per update under every schedule


def learning(figures: Mapping[str, Any]) -> Figure:
    """Mean and range over the seeds of the smoothed reward, families side by side, serial in each."""
    found = figures["schedules"]
    families = [[name for name in found if name.startswith(kind)] for kind in ("pipelined", "streaming", "multiversion")]
    shown = [names for names in families if names]
    figure, places = plt.subplots(1, len(shown), figsize=(9.6, 3.2), sharey=True, squeeze=False, layout="constrained")
    for axes, names in zip(places[0], shown, strict=True):
        draw_band(axes, "serial", found["serial"]["rewards"], GREY)
        for name, colour in zip(names, COLOURS, strict=False):
            draw_band(axes, name, found[name]["rewards"], colour)
        axes.set(xlabel="update", ylim=(0, 1))
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    seeds = len(found["serial"]["rewards"])
    places[0][0].set_ylabel(f"mean reward ({figures['samples_per_update']} samples,\nmoving mean of {SMOOTH}, {seeds} seeds)")
    return figure


def draw_band(axes: Axes, name: str, runs: Sequence[Sequence[float]], colour: str) -> None:
    """Mean over the runs, and the range between the lowest and the highest."""
    each = list(zip(*(smoothed(run) for run in runs), strict=True))
    updates = range(1, len(each) + 1)
    axes.fill_between(updates, [min(values) for values in each], [max(values) for values in each], color=colour, alpha=0.18, lw=0)
    axes.plot(updates, [statistics.fmean(values) for values in each], color=colour, lw=1.6, label=name)


def smoothed(values: Sequence[float]) -> list[float]:
    """Mean over the last SMOOTH updates, fewer at the start."""
    return [statistics.fmean(values[max(0, end - SMOOTH) : end]) for end in range(1, len(values) + 1)]


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], Figure]] = {"quickstart": quickstart, "schedules": schedules, "learning": learning}


def main() -> None:
    """Write every figure whose evidence is there; say which is not."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "paceline"})
    for name, draw in FIGURES.items():
        evidence = ROOT / "docs" / "evidence" / f"{name}.json"
        if not evidence.is_file():
            print(f"{name}: no evidence yet, make evidence-{name} writes it")
            continue
        path = ROOT / "docs" / "figures" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        draw(json.loads(evidence.read_text())["figures"]).savefig(path, metadata={"Date": None})
        print(path)


if __name__ == "__main__":
    main()
