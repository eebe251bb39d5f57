"""Steps a second of a training run on the native engine, beside the same run over one Gymnasium environment.

    python benchmarks/train_speed.py [--task HalfCheetah-v3] [--rounds 5] [--out results/train_speed.json]

Both run the same iterations of OP-ARS with the task's presets, one evaluation of 20 episodes included. The second steps
Gymnasium's own v4 environment in a plain Python loop in this process. Contestants alternate, so that a noisy machine is
noisy for both; the spread is that of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from offrank.core.version import versions
from offrank.engines import Engine, make_engine
from offrank.runs.config import configure, resolve
from offrank.runs.drive import drive
from offrank.runs.run import Run
from offrank.tasks.models import quiet_mujoco


def measure(engine: Engine, task: str, iterations: int) -> float:
    """Steps a second, training and evaluation together."""
    limits: dict[str, Any] = {"iterations": iterations, "eval_every": iterations, "eval_episodes": 20}
    run = Run(configure(task, resolve(task, "op-ars"), engine.info, **limits), engine.info)
    begin = time.perf_counter()
    drive([run], engine)
    return (run.state.steps + run.evaluation_steps) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="HalfCheetah-v3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
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
        args.out.write_text(json.dumps(record | {"versions": versions()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
