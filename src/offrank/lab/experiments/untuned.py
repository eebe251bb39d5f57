"""`guided` on tasks that nobody tuned it for, beside SAC of Stable-Baselines3, both with their defaults.

    python -m offrank.lab.experiments.untuned Pendulum-v1 guided --seeds 100-107 --steps 10k --out results/untuned.json
    python -m offrank.lab.experiments.untuned Pendulum-v1 sac --seeds 100-107 --steps 10k --out results/untuned.json
    python -m offrank.lab.experiments.untuned --out results/untuned.json            # prints the table of what is there

Both are evaluated at the same steps, five times in all, over 20 fresh episodes; the policy of SAC deterministically.
Runs that the file already has are left out, so that it can be filled in several goes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

import offrank
from offrank.cli.options import count, seeds
from offrank.core.errors import UsageError, require
from offrank.core.files import parse_json, write_atomically
from offrank.core.version import versions
from offrank.lab.experiments.deep import evaluate
from offrank.lab.script import make_parser, run_script
from offrank.lab.statistics import higher_table, probability_of_winning
from offrank.runs.folder import METRICS
from offrank.runs.metrics import read_metrics

EVALUATIONS, EPISODES = 5, 20


def run_guided(task: str, seed: int, steps: int) -> list[list[float]]:
    """Steps, mean and standard deviation of every evaluation."""
    with tempfile.TemporaryDirectory() as scratch:
        agent = offrank.Guided(task, seed=seed, workers=0)
        agent.learn(
            total_steps=steps, threshold=None, eval_steps=steps // EVALUATIONS, eval_episodes=EPISODES, out=scratch
        )
        records = read_metrics(Path(scratch) / METRICS)
    found = [r for r in records if r["kind"] == "evaluation" and not r.get("final")]
    return [[r["steps"], r["return_mean"], r["return_std"]] for r in found]


def run_sac(task: str, seed: int, steps: int) -> list[list[float]]:
    """Steps, mean and standard deviation of every evaluation."""
    require("torch", "torch").set_num_threads(1)
    model = require("stable_baselines3", "bench").SAC("MlpPolicy", gym.make(task), seed=seed, device="cpu")
    envs = [gym.make(task) for _ in range(EPISODES)]
    found: list[list[float]] = []
    for number in range(EVALUATIONS):
        model.learn(steps // EVALUATIONS, reset_num_timesteps=False, log_interval=None)
        found.append([model.num_timesteps, *evaluate(model, envs, seed, number)])
    return found


LEARNERS = {"guided": run_guided, "sac": run_sac}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: median returns at every evaluation, and how often a run of `guided` ends higher."""
    lines = ["| task | steps | `guided` | SAC | `guided` ends higher (95%) |", "|---|---|---|---|---|"]
    for task in dict.fromkeys(row["task"] for row in rows):
        found = {algo: [r["evaluations"] for r in rows if (r["task"], r["algo"]) == (task, algo)] for algo in LEARNERS}
        budget = next(row["budget"] for row in rows if row["task"] == task)
        steps = ", ".join(f"{budget * k / EVALUATIONS / 1000:g}k" for k in range(1, EVALUATIONS + 1))
        cells = [_medians(found[algo]) for algo in LEARNERS]
        last = [[run[-1][1] for run in found[algo]] for algo in LEARNERS]
        beyond = probability_of_winning(higher_table(*last)) if all(last) else None
        chance = "" if beyond is None else f"{beyond[0]:.2f} ({beyond[1].low:.2f}-{beyond[1].high:.2f})"
        lines.append(f"| {task} | {steps} | {' | '.join(cells)} | {chance} |")
    return lines


def _medians(runs: Sequence[Sequence[Sequence[float]]]) -> str:
    if not runs:
        return "not run"
    medians = ", ".join(f"{median(run[k][1] for run in runs):,.0f}" for k in range(EVALUATIONS))
    return f"{medians} ({len(runs)} seeds)"


def _compare(args: argparse.Namespace) -> None:
    if args.task is None:
        print("\n".join(table(parse_json(args.out))))
        return
    if None in (args.algo, args.seeds, args.steps):
        raise UsageError("give TASK, the algorithm, --seeds and --steps; or --out alone, for its table")
    for seed in args.seeds:
        rows: list[dict[str, Any]] = parse_json(args.out) if args.out.is_file() else []
        known = {"task": args.task, "algo": args.algo, "seed": seed, "budget": args.steps}
        if any(row.items() >= known.items() for row in rows):
            continue
        start = time.perf_counter()
        evaluations = LEARNERS[args.algo](args.task, seed, args.steps)
        rounded = [[int(at), round(mean, 2), round(std, 2)] for at, mean, std in evaluations]
        row = known | {"evaluations": rounded, "seconds": round(time.perf_counter() - start, 1)}
        lines = [json.dumps(line) for line in (*rows, row | {"versions": versions()})]
        write_atomically(args.out, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
        print(f"{args.task} {args.algo} seed {seed}: {[round(mean, 1) for _, mean, _ in rounded]}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("untuned", __doc__)
    parser.add_argument("task", nargs="?", metavar="TASK", help="a Gymnasium id")
    parser.add_argument("algo", nargs="?", choices=list(LEARNERS))
    parser.add_argument("--seeds", type=seeds, metavar="A-B")
    parser.add_argument("--steps", type=count)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return run_script(parser, _compare, argv)


if __name__ == "__main__":
    sys.exit(main())
