"""Largest differences between each task and Gymnasium's own v4 environment, stepped side by side.

    python -m offrank.lab.bench.step_parity [--steps 10000] [--out results/step_parity.json]

Episodes start from the same state and get the same actions, linear policies with noise of several sizes, until they
fall or reach 1000 steps. v4's contact forces and contact cost, which v3 does not have, are set to zero.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

import offrank  # noqa: F401 (registers the environments)
from offrank.cli.options import count
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.script import make_parser, run_script
from offrank.lab.studies.tables import Table
from offrank.tasks import TASKS
from offrank.tasks.models import quiet_mujoco


def compare(name: str, steps: int) -> dict[str, Any]:
    options = {"use_contact_forces": True} if name == "Ant-v3" else {}
    with warnings.catch_warnings(), quiet_mujoco():
        warnings.simplefilter("ignore")
        theirs: Any = gym.make(name.replace("v3", "v4"), **options).unwrapped
    ours: Any = gym.make(f"offrank/{name}").unwrapped
    row: dict[str, Any] = {"task": name, "steps": 0, "episodes": 0, "falls": 0}
    row |= {"observation": 0.0, "reward": 0.0, "terminations": 0}
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
            expected, their_reward, their_end, _, _ = theirs.step(action)
            if name in ("Ant-v3", "Humanoid-v3"):
                expected[-84:] = 0.0
            if name == "Ant-v3":
                their_reward += theirs.contact_cost
            row["steps"] += 1
            row["observation"] = max(row["observation"], float(np.abs(observation - expected).max()))
            row["reward"] = max(row["reward"], abs(reward - float(their_reward)))
            row["terminations"] += terminated != their_end
            if terminated or their_end:
                row["falls"] += 1
                break
    return row


def compare_all(args: argparse.Namespace) -> None:
    rows = [compare(name, args.steps) for name in TASKS]
    head = ["task", "steps", "episodes", "falls", "largest difference of an observation", "of a reward"]
    lines = []
    for r in rows:
        lines.append([r["task"], f"{r['steps']:,}", str(r["episodes"]), str(r["falls"])])
        lines[-1] += [f"{r['observation']:.1e}", f"{r['reward']:.1e}", str(r["terminations"])]
    print(Table([*head, "different terminations"], lines).markdown())
    if args.out:
        write_json(args.out, {"versions": versions(), "steps": args.steps, "rows": rows})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("step_parity", __doc__)
    parser.add_argument("--steps", type=count, default=10_000, help="per task")
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare_all, argv)


if __name__ == "__main__":
    sys.exit(main())
