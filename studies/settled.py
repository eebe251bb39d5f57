"""How soon is a pair's difference settled? Rank correlation of r+ - r- after h steps with that of the whole episode.

    python studies/settled.py Hopper-v3 zero tests/policies/Hopper-v3-half.offrank --out results/rankers/settled.json

Pairs are those of ARS's preset around a saved policy, or around zero weights ("zero"). If the difference of a shorter
episode has correlation rho(h) with the whole one's and takes s(h) steps on average, a step spent on it carries
rho(h)^2 / s(h) of signal: that is printed too, as a multiple of the whole episode's. Several calls gather in one file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from offrank.checkpoint import read_json, write_json
from offrank.config import resolve
from offrank.engines import make_engine
from offrank.noise import Directions, Role, episode_seeds
from offrank.normalizer import Whitening
from offrank.rollouts import Request
from offrank.saved import Saved

LENGTHS = (31, 62, 125, 250, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("policies", nargs="+", help="files, or zero")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    engine, recipe = make_engine(args.task, "auto"), resolve(args.task, "ars")
    info = engine.info
    index = np.arange(args.pairs)
    seeds = [episode_seeds(args.seed, 0, role, index) for role in (Role.PLUS, Role.MINUS)]
    rows = read_json(args.out)["rows"] if args.out.is_file() else []
    for name in args.policies:
        M, whitening = np.zeros((info.act_dim, info.obs_dim)), Whitening.identity(info.obs_dim)
        if name != "zero":
            policy = Saved.read(Path(name)).policy
            M, whitening = policy.M, policy.whitening
        rollouts = engine.run(
            Request(
                base=M,
                whitening=whitening,
                seeds=np.stack(seeds, axis=1).ravel(),
                roles=np.tile([Role.PLUS, Role.MINUS], args.pairs).astype(np.int64),
                index=np.repeat(index, 2),
                horizon=info.horizon,
                scale=recipe.strategy.noise_std,
                directions=Directions(args.seed, 0, args.pairs, M.shape),
                keep=True,
            )
        )
        so_far = np.zeros((2 * args.pairs, info.horizon + 1))  # return of each episode after h steps
        for total, trajectory in zip(so_far, rollouts.trajectories, strict=True):
            paid = np.cumsum(trajectory.rewards - recipe.episodes["reward_shift"])
            total[1 : len(paid) + 1], total[len(paid) + 1 :] = paid, paid[-1]
        difference = so_far[0::2] - so_far[1::2]
        rho = {h: float(spearmanr(difference[:, h], difference[:, -1]).statistic) for h in LENGTHS}
        steps = {h: float(np.minimum(rollouts.lengths, h).mean()) for h in (*LENGTHS, info.horizon)}
        gain = {h: max(rho[h], 0.0) ** 2 * steps[info.horizon] / steps[h] for h in LENGTHS}
        rows.append(
            {
                "task": args.task,
                "policy": Path(name).stem,
                "pairs": args.pairs,
                "seed": args.seed,
                "mean_length": float(rollouts.lengths.mean()),
                "correlation": {str(h): round(value, 3) for h, value in rho.items()},
                "signal_a_step": {str(h): round(value, 2) for h, value in gain.items()},
            }
        )
        cells = [f"{h}: {rho[h]:.2f} (x{gain[h]:.1f})" for h in LENGTHS]
        print(f"{args.task} {Path(name).stem}, {rows[-1]['mean_length']:.0f} steps: " + ", ".join(cells), flush=True)
    write_json(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
