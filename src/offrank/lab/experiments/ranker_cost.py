"""Seconds of training iterations with several rankers, without evaluations and with whole episodes.

    python -m offrank.lab.experiments.ranker_cost HalfCheetah-v3 --out results/rankers/cost-HalfCheetah-v3.json
    python -m offrank.lab.experiments.ranker_cost HalfCheetah-v3 --critic hidden=32 --critic networks=1 --out cost.json

Every ranker has the settings that ARS has on the task. Contestants alternate; ratios are per round, to `random`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import offrank
from offrank.cli.options import count, setting
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.lab.bench.rounds import ratio
from offrank.lab.script import make_parser, run_script

ITERATIONS = 4  # per round
CONTESTANTS: dict[str, dict[str, Any]] = {
    "random": {},
    "critic": {"warmup": 0, "train_horizon": 0, "probe_share": 0},
}
SHARED = ("n_top", "step_size", "noise_std")  # as in ARS's preset, whatever the preset of the ranker says


def measure(args: argparse.Namespace) -> None:
    usual = offrank.ARS(args.task).hyperparameters
    shared = {name: usual[name] for name in SHARED} | {"horizon_growth": 0}
    agents = {name: offrank.ARS(args.task, ranker=name, **shared, **own) for name, own in CONTESTANTS.items()}
    for name, value in args.critic:
        own = CONTESTANTS["critic"] | {name: value}
        agents[f"critic, {name}={value}"] = offrank.ARS(args.task, ranker="critic", **shared, **own)
    seconds: dict[str, list[float]] = {name: [] for name in agents}
    for number in range(args.rounds + 1):
        for name, agent in agents.items():
            began = time.perf_counter()
            agent.learn(iterations=ITERATIONS * (number + 1), eval_every=0)
            if number > 0:  # the first round also starts threads and fills the replay
                seconds[name].append(time.perf_counter() - began)
    ratios = {name: ratio(took, seconds["random"])["median"] for name, took in seconds.items()}
    print(ratios)
    write_json(args.out, {"task": args.task, "seconds": seconds, "ratio_to_random": ratios, "versions": versions()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("ranker_cost", __doc__)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--rounds", type=count, default=6)
    parser.add_argument(
        "--critic",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one more contestant: the critic with another setting",
    )
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
