"""How far is each task from Gymnasium's own v4 environment? Steps both side by side and prints the largest differences.

    python benchmarks/step_parity.py [--steps 10000] [--out results/step_parity.json]

Episodes start from the same state and get the same actions, linear policies with noise of several sizes, until they
fall or reach 1000 steps. v4's contact forces and contact cost, which v3 does not have, are set to zero.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

import offrank  # noqa: F401 (registers the environments)
from offrank.core.version import versions
from offrank.tasks import TASKS
from offrank.tasks.models import quiet_mujoco


def compare(name: str, steps: int) -> dict[str, Any]:
    options = {"use_contact_forces": True} if name == "Ant-v3" else {}
    with warnings.catch_warnings(), quiet_mujoco():
        warnings.simplefilter("ignore")
        theirs: Any = gym.make(name.replace("v3", "v4"), **options).unwrapped
    ours: Any = gym.make(f"offrank/{name}").unwrapped
    row = {"task": name, "steps": 0, "episodes": 0, "falls": 0, "observation": 0.0, "reward": 0.0, "terminations": 0}
    while row["steps"] < steps:
        seed = row["episodes"]
        rng = np.random.default_rng(seed)
        M = rng.normal(size=(ours.task.act_dim, ours.task.obs_dim)) * (0.0, 0.02, 0.1)[seed % 3]
        observation, _ = ours.reset(seed=seed)
        theirs.reset(seed=seed)
        mujoco.mj_resetData(theirs.model, theirs.data)
        theirs.set_state(*ours.task.start(seed))
        row["episodes"] += 1
        for _ in range(1000):
            action = M @ observation + (0.05, 0.5, 1.5)[seed // 3 % 3] * rng.normal(size=ours.task.act_dim)
            observation, reward, terminated, _, _ = ours.step(action)
            expected, paid, fallen, _, _ = theirs.step(action)
            if name in ("Ant-v3", "Humanoid-v3"):
                expected[-84:] = 0.0
            if name == "Ant-v3":
                paid += theirs.contact_cost
            row["steps"] += 1
            row["observation"] = max(row["observation"], float(np.abs(observation - expected).max()))
            row["reward"] = max(row["reward"], abs(reward - float(paid)))
            row["terminations"] += terminated != fallen
            if terminated or fallen:
                row["falls"] += 1
                break
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [compare(name, args.steps) for name in TASKS]
    print("| task | steps | episodes | falls | largest difference of an observation | of a reward | of terminations |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['task']} | {r['steps']:,} | {r['episodes']} | {r['falls']} | {r['observation']:.1e} "
            f"| {r['reward']:.1e} | {r['terminations']} |"
        )
    if args.out:
        args.out.write_text(json.dumps({"versions": versions(), "steps": args.steps, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
