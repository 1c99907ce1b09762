"""Draws the pictures of docs/benchmarks.md. The same figures make the same files."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {
    "svg.hashsalt": "bench",  # Otherwise names inside a file are random.
    "svg.fonttype": "none",  # Text stays text.
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
}
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

OURS, THEIRS = "#1f6fb4", "#b0b0b0"
COLOURS = ["#1f6fb4", "#2a9d8f", "#e08e45", "#8a5fb0", "#c44e52", "#555555"]

# The cases drawn for each language: admissions, from one thread, without a key.
GROUPS = {"rust": "Rust", "c": "C", "python": "Python", "node": "Node"}
X = {"limit": "units", "keys": "keys", "window": "window", "processes": "processes", "names": "limits"}


def time_label(ns: float, _=None) -> str:
    for size, unit in [(86_400e9, "d"), (3_600e9, "h"), (60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]:
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"


def size_label(bytes_: float, _=None) -> str:
    for size, unit in [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]:
        if bytes_ >= size:
            return f"{bytes_ / size:g} {unit}"
    return f"{bytes_:g} B"


def save(figure, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def draw(results: dict, folder: Path, curves: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cases = results["cases"]
    draw_admissions(cases, folder / "admissions.svg")
    for curve in curves:
        if points := [case for case in cases if case.get("curve") == curve]:
            draw_curve(points, curve, folder / f"{curve}.svg")


def draw_admissions(cases: list[dict], path: Path) -> None:
    def is_drawn(case):
        is_plain = case["case"].endswith("admit") or "admit, monotonic" in case["case"] or "admit, TSC" in case["case"]
        return case["group"] in GROUPS and is_plain and "threads" not in case["case"] and case.get("ns") is not None

    chosen = {group: [case for case in cases if case["group"] == group and is_drawn(case)] for group in GROUPS}
    chosen = {group: found for group, found in chosen.items() if found}
    if not chosen:
        return
    heights = [len(found) + 1 for found in chosen.values()]
    size = (7.5, 0.24 * sum(heights))
    figure, axes = pyplot.subplots(len(chosen), 1, figsize=size, sharex=True, height_ratios=heights, squeeze=False)
    for axis, (group, found) in zip(axes[:, 0], chosen.items()):
        found = sorted(found, key=lambda case: -case["ns"])
        names = [case["case"] for case in found]
        colours = [OURS if case["peer"] == "workglow-limit" else THEIRS for case in found]
        axis.barh(names, [case["ns"] for case in found], color=colours)
        for at, case in enumerate(found):
            if case.get("p999"):
                axis.plot([case["p999"]], [at], marker="|", markersize=8, color="#333333")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(time_label))
        axis.minorticks_off()
        axis.grid(axis="y", visible=False)
        axis.set_title(GROUPS[group], loc="left", fontsize=9, fontweight="bold")
    axes[-1, 0].set_xlabel("time of an admission; | is the 99.9th percentile")
    figure.tight_layout()
    save(figure, path)


def draw_curve(points: list[dict], curve: str, path: Path) -> None:
    each = "bytes_each" if any("bytes_each" in point for point in points) else "bytes"
    panels = ["ns"] + ([each] if any(each in point for point in points) else [])
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels) + 1, 3.2), squeeze=False)
    series = list(dict.fromkeys(point["series"] for point in points))
    for axis, what in zip(axes[0], panels):
        for name, colour in zip(series, COLOURS):
            line = sorted((point["x"], point[what]) for point in points if point["series"] == name and point.get(what))
            if line:
                axis.plot(*zip(*line), marker="o", markersize=3, color=colour, label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(FuncFormatter(time_label if what == "ns" else size_label))
        places = sorted({point["x"] for point in points})
        axis.set_xticks(places, [time_label(x * 1e3) if curve == "window" else f"{x:,}" for x in places], fontsize=7)
        axis.minorticks_off()
        axis.set_xlabel(X[curve])
        low, high = axis.get_ylim()
        axis.set_ylim(low if low < high / 20 else high / 20, high * 1.5)  # A flat line has to look flat.
    of = {"limit": "a key takes", "keys": "a key takes", "names": "a limit takes", "processes": "the store takes"}
    axes[0, 0].set_title("a decision", loc="left", fontsize=9)
    if len(panels) > 1:
        axes[0, 1].set_title(of.get(curve, "bytes"), loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    save(figure, path)
