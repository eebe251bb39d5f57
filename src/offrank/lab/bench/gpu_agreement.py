"""How closely the warp engine's first steps agree with the CPU engine's, task by task.

    python -m offrank.lab.bench.gpu_agreement [--device cpu] [--pairs 30] [--out results/gpu_agreement.json]

Small random policies from the same starts, 25 steps, falls included: the largest difference of an observation and of
a reward in the first ten steps of each episode. Warp's CPU device runs the same kernels in the same float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrank.cli.options import count
from offrank.core.errors import require
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.engines import Gpu, make_engine
from offrank.lab.requests import around_start
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.tables import Table
from offrank.policies import make_policy
from offrank.tasks import TASKS

STEPS, FIRST = 25, 10


def compare(task: str, gpu: Gpu, pairs: int) -> dict[str, Any]:
    ours, cpu = make_engine(task, "warp", gpu=gpu), make_engine(task, "mujoco")
    policy = make_policy("linear", ours.space.obs_dim, ours.space.act_dim)
    request = around_start(policy, 2 * pairs, STEPS, scale=0.1, pairs=True, keep=True)
    a, b = ours.run(request), cpu.run(request)
    observations, rewards = [], []
    for x, y in zip(a.trajectories, b.trajectories, strict=True):
        common = slice(min(len(x.rewards), len(y.rewards), FIRST))
        observations.append(float(np.abs(x.observations[common] - y.observations[common]).max()))
        rewards.append(float(np.abs(x.rewards[common] - y.rewards[common]).max()))
    return {
        "task": task,
        "falls": float(np.mean(b.lengths < STEPS)),
        "equal_lengths": float(np.mean(a.lengths == b.lengths)),
        "observations": observations,
        "rewards": rewards,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    lines = []
    for row in rows:
        lines.append([row["task"], f"{row['falls']:.0%}", f"{row['equal_lengths']:.0%}"])
        for name in ("observations", "rewards"):
            lines[-1].append(", ".join(f"{np.quantile(row[name], q):.0e}" for q in (0.5, 0.9)))
    head = ["task", "episodes that fall", "of equal length", "observation: median, 90 %", "reward: median, 90 %"]
    return Table(head, lines)


def compare_all(args: argparse.Namespace) -> None:
    require("warp", "gpu")
    rows = [compare(task, Gpu(24, args.device), args.pairs) for task in TASKS]
    print(table(rows).markdown())
    if args.out:
        record = {"device": args.device, "steps": STEPS, "first": FIRST, "rows": rows, "versions": versions()}
        write_json(args.out, record)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("gpu_agreement", __doc__)
    parser.add_argument("--device", help="of Warp (default: the first GPU)")
    parser.add_argument("--pairs", type=count, default=30)
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare_all, argv)


if __name__ == "__main__":
    sys.exit(main())
