"""How many directions, how far, and how long an episode: a grid of ARS's settings on one task, all runs side by side.

    python studies/tune_ars.py Walker2d-v3 --directions 5 10 20 --step-size 0.02 0.04 --noise-std 0.0125 0.025 0.05 \\
        --horizon 0 250+1 --seeds 4 --steps 5M --engine warp --worlds 3400 --minutes 20 --out runs/ars-Walker2d-v3.json
    python studies/tune_ars.py Ant-v3 --directions 60/20 --horizon 125+1 250 --momentum 0 0.7 --steps 5M --engine warp
    python studies/tune_ars.py Walker2d-v3 --show runs/ars-Walker2d-v3.json

Seeds for tuning (1000, 1001, ...) are apart from those anything is reported on. Directions are N/b: N are run and the
best b used; of a single number all are used, and they are random. `--ranker` puts another ranker in place of both. A
horizon H+g is of training episodes of H steps, g more each iteration (`train_horizon`, `horizon_growth`); 0 is the
whole episode (or, with the critic, a length that the run finds), and - what the preset has. The score of a run is
that of `studies/tune_tres.py`, the area under its learning curve, 1 from the first crossing of the threshold on. Runs
that are not done when the minutes are over count as if their last return stayed.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tune_tres import FIRST_SEED, SETTINGS, drive_for, score

from offrank.cli.options import count, setting
from offrank.core.errors import Interrupted
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.engines import Gpu, make_engine
from offrank.runs.config import configure, resolve, task_default
from offrank.runs.run import Run


def length(text: str) -> dict[str, float]:
    """Settings of `H+g`."""
    if text == "-":
        return {}
    steps, _, growth = text.partition("+")
    return {"train_horizon": int(steps), "horizon_growth": float(growth or 0)}


def directions(text: str) -> dict[str, int]:
    """Settings of `N/b`, or of `b`."""
    sampled, _, used = text.partition("/")
    return {"n_directions": int(sampled), "n_top": int(used or sampled)}


def grid(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {
            **chosen,
            "step_size": alpha,
            "noise_std": nu,
            **horizon,
            **({"momentum": mu} if mu is not None else {}),
            **dict(args.set),
        }
        for chosen, alpha, nu, horizon, mu in product(
            args.directions, args.step_size, args.noise_std, args.horizon, args.momentum
        )
    ]


def train(args: argparse.Namespace) -> dict[str, Any]:
    engine = make_engine(args.task, args.engine, gpu=Gpu(args.worlds) if args.engine == "warp" else None)
    limits = {"steps": args.steps, "threshold": task_default(args.task, "threshold"), **SETTINGS}
    runs: list[tuple[dict[str, Any], Run]] = []
    for given in grid(args):
        usual = "random" if given["n_directions"] == given["n_top"] else "on-policy"
        recipe = resolve(args.task, "ars", args.ranker or usual, given)
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
            config = configure(args.task, recipe, engine.info, seed=seed, engine=engine.name, **limits)
            runs.append((given, Run(config, engine.info)))
    try:
        drive_for([run for _, run in runs], engine, args.minutes)
    except Interrupted:
        print("interrupted: runs count as they stand", file=sys.stderr)
    rows = [
        {
            "settings": given,
            "seed": run.config.seed,
            "score": round(score(run), 4),
            "stands_at": run.state.steps,
            "reached": run.reached.steps if run.reached else None,
            "evaluations": [[e.steps, round(e.mean, 1)] for e in run.evaluations],
        }
        for given, run in runs
    ]
    about = {"task": args.task, "steps": args.steps, "engine": engine.name, "ranker": args.ranker}
    return {**about, "rows": rows, "versions": versions()}


def error(scores: list[float]) -> float:
    """Standard error of the mean, nan of a single score."""
    return float(np.std(scores, ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else math.nan


def show(found: dict[str, Any], best: int) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault(repr(row["settings"]), []).append(row)
    order = sorted(groups.values(), key=lambda rows: -np.mean([row["score"] for row in rows]))
    print("| N/b | step | noise | horizon | momentum | score | best | reached | first at (k) | stands at (k) |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for rows in order[:best]:
        s = rows[0]["settings"]
        horizon = f"{s['train_horizon']}+{s['horizon_growth']:g}" if "train_horizon" in s else "-"
        best_return = np.median([max((mean for _, mean in row["evaluations"]), default=0.0) for row in rows])
        reached = sorted(row["reached"] for row in rows if row["reached"])
        scores, stands = [row["score"] for row in rows], [row["stands_at"] / 1e3 for row in rows]
        print(
            f"| {s['n_directions']}/{s['n_top']} | {s['step_size']:g} | {s['noise_std']:g} | {horizon} "
            f"| {s.get('momentum', '-')} | {np.mean(scores):.3f} ± {error(scores):.3f} "
            f"| {best_return:.0f} | {len(reached)} of {len(rows)} "
            f"| {', '.join(f'{steps / 1e3:.0f}' for steps in reached)} "
            f"| {min(stands):.0f} to {max(stands):.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--ranker", help="default: on-policy, or random where all directions are used")
    parser.add_argument("--directions", type=directions, nargs="+", default=[directions("8")], metavar="N/b")
    parser.add_argument("--step-size", type=float, nargs="+", default=[0.01, 0.02])
    parser.add_argument("--noise-std", type=float, nargs="+", default=[0.025])
    parser.add_argument("--horizon", type=length, nargs="+", default=[{}], metavar="H+g", help="0: whole episodes")
    parser.add_argument("--momentum", type=float, nargs="+", default=[None])
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="for all runs")
    parser.add_argument("--seeds", type=int, default=4, help="tuning seeds a setting")
    parser.add_argument("--steps", type=count, default=1_000_000, help="budget of a run")
    parser.add_argument("--engine", default="auto", help="warp for a GPU")
    parser.add_argument("--worlds", type=int, default=Gpu.worlds, help="of the warp engine")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--show", type=Path, metavar="FILE", help="run nothing: the table of these results")
    parser.add_argument("--best", type=int, default=20, help="settings in the table")
    args = parser.parse_args()
    if args.show:
        show(read_json(args.show), args.best)
        return
    found = train(args)
    if args.out:
        write_json(args.out, found)
    show(found, args.best)


if __name__ == "__main__":
    main()
