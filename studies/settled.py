"""How soon is a pair's difference settled? Rank correlation of r+ - r- after h steps with that of the whole episode.

    python studies/settled.py Hopper-v3 zero tests/policies/Hopper-v3-half.offrank --out results/rankers/settled.json
    python studies/settled.py Swimmer-v3 zero --critic 256 --out results/rankers/tails.json

Pairs are those of ARS's preset around a saved policy, or around zero weights ("zero"). If the difference of a shorter
episode has correlation rho(h) with the whole one's and takes s(h) steps on average, a step spent on it carries
rho(h)^2 / s(h) of signal: that is printed too, as a multiple of the whole episode's. With --critic, a critic learns
from so many other pairs, cut at 125 steps, and both are given as well with its value of where the shorter episodes
stood. Several calls gather in one file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from offrank.algorithms import horizon
from offrank.algorithms.rankers import Critic, Random
from offrank.algorithms.rankers.base import Ranker, Ranking, taught
from offrank.algorithms.rankers.learned import along
from offrank.core.candidates import Candidates, Episodes, Pairs, answered
from offrank.core.files import read_json, write_json
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.engines import Engine, make_engine
from offrank.runs.config import resolve
from offrank.runs.saved import Saved

LENGTHS = (31, 62, 125, 250, 500)
LEARNED_FROM = 125  # steps of the episodes that a critic learns from
OTHER_SEED = 5000


def around(task: str, name: str, engine: Engine, seed: int, pairs: int, length: int) -> Candidates:
    """Directions around a policy, drawn and scored as ARS's preset says."""
    info, recipe = engine.info, resolve(task, "ars")
    M, whitening = np.zeros((info.act_dim, info.obs_dim)), Whitening.identity(info.obs_dim)
    if name != "zero":
        policy = Saved.read(Path(name)).policy
        M, whitening = policy.M, policy.whitening
    directions = Directions(seed, 0, pairs, M.shape)
    episodes = Episodes(info.horizon, **recipe.episodes)
    return Candidates(M, whitening, directions, recipe.strategy.noise_std, pairs, episodes, length, keep=True)


def run(candidates: Candidates, engine: Engine) -> Pairs:
    return answered(candidates.evaluate(np.arange(candidates.N)), engine.run)


def measure(candidates: Candidates, pairs: Pairs, ranker: Ranker, memory: dict[str, Any]) -> dict[str, Any]:
    """Correlation and signal of every length, as `ranker` completes the cut episodes."""
    whole = pairs.plus - pairs.minus
    rho, gain = {}, {}
    for h in LENGTHS:
        cut = horizon.cut(pairs, h, candidates.episodes)
        seen = ranker.finish(memory, replace(candidates, length=h), cut)
        rho[h] = float(spearmanr(seen.plus - seen.minus, whole).statistic)
        gain[h] = max(rho[h], 0.0) ** 2 * pairs.rollouts.steps / cut.rollouts.steps
    return {
        "correlation": {str(h): round(value, 3) for h, value in rho.items()},
        "signal_a_step": {str(h): round(value, 2) for h, value in gain.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("policies", nargs="+", help="files, or zero")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--critic", type=int, default=0, metavar="PAIRS", help="that a critic learns from first")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    engine = make_engine(args.task, "auto")
    rows = read_json(args.out)["rows"] if args.out.is_file() else []
    for name in args.policies:
        candidates = around(args.task, name, engine, args.seed, args.pairs, engine.info.horizon)
        pairs = run(candidates, engine)
        row: dict[str, Any] = {"task": args.task, "policy": Path(name).stem, "pairs": args.pairs, "seed": args.seed}
        row["mean_length"] = float(pairs.rollouts.lengths.mean())
        row |= measure(candidates, pairs, Random(), {})
        if args.critic:
            critic = Critic()
            others = around(args.task, name, engine, args.seed + OTHER_SEED, args.critic, LEARNED_FROM)
            memory = critic.start(engine.info.act_dim, engine.info.obs_dim, args.seed)
            learned_from = run(others, engine)
            memory = taught(critic, memory, others, Ranking(learned_from.index), learned_from)
            predicted = along(candidates, critic.gradient(candidates, memory))
            row["critic"] = {
                "pairs": args.critic,
                "steps": learned_from.rollouts.steps,
                "prediction": round(float(spearmanr(predicted, pairs.plus - pairs.minus).statistic), 3),
                **measure(candidates, pairs, critic, memory),
            }
        rows.append(row)
        for label, found in (("", row), (" with the critic's value", row.get("critic"))):
            if found:
                cells = [
                    f"{h}: {found['correlation'][str(h)]:.2f} (x{found['signal_a_step'][str(h)]:.1f})" for h in LENGTHS
                ]
                print(
                    f"{args.task} {Path(name).stem}, {row['mean_length']:.0f} steps{label}: {', '.join(cells)}",
                    flush=True,
                )
    write_json(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
