"""Gather finished runs into one small file, and print what they came to.

    python studies/collect.py runs/core --out results/core.json     run folders to per-seed outcomes
    python studies/collect.py results/core.json                     the table again, from the file

Medians are censored (Kaplan-Meier: a seed that never got there counts as longer than its budget), with the paper's own
reading, the median of the successes, beside them.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from offrank.checkpoint import read_json
from offrank.plotting import Curve, run_folders
from offrank.studies.statistics import censored_median, median_of_successes


def gather(folder: Path) -> dict[str, Any]:
    """What a finished run came to: its result and its scheduled evaluations."""
    keys = ("iteration", "steps", "return_mean", "return_std")
    evaluations = [r for r in Curve.read(folder).evaluations() if not r.get("final")]
    rows = [[round(r[k], 2) for k in keys] for r in evaluations]
    config = {name: read_json(folder / "config.json")[name] for name in ("engine", "hyperparameters")}
    return read_json(folder / "result.json") | config | {"evaluations": rows}


def thousands(steps: float | None, budget: int) -> str:
    return f"> {budget / 1000:,.0f}" if steps is None else f"{steps / 1000:,.0f}"


def table(runs: list[dict[str, Any]]) -> str:
    def key(run: dict[str, Any]) -> tuple[str, ...]:
        h = run["hyperparameters"]
        return (
            run["task"],
            run["algo"],
            run["ranker"],
            f"{h['n_directions']}/{h['n_top']}",
            run["engine"],
            json.dumps(h),
        )

    lines = [
        "| task | algorithm | ranker | N/b | thousands of steps to the threshold, a seed "
        "| censored median | median of successes | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, algo, ranker, size, _, _), group in groupby(sorted(runs, key=lambda r: (*key(r), r["seed"])), key):
        members = list(group)
        reached = [r["steps_to_threshold"] for r in members]
        budget = max(r["budget"] or r["steps"] for r in members)
        seeds = ", ".join(thousands(steps, budget) for steps in reached)
        middle = thousands(censored_median(reached, [r["steps"] for r in members]), budget)
        paper = median_of_successes(reached)
        successes = "-" if paper is None else f"{paper / 1000:,.0f}"
        count = sum(r is not None for r in reached)
        lines.append(
            f"| {task} | {algo} | {ranker} | {size} | {seeds} | {middle} | {successes} | {count} of {len(members)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if all(path.suffix == ".json" for path in args.paths):
        runs = [run for path in args.paths for run in json.loads(path.read_text())]
    else:
        runs = [gather(f) for f in run_folders(args.paths) if (f / "result.json").is_file()]
    if args.out:
        lines = ",\n".join(json.dumps(run) for run in runs)
        args.out.write_text(f"[\n{lines}\n]\n")
    print(table(runs))


if __name__ == "__main__":
    main()
