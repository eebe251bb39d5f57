"""Steps per second of a training run on the native engine, and of the same run on one Gymnasium environment.

    python -m offrank.lab.bench.train_speed [--task HalfCheetah-v3] [--rounds 5] [--out results/speed/train_speed.json]

Both run the same iterations of OP-ARS with the task's presets, including one evaluation of 20 episodes. The second
steps Gymnasium's own v4 environment in a plain Python loop in this process. Contestants alternate, so that a noisy
machine is noisy for both; ratios are per round.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from offrank.cli.options import count
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.engines import Engine, make_engine
from offrank.lab.script import make_parser, run_script
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.recipe import resolve
from offrank.runs.run import Run
from offrank.tasks.models import quiet_mujoco


def measure(engine: Engine, task: str, iterations: int) -> float:
    """Steps per second, training and evaluation together."""
    limits: dict[str, Any] = {"iterations": iterations, "eval_every": iterations, "eval_episodes": 20}
    run = Run(configure(task, resolve(task, "op-ars"), engine.space, **limits), engine.space)
    begin = time.perf_counter()
    drive([run], engine)
    return (run.state.steps + run.evaluation_steps) / (time.perf_counter() - begin)


def compare(args: argparse.Namespace) -> None:
    with warnings.catch_warnings(), quiet_mujoco():
        warnings.simplefilter("ignore")
        one = make_engine(args.task.replace("v3", "v4"), workers=0, clip_actions=False)
    engines = {"offrank": make_engine(args.task), "one Gymnasium environment": one}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(args.rounds):
        for name, engine in engines.items():
            rates[name].append(measure(engine, args.task, args.iterations))
    print(f"{args.task}, {os.cpu_count()} cores, {platform.machine()}")
    for name, values in rates.items():
        print(f"{name}: median {median(values):,.0f} steps/s ({min(values):,.0f} to {max(values):,.0f})")
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    print(f"ratio: median {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if args.out:
        record = {"task": args.task, "cores": os.cpu_count(), "steps_a_second": rates, "ratio": ratios}
        write_json(args.out, record | {"versions": versions()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("train_speed", __doc__)
    parser.add_argument("--task", default="HalfCheetah-v3")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--iterations", type=count, default=6)
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
