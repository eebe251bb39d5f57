"""Seconds of TRES's update at Humanoid's size, and of the rollouts of the same iteration.

    python -m offrank.lab.bench.tres_update [--rounds 3] [--out results/speed/tres_update.json]

6,392 dimensions, 230 pairs, K = 10 epochs. The 460 episodes are those of a first iteration, which fall within tens of
steps: no iteration is cheaper, so the share of the update is the largest that a run will see.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs
from offrank.algorithms.rankers import OnPolicy
from offrank.algorithms.search import Search
from offrank.algorithms.strategies import TRES
from offrank.cli.options import count
from offrank.core.files import write_json
from offrank.engines import make_engine
from offrank.lab.bench.rounds import alternate, machine, ratio
from offrank.lab.requests import around_start
from offrank.lab.script import make_parser, run_script
from offrank.policies import make_policy

TASK, PAIRS = "Humanoid-v3", 230


def compare(args: argparse.Namespace) -> None:
    engine = make_engine(TASK)
    strategy = TRES(n_directions=PAIRS, n_top=PAIRS)
    space, horizon = engine.space, engine.space.horizon
    policy = make_policy("linear", space.obs_dim, space.act_dim)
    request = around_start(policy, 2 * PAIRS, horizon, scale=strategy.noise_std, pairs=True)
    rollouts = engine.run(request)
    algorithm = Search(space, policy, Episodes(horizon), strategy, OnPolicy())
    pairs = Pairs.of(np.arange(PAIRS), rollouts, algorithm.episodes)
    proposal = algorithm.propose(algorithm.start(0), horizon)
    contestants = {
        "update": lambda: strategy.update(proposal, pairs, {}),
        "rollouts": lambda: engine.run(request),
    }
    times = alternate(contestants, args.rounds)
    share = ratio(times["update"], times["rollouts"])
    record = {"task": TASK, "pairs": PAIRS, "epochs": strategy.epochs, "steps": rollouts.steps, "seconds": times}
    if args.out:
        write_json(args.out, record | {"update_over_rollouts": share, **machine()})
    print(
        f"{TASK}, {PAIRS} pairs, K = {strategy.epochs}: update {median(times['update']):.2f} s, "
        f"{rollouts.steps:,} steps of rollouts {median(times['rollouts']):.2f} s; "
        f"share {share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("tres_update", __doc__)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--out", type=Path)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
