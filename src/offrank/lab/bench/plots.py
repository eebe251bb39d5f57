"""Draw how cost grows with candidates, directions and iterations, from the results of `offrank bench iteration`.

offrank bench iteration --out results/speed/iteration.json
python -m offrank.lab.bench.plots results/speed/iteration.json --out results/speed
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from offrank.core.files import read_json
from offrank.display.plots import COLOURS
from offrank.lab.figures import save_figure
from offrank.lab.script import make_parser, run_script

MARKS = "os^Dvx"
Lines = dict[str, list[tuple[float, float]]]


def draw(lines: Lines, xlabel: str, ylabel: str, title: str, out: Path, log: bool = True) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()
    for number, (name, points) in enumerate(lines.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker=MARKS[number % len(MARKS)], ms=4, color=COLOURS[number % len(COLOURS)], label=name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    print(save_figure(figure, out, dpi=150))


def grouped(rows: list[dict[str, Any]], x: str, y: str, scale: float) -> Lines:
    """Medians by task."""
    found: Lines = {}
    for row in rows:
        found.setdefault(row["task"], []).append((row[x], scale * median(row[y])))
    return found


def plot(args: argparse.Namespace) -> None:
    data = read_json(args.path)
    machine = f"{data['cpu']}, {data['cores']} cores"
    candidates = grouped(data["growth"], "candidates", "steps_a_second", 1e-3)
    title = f"Rollouts ({machine})"
    draw(candidates, "candidates at once", "thousand steps per second", title, args.out / "candidates.png")
    scores = grouped(data["scores"], "directions", "seconds", 1e3)
    title = f"Kernel scores on {data['scores'][0]['states']} states ({machine})"
    draw(scores, "directions N", "milliseconds", title, args.out / "scores.png")
    memory = {task: [(i, mb) for i, mb in points] for task, points in data["memory"].items()}
    label = "peak megabytes of the process"
    draw(memory, "iteration of OP-ARS", label, "Memory", args.out / "memory.png", log=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("plots", __doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("results/speed/iteration.json"), metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("results/speed"), metavar="DIR")
    return run_script(parser, plot, argv)


if __name__ == "__main__":
    sys.exit(main())
