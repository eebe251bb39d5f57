"""Milliseconds of an update of `guided` on a device, by the number of runs that learn together.

python -m offrank.lab.bench.lessons --tasks HalfCheetah-v3 Humanoid-v3 --runs 1 8 16 50 100 --device cuda \
    --out results/speed/lessons.json

A lesson is `--updates` updates of the critics, with the default settings and a replay buffer of `--rows` random rows.
The second column counts all runs' updates per second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from offrank.algorithms.guided import GuidedSettings
from offrank.algorithms.learning import actor_critic, replay
from offrank.algorithms.learning.actor_critic import ActorCriticLesson
from offrank.cli.options import count
from offrank.core.arrays import Memory
from offrank.core.files import write_json
from offrank.core.normalizer import Whitening
from offrank.lab.bench.rounds import machine
from offrank.lab.script import make_parser, run_script
from offrank.policies import make_policy
from offrank.tasks import TASKS


class Owner:
    """A run, as trainers know it."""

    def __init__(self, task: str, seed: int, rows: int):
        self.space, self.seed = TASKS[task].space(clip_actions=True), seed
        n, p = self.space.obs_dim, self.space.act_dim
        self.policy, self.settings = make_policy("skip:32", n, p), GuidedSettings()
        random = np.random.default_rng(seed)
        made: Memory = {
            "state": random.standard_normal((rows, n), dtype=np.float32),
            "action": random.uniform(-1, 1, (rows, p)).astype(np.float32),
            "gain": random.standard_normal(rows, dtype=np.float32),
            "boot": np.full(rows, 0.98, dtype=np.float32),
            "ahead": (np.arange(rows) % 250 < 248).astype(np.int64) * 2,
        }
        self.replay = replay.extend(replay.empty(self.policy), [made], self.settings.replay)
        self.learner = actor_critic.new_learner(self.settings, self.policy, self.policy.start(seed), seed)

    def lesson(self, updates: int, iteration: int) -> ActorCriticLesson:
        whitening = Whitening.identity(self.policy.n)
        how = self.settings, self.space, self.policy, whitening, self.learner, self.replay
        return ActorCriticLesson(*how, updates, self.seed, iteration)


def seconds(owners: Sequence[Owner], updates: int, rounds: int, device: str) -> list[float]:
    """Of a lesson of all runs, in each round after the first."""
    times = []
    for iteration in range(rounds + 1):
        lessons = [owner.lesson(updates, iteration) for owner in owners]
        begin = time.perf_counter()
        outcomes = ActorCriticLesson.carry_out_together(lessons, owners, device)
        times.append(time.perf_counter() - begin)
        for owner, outcome in zip(owners, outcomes, strict=True):
            assert isinstance(outcome, dict)
            owner.learner = outcome
    return times[1:]


def measure(args: argparse.Namespace) -> None:
    rows = []
    for task in args.tasks:
        owners = [Owner(task, seed, args.rows) for seed in range(max(args.runs))]
        for runs in args.runs:
            times = seconds(owners[:runs], args.updates, args.rounds, args.device)
            rows.append({"task": task, "runs": runs, "updates": args.updates, "seconds": times})
            each = median(times) / args.updates
            print(f"{task}, {runs} runs: {1000 * each:.3f} ms, {runs / each:,.0f} updates per second", flush=True)
    if args.out:
        write_json(args.out, {"device": args.device, "rows": rows} | machine())


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("lessons", __doc__)
    parser.add_argument("--tasks", choices=list(TASKS), nargs="+", default=["HalfCheetah-v3"], metavar="TASK")
    parser.add_argument("--runs", type=count, nargs="+", default=[1, 8, 100])
    parser.add_argument("--updates", type=count, default=500)
    parser.add_argument("--rows", type=count, default=20_000)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    return run_script(parser, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
