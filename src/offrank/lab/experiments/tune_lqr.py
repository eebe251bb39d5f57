"""Choose ARS's and OP-ARS's settings for LQR: the paper gives none.

    python -m offrank.lab.experiments.tune_lqr results/tuning/lqr.jsonl

Writes one line per combination: the median over the tuning seeds (1000 to 1009, which no study uses) of the relative
suboptimality after 100k, 200k and 500k steps, and how many of the ten controllers stabilise the system at the end.
ARS's settings are chosen first, with on-policy ranking, and OP-ARS takes them over, as in the paper; then n_b and h.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.arrays import Metrics
from offrank.engines import Engine, make_engine
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.lqr import best_cost
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.recipe import resolve
from offrank.runs.run import Run

SEEDS = range(1000, 1010)
MARKS = (100_000, 200_000, 500_000)
SIZES = ((8, 4), (4, 2), (16, 4))


class Suboptimality:
    """A callback that records the suboptimality of a run at each mark."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def __call__(self, run: Run, record: Metrics) -> None:
        if record["kind"] == "iteration":
            for mark in MARKS:
                if record["steps"] <= mark:
                    self.at[mark] = record["cost"] / best_cost() - 1


def trial(engine: Engine, grid: list[tuple[str, dict[str, Any]]], out: Path) -> dict[str, Any]:
    """Run every combination with every seed, side by side; returns the best one by its median at the last mark."""
    observers: dict[tuple[int, int], Suboptimality] = {}
    runs = []
    for number, (algo, settings) in enumerate(grid):
        for seed in SEEDS:
            recipe = resolve("LQR", algo, None, settings)
            config = configure("LQR", recipe, engine.space, seed=seed, eval_every=0, steps=MARKS[-1])
            observers[number, seed] = Suboptimality()
            runs.append(Run(config, engine.space, None, (observers[number, seed],)))
    drive(runs, engine, side_by_side=200)
    lines = []
    for number, (algo, settings) in enumerate(grid):
        values = {m: [observers[number, seed].at.get(m, inf) for seed in SEEDS] for m in MARKS}
        medians = {str(m): round(float(np.percentile(v, 50, method="inverted_cdf")), 4) for m, v in values.items()}
        stable = sum(np.isfinite(values[MARKS[-1]]))
        lines.append({"algo": algo, **settings, "median": medians, "stable": int(stable)})
    with out.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return min(lines, key=lambda line: line["median"][str(MARKS[-1])])


def tune(args: argparse.Namespace) -> None:
    out: Path = args.out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    engine = make_engine("LQR")
    steps_and_noise = list(product((0.005, 0.01, 0.02, 0.04), (0.005, 0.01, 0.02, 0.04)))
    settings = [
        {"n_directions": N, "n_top": b, "step_size": alpha, "noise_std": nu}
        for (N, b), (alpha, nu) in product(SIZES, steps_and_noise)
    ]
    best = trial(engine, [("ars", s) for s in settings], out)
    print(best)
    chosen = {name: best[name] for name in ("n_directions", "n_top", "step_size", "noise_std")}
    kernels = [{"n_behaviour": n_b, "bandwidth": h} for n_b, h in product((1, 2), (0.1, 0.25, 0.5, 1.0, 4.0))]
    print(trial(engine, [("op-ars", chosen | k) for k in kernels], out))


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("tune_lqr", __doc__)
    parser.add_argument("out", type=Path, metavar="FILE", help="of the results; replaced if it exists")
    return run_script(parser, tune, argv)


if __name__ == "__main__":
    sys.exit(main())
