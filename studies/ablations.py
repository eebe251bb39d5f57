"""What each option of ranking is worth: every one against the algorithm without it, all runs of a task side by side.

    python studies/ablations.py HalfCheetah-v3 --seeds 0-19 --steps 2M --engine warp --worlds 2400 --out runs/ablations
    python studies/ablations.py HalfCheetah-v3 --show results/rankers/ablations-HalfCheetah-v3.json

Runs go on past the threshold, to the same number of steps. Interrupted, it writes what there is; run again, it goes on
from where it was. The table has the return at the last evaluation within so many steps (`--at`, by default the budget;
median over seeds, 95 % bootstrap interval), and the share of seeds of which some evaluation by then was at the
threshold. A figure is drawn beside the table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import bootstrap

from offrank.cli.options import count, seeds
from offrank.core.errors import Interrupted
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.display.progress import drive_shown
from offrank.engines import Gpu, make_engine
from offrank.lab.studies.figures import save_figure
from offrank.runs.config import configure, resolve, task_default
from offrank.runs.opening import folder_name, open_run

MANY = 1024
# name: algorithm, ranker, settings. All with the task's b; the first of a block is what the others are compared with.
BLOCKS: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    "b random directions": {
        "random": ("ars", "random", {}),
        "random, orthogonal": ("ars", "random", {"orthogonal": True}),
        "random, common starts": ("ars", "random", {"common_starts": True}),
    },
    "the kernel": {
        "kernel": ("ars", "kernel", {}),
        "kernel, orthogonal": ("ars", "kernel", {"orthogonal": True}),
        "kernel, common starts": ("ars", "kernel", {"common_starts": True}),
        "kernel, relative bandwidth": ("ars", "kernel", {"relative_bandwidth": True, "bandwidth": 1.0}),
        f"kernel, N = {MANY}": ("ars", "kernel", {"n_directions": MANY}),
        "reuse (n_b = 0)": ("ars", "reuse", {}),
        f"reuse, N = {MANY}": ("ars", "reuse", {"n_directions": MANY}),
        "smallest change": ("ars", "smallest-change", {}),
    },
    "memory": {
        "memory, N = 256": ("ars", "memory", {"n_directions": 256}),
        f"memory, N = {MANY}": ("ars", "memory", {"n_directions": MANY}),
    },
}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Run what is missing; the evaluations of every run."""
    engine = make_engine(args.task, args.engine, gpu=Gpu(args.worlds) if args.engine == "warp" else None)
    runs = {}
    for name, (algo, ranker, settings) in ((n, v) for block in BLOCKS.values() for n, v in block.items()):
        usual = {"n_top": resolve(args.task, "ars").strategy.n_top}
        if ranker == "random":
            usual["n_directions"] = usual["n_top"]
        recipe = resolve(args.task, algo, ranker, usual | settings)
        for seed in args.seeds:
            config = configure(
                args.task, recipe, engine.info, seed=seed, engine=engine.name, steps=args.steps, threshold=None
            )
            label = "".join(c if c.isalnum() else "-" for c in name)
            folder = args.out / folder_name(args.task, label, seed)
            runs[name, seed] = open_run(config, engine.info, folder, resume=True)
    try:
        drive_shown(list(runs.values()), engine, sys.stderr)
    except Interrupted as error:
        print(f"{error}: written as far as it has come", file=sys.stderr)
    rows = []
    for (name, seed), run in runs.items():
        evaluations = [*run.evaluations, *([run.final] if run.final else [])]
        rows.append({"variant": name, "seed": seed, "evaluations": [[e.steps, round(e.mean, 1)] for e in evaluations]})
    return {"task": args.task, "steps": args.steps, "engine": engine.name, "rows": rows, "versions": versions()}


def show(found: dict[str, Any], stem: Path, at: int) -> None:
    """The table after so many steps, and the figure beside it."""
    threshold = task_default(found["task"], "threshold")
    far = [max((steps for steps, _ in row["evaluations"]), default=0) for row in found["rows"]]
    near = [min((steps for steps, _ in row["evaluations"]), default=at + 1) for row in found["rows"]]
    if any(steps < 0.9 * at for steps in far) or max(near) > at:
        raise SystemExit(f"--at {at}: runs have been evaluated from {max(near)} to {min(far)} steps")
    figure, axes = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    print("| variant | seeds | median return (95%) | at the threshold |\n|---|---|---|---|")
    place, ticks = 0, []
    for block in BLOCKS.values():
        for name in block:
            rows = [row["evaluations"] for row in found["rows"] if row["variant"] == name]
            curves = [[(steps, mean) for steps, mean in row if steps <= at] for row in rows]
            if not curves:
                continue
            last = np.array([curve[-1][1] for curve in curves])
            solved = np.mean([max(mean for _, mean in curve) >= threshold for curve in curves])
            spread = bootstrap((last,), np.median, rng=0).confidence_interval if len(last) > 1 else None
            low, high = (spread.low, spread.high) if spread else (last[0], last[0])
            print(f"| {name} | {len(last)} | {np.median(last):,.0f} ({low:,.0f} to {high:,.0f}) | {solved:.0%} |")
            axes.scatter(last, np.full(len(last), place), s=9, color="0.25", zorder=2)
            axes.plot([low, high], [place, place], color="#56b4e9", lw=5, zorder=1)
            axes.plot(np.median(last), place, "o", color="#d55e00", zorder=3)
            ticks.append((place, name))
            place -= 1
        place -= 1
    axes.axvline(threshold, color="0.3", ls="--", lw=1)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_xlabel(f"return after {at / 1e6:g}M steps: every seed, median and 95 % interval")
    axes.set_title(found["task"], loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    print(*save_figure(figure, stem), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--seeds", type=seeds, default=tuple(range(20)))
    parser.add_argument("--steps", type=count, default=2_000_000)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--worlds", type=int, default=2400, help="of the warp engine")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"), help="folder of the runs and the results")
    parser.add_argument("--show", type=Path, metavar="FILE", help="run nothing: the table and figure of these results")
    parser.add_argument("--at", type=count, help="steps after which runs are compared (default: the budget)")
    args = parser.parse_args()
    if args.show:
        found, path = read_json(args.show), args.show
    else:
        found, path = train(args), args.out / f"ablations-{args.task}.json"
        write_json(path, found)
    show(found, path.with_suffix(""), args.at or found["steps"])


if __name__ == "__main__":
    main()
