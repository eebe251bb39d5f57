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
from offrank.display.figures import Axis, Figure, Line, Panel, save
from offrank.lab.script import make_parser, run_script

Lines = dict[str, list[tuple[float, float]]]


def draw(lines: Lines, title: str, x: Axis, y: Axis, out: Path) -> None:
    items = [Line(name, [x for x, _ in points], [y for _, y in points], marked=True) for name, points in lines.items()]
    save(Figure(list(lines), [Panel(title, x, y, items)]), out)
    print(out)


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
    x, y = Axis("candidates at once", log=True), Axis("thousand steps per second", low=0)
    draw(candidates, f"Rollouts ({machine})", x, y, args.out / "candidates.png")
    scores = grouped(data["scores"], "directions", "seconds", 1e3)
    title = f"Kernel scores on {data['scores'][0]['states']} states ({machine})"
    draw(scores, title, Axis("directions N", log=True), Axis("milliseconds", log=True), args.out / "scores.png")
    memory = {task: [(i, mb) for i, mb in points] for task, points in data["memory"].items()}
    x, y = Axis("iteration of OP-ARS"), Axis("peak megabytes of the process", low=0)
    draw(memory, "Memory", x, y, args.out / "memory.png")


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("plots", __doc__)
    parser.add_argument("path", type=Path, nargs="?", default=Path("results/speed/iteration.json"), metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("results/speed"), metavar="DIR")
    return run_script(parser, plot, argv)


if __name__ == "__main__":
    sys.exit(main())
