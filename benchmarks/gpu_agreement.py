"""How closely the warp engine's first steps agree with the CPU engine's, task by task.

    python benchmarks/gpu_agreement.py [--device cpu] [--pairs 30] [--out results/gpu_agreement.json]

Small random policies from the same starts, 25 steps, falls included; the largest difference of an observation and of
a reward in the first ten steps of each episode. On Warp's CPU device it is the same kernels in the same float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request
from offrank.core.version import versions
from offrank.engines import Gpu, make_engine
from offrank.tasks import TASKS

STEPS, FIRST = 25, 10


def compare(task: str, gpu: Gpu, pairs: int) -> dict[str, Any]:
    ours, cpu = make_engine(task, "warp", gpu=gpu), make_engine(task, "mujoco")
    shape = (ours.info.act_dim, ours.info.obs_dim)
    request = Request(
        base=np.zeros(shape),
        whitening=Whitening.identity(shape[1]),
        seeds=np.arange(2 * pairs),
        roles=np.tile([Role.PLUS, Role.MINUS], pairs).astype(np.int64),
        index=np.repeat(np.arange(pairs), 2),
        horizon=STEPS,
        scale=0.1,
        directions=Directions(0, 0, pairs, shape),
        keep=True,
    )
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="of Warp (default: the first GPU)")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [compare(task, Gpu(24, args.device), args.pairs) for task in TASKS]
    print("| task | episodes that fall | of equal length | observation: median, 90 % | reward: median, 90 % |")
    print("|---|---|---|---|---|")
    for row in rows:
        cells = [row["task"], f"{row['falls']:.0%}", f"{row['equal_lengths']:.0%}"]
        for name in ("observations", "rewards"):
            cells.append(", ".join(f"{np.quantile(row[name], q):.0e}" for q in (0.5, 0.9)))
        print("| " + " | ".join(cells) + " |")
    if args.out:
        record = {"device": args.device, "steps": STEPS, "first": FIRST, "rows": rows, "versions": versions()}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
