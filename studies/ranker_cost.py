"""What learned rankers cost: seconds of training iterations of whole episodes, without evaluations, contestants
alternating, each with the settings that ARS has on the task.

    python studies/ranker_cost.py HalfCheetah-v3 --out results/rankers/cost-HalfCheetah-v3.json
    python studies/ranker_cost.py HalfCheetah-v3 --critic hidden=32 --critic networks=1 --out runs/cost.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import offrank
from offrank.cli.options import setting
from offrank.core.files import write_json
from offrank.core.version import versions

ITERATIONS = 4  # a round
CONTESTANTS = {"random": {}, "memory": {"warmup": 0}, "critic": {"warmup": 0, "train_horizon": 0, "probe_share": 0}}
SHARED = ("n_top", "step_size", "noise_std")  # whatever a preset of the ranker says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--critic",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one more, with another critic",
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    usual = offrank.ARS(given.task).hyperparameters
    shared = {name: usual[name] for name in SHARED} | {"horizon_growth": 0}
    agents = {name: offrank.ARS(given.task, ranker=name, **shared, **own) for name, own in CONTESTANTS.items()}
    for name, value in given.critic:
        own = CONTESTANTS["critic"] | {name: value}
        agents[f"critic, {name}={value}"] = offrank.ARS(given.task, ranker="critic", **shared, **own)
    seconds: dict[str, list[float]] = {name: [] for name in agents}
    for number in range(given.rounds + 1):
        for name, agent in agents.items():
            began = time.perf_counter()
            agent.learn(iterations=ITERATIONS * (number + 1), eval_every=0)
            if number > 0:  # the first round also starts threads and fills the replay
                seconds[name].append(time.perf_counter() - began)
    ratio = {
        name: statistics.median(a / b for a, b in zip(took, seconds["random"], strict=True))
        for name, took in seconds.items()
    }
    print(ratio)
    write_json(given.out, {"task": given.task, "seconds": seconds, "ratio_to_random": ratio, "versions": versions()})


if __name__ == "__main__":
    main()
