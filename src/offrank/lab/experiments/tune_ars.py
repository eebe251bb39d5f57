"""Grid search over ARS's settings on one task: directions, step size, noise, episode length, momentum.

    python -m offrank.lab.experiments.tune_ars Walker2d-v3 --directions 5 10 20 --step-size 0.02 0.04 \\
        --noise-std 0.0125 0.025 0.05 --horizon 0 250+1 --seeds 4 --steps 5M --engine warp --worlds 3400 \\
        --minutes 20 --out runs/ars-Walker2d-v3.json
    python -m offrank.lab.experiments.tune_ars Ant-v3 --directions 60/20 --horizon 125+1 250 --momentum 0 0.7 --steps 5M
    python -m offrank.lab.experiments.tune_ars Walker2d-v3 --show runs/ars-Walker2d-v3.json

All runs go side by side. Tuning seeds (1000, 1001, ...) are different from those that results are reported on.
Directions are N/b: N are run and the best b are used; with a single number all are used, and they are random.
`--ranker` replaces the ranker of both cases. A horizon H+g means training episodes of H steps, g more per iteration
(`train_horizon`, `horizon_growth`); 0 is the whole episode (or, with the critic, a length that the run finds itself),
and - is the preset's. The score of a run is the area under its learning curve (`tuning.score`), 1 from the first
crossing of the threshold on. Runs that are unfinished at the time limit are scored as if their last return stayed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from offrank.cli.options import count
from offrank.core.errors import Interrupted
from offrank.core.files import read_json, write_json
from offrank.core.version import versions
from offrank.lab.experiments.tuning import (
    FIRST_SEED,
    add_flags,
    drive_for,
    make_run,
    open_engine,
    score,
    standard_error,
)
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.tables import Table
from offrank.runs.recipe import resolve
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
    axes = (args.directions, args.step_size, args.noise_std, args.horizon, args.momentum)
    return [
        {
            **chosen,
            "step_size": alpha,
            "noise_std": nu,
            **horizon,
            **({} if mu is None else {"momentum": mu}),
            **dict(args.set),
        }
        for chosen, alpha, nu, horizon, mu in product(*axes)
    ]


def train(args: argparse.Namespace) -> dict[str, Any]:
    engine = open_engine(args)
    runs: list[tuple[dict[str, Any], Run]] = []
    for given in grid(args):
        usual = "random" if given["n_directions"] == given["n_top"] else "on-policy"
        recipe = resolve(args.task, "ars", args.ranker or usual, given)
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
            runs.append((given, make_run(args.task, recipe, engine, seed, args.steps)))
    try:
        drive_for([run for _, run in runs], engine, args.minutes)
    except Interrupted:
        print("interrupted: unfinished runs are scored as they are", file=sys.stderr)
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


def table(found: dict[str, Any], best: int) -> Table:
    """The best settings by mean score, from the results of `train`."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault(repr(row["settings"]), []).append(row)
    order = sorted(groups.values(), key=lambda rows: -np.mean([row["score"] for row in rows]))
    head = ["N/b", "step", "noise", "horizon", "momentum", "score", "best return", "reached", "at (k steps)", "run to"]
    return Table(head, [_cells(rows) for rows in order[:best]])


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    s = rows[0]["settings"]
    best_return = np.median([max((mean for _, mean in row["evaluations"]), default=0.0) for row in rows])
    reached = sorted(row["reached"] for row in rows if row["reached"])
    scores, steps = [row["score"] for row in rows], [row["stands_at"] / 1e3 for row in rows]
    return [
        f"{s['n_directions']}/{s['n_top']}",
        f"{s['step_size']:g}",
        f"{s['noise_std']:g}",
        f"{s['train_horizon']}+{s['horizon_growth']:g}" if "train_horizon" in s else "-",
        str(s.get("momentum", "-")),
        f"{np.mean(scores):.3f} ± {standard_error(scores):.3f}",
        f"{best_return:.0f}",
        f"{len(reached)} of {len(rows)}",
        ", ".join(f"{at / 1e3:.0f}" for at in reached),
        f"{min(steps):.0f} to {max(steps):.0f}",
    ]


def tune(args: argparse.Namespace) -> None:
    found = read_json(args.show) if args.show else train(args)
    if args.out and not args.show:
        write_json(args.out, found)
    print(table(found, args.best).markdown())


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("tune_ars", __doc__)
    add_flags(parser)
    parser.add_argument("--ranker", help="default: on-policy, or random where all directions are used")
    parser.add_argument("--directions", type=directions, nargs="+", default=[directions("8")], metavar="N/b")
    parser.add_argument("--step-size", type=float, nargs="+", default=[0.01, 0.02])
    parser.add_argument("--noise-std", type=float, nargs="+", default=[0.025])
    parser.add_argument("--horizon", type=length, nargs="+", default=[{}], metavar="H+g", help="0: whole episodes")
    parser.add_argument("--momentum", type=float, nargs="+", default=[None])
    parser.add_argument("--seeds", type=count, default=4, help="tuning seeds per setting")
    parser.add_argument("--steps", type=count, default=1_000_000, help="budget per run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--show", type=Path, metavar="FILE", help="run nothing: print the table of these results")
    parser.add_argument("--best", type=count, default=20, help="settings in the table")
    return run_script(parser, tune, argv)


if __name__ == "__main__":
    sys.exit(main())
