"""After how many steps is the difference of a pair's returns known?

    python -m offrank.lab.experiments.short_episodes Hopper-v3 zero tests/policies/Hopper-v3-half.offrank \\
        --out results/rankers/settled.json
    python -m offrank.lab.experiments.short_episodes Swimmer-v3 zero --critic 256 --out results/rankers/tails.json

Prints the rank correlation rho(h) of r+ - r- after h steps with r+ - r- of the whole episode. Pairs are those of ARS's
preset around a saved policy, or around zero weights ("zero"). If the shorter episodes take s(h) steps on average, one
step spent on them carries rho(h)^2 / s(h) of signal: that is printed too, as a multiple of the whole episode's. With
--critic, a critic first learns from other pairs, cut at 125 steps, and both numbers are also given with its value of
the last state added to the shorter episodes. Several calls add to one file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms import horizon
from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers import Critic, Random
from offrank.algorithms.rankers.base import Ranker, Ranking, learn_now
from offrank.algorithms.rankers.critic import along
from offrank.cli.options import count, natural
from offrank.core.arrays import FloatArray, Memory
from offrank.core.errors import require
from offrank.core.files import read_json, write_json
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.work import answered
from offrank.engines import Engine, make_engine
from offrank.lab.script import make_parser, run_script
from offrank.policies import make_policy
from offrank.runs.recipe import resolve
from offrank.runs.saved import Saved

LENGTHS = (31, 62, 125, 250, 500)
LEARNED_FROM = 125  # steps of the episodes that a critic learns from
OTHER_SEED = 5000  # added to the seed for the pairs that a critic learns from


def around(task: str, name: str, engine: Engine, seed: int, pairs: int, length: int) -> Proposal:
    """Directions around a policy, drawn and scored with the settings of ARS's preset."""
    space, recipe = engine.space, resolve(task, "ars")
    kind = make_policy("linear", space.obs_dim, space.act_dim)
    theta, whitening = kind.start(seed), Whitening.identity(space.obs_dim)
    if name != "zero":
        policy = Saved.read(Path(name)).policy
        kind, theta, whitening = policy.kind, policy.theta, policy.whitening
    directions = Directions(seed, 0, pairs, kind.size)
    episodes = Episodes(space.horizon, **recipe.episodes)
    noise_std = recipe.settings.noise_std
    return Proposal(kind, theta, whitening, directions, noise_std, pairs, episodes, length, keep=True)


def run_pairs(proposal: Proposal, engine: Engine) -> Pairs:
    return answered(proposal.evaluate(np.arange(proposal.N)), engine.run)


def correlation(a: FloatArray, b: FloatArray) -> float:
    return float(require("scipy.stats", "studies").spearmanr(a, b).statistic)


def measure(proposal: Proposal, pairs: Pairs, ranker: Ranker, memory: Memory) -> dict[str, Any]:
    """Correlation and signal of every length, where `ranker` completes the cut episodes."""
    whole = pairs.plus - pairs.minus
    rho, gain = {}, {}
    for h in LENGTHS:
        cut = horizon.cut(pairs, h, proposal.episodes)
        seen = ranker.finish(memory, replace(proposal, length=h), cut)
        rho[h] = correlation(seen.plus - seen.minus, whole)
        gain[h] = max(rho[h], 0.0) ** 2 * pairs.rollouts.steps / cut.rollouts.steps
    return {
        "correlation": {str(h): round(value, 3) for h, value in rho.items()},
        "signal_a_step": {str(h): round(value, 2) for h, value in gain.items()},
    }


def with_critic(proposal: Proposal, pairs: Pairs, name: str, engine: Engine, args: argparse.Namespace) -> Any:
    """The same with a critic that has learned from other pairs."""
    critic = Critic()
    others = around(args.task, name, engine, args.seed + OTHER_SEED, args.critic, LEARNED_FROM)
    memory = critic.start(others.policy, args.seed)
    learned_from = run_pairs(others, engine)
    memory = learn_now(critic, memory, others, Ranking(learned_from.index), learned_from)
    predicted = along(proposal, critic.gradient(proposal, memory))
    return {
        "pairs": args.critic,
        "steps": learned_from.rollouts.steps,
        "prediction": round(correlation(predicted, pairs.plus - pairs.minus), 3),
        **measure(proposal, pairs, critic, memory),
    }


def compare(args: argparse.Namespace) -> None:
    engine = make_engine(args.task, "auto")
    rows = read_json(args.out)["rows"] if args.out.is_file() else []
    for name in args.policies:
        proposal = around(args.task, name, engine, args.seed, args.pairs, engine.space.horizon)
        pairs = run_pairs(proposal, engine)
        row: dict[str, Any] = {"task": args.task, "policy": Path(name).stem, "pairs": args.pairs, "seed": args.seed}
        row["mean_length"] = float(pairs.rollouts.lengths.mean())
        row |= measure(proposal, pairs, Random(), {})
        if args.critic:
            row["critic"] = with_critic(proposal, pairs, name, engine, args)
        rows.append(row)
        for label, found in (("", row), (" with the critic's value", row.get("critic"))):
            if found:
                rho, signal = found["correlation"], found["signal_a_step"]
                cells = [f"{h}: {rho[str(h)]:.2f} (x{signal[str(h)]:.1f})" for h in LENGTHS]
                head = f"{args.task} {row['policy']}, {row['mean_length']:.0f} steps{label}"
                print(f"{head}: {', '.join(cells)}", flush=True)
    write_json(args.out, {"rows": rows})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("short_episodes", __doc__)
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("policies", nargs="+", metavar="POLICY", help="files, or zero")
    parser.add_argument("--pairs", type=count, default=64)
    parser.add_argument("--seed", type=natural, default=1000)
    parser.add_argument("--critic", type=natural, default=0, metavar="PAIRS", help="that a critic learns from first")
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
