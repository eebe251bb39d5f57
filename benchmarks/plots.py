"""Draw how cost grows, from the raw times of `offrank bench iteration --out benchmarks/iteration.json`.

python benchmarks/plots.py [benchmarks/iteration.json] [--out benchmarks]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from offrank.display.plots import COLOURS

MARKS = "os^Dvx"


def draw(rows: dict[str, list[tuple[float, float]]], xlabel: str, ylabel: str, title: str, out: Path, log: str) -> None:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()
    for number, (name, points) in enumerate(rows.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker=MARKS[number % len(MARKS)], ms=4, color=COLOURS[number % len(COLOURS)], label=name)
    axes.set_xscale("log" if "x" in log else "linear", **({"base": 2} if "x" in log else {}))
    axes.set_yscale("log" if "y" in log else "linear")
    if "y" not in log:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(out, dpi=150)
    print(out)


def grouped(rows: list[dict[str, Any]], x: str, y: str, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(row["task"], []).append((row[x], scale * median(row[y])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", default=Path("benchmarks/iteration.json"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    args = parser.parse_args()
    data = json.loads(args.path.read_text())
    machine = f"{data['cpu']}, {data['cores']} cores"
    candidates = grouped(data["growth"], "candidates", "steps_a_second", 1e-3)
    title = f"Rollouts ({machine})"
    draw(candidates, "candidates at once", "thousand steps a second", title, args.out / "candidates.png", "xy")
    scores = grouped(data["scores"], "directions", "seconds", 1e3)
    title = f"Kernel scores on {data['scores'][0]['states']} states ({machine})"
    draw(scores, "directions N", "milliseconds", title, args.out / "scores.png", "xy")
    memory = {task: [(i, mb) for i, mb in points] for task, points in data["memory"].items()}
    draw(memory, "iteration of OP-ARS", "peak megabytes of the process", "Memory", args.out / "memory.png", "")


if __name__ == "__main__":
    main()
