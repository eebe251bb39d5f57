"""What TRES's update costs at Humanoid's size, beside the rollouts of its iteration.

    python benchmarks/tres_update.py [--rounds 3] [--out results/tres_update.json]

6,392 dimensions, 230 pairs, K = 10 epochs; the 460 episodes are those of a first iteration, which fall within tens of
steps: an iteration is never cheaper than this, so the share is the largest a run will see.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from offrank.algorithms.strategies import TRES
from offrank.core.candidates import Candidates, Episodes, Pairs
from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request
from offrank.engines import make_engine
from offrank.lab.bench.rounds import alternate, machine, ratio

TASK, PAIRS = "Humanoid-v3", 230


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    engine = make_engine(TASK)
    p, n = engine.info.act_dim, engine.info.obs_dim
    strategy = TRES(n_directions=PAIRS, n_top=PAIRS)
    directions, index = Directions(0, 0, PAIRS, (p, n)), np.arange(PAIRS)
    whitening = Whitening.identity(n)
    M = np.zeros((p, n))
    request = Request(
        base=M,
        whitening=whitening,
        seeds=np.arange(2 * PAIRS),
        roles=np.tile([Role.PLUS, Role.MINUS], PAIRS).astype(np.int64),
        index=np.repeat(index, 2),
        horizon=engine.info.horizon,
        scale=strategy.noise_std,
        directions=directions,
    )
    rollouts = engine.run(request)
    pairs = Pairs(index, rollouts.totals[0::2], rollouts.totals[1::2], rollouts)
    candidates = Candidates(M, whitening, directions, strategy.noise_std, PAIRS, Episodes(engine.info.horizon))
    contestants = {
        "update": lambda: strategy.update(candidates, pairs, {}),
        "rollouts": lambda: engine.run(replace(request)),
    }
    times = alternate(contestants, args.rounds)
    share = ratio(times["update"], times["rollouts"])
    record = {"task": TASK, "pairs": PAIRS, "epochs": strategy.epochs, "steps": rollouts.steps, "seconds": times}
    record |= {"update_over_rollouts": share, **machine()}
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{TASK}, {PAIRS} pairs, K = {strategy.epochs}: update {median(times['update']):.2f} s, "
        f"{rollouts.steps:,} steps of rollouts {median(times['rollouts']):.2f} s; "
        f"share {share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})"
    )


if __name__ == "__main__":
    main()
