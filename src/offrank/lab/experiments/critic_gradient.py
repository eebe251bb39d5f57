"""How well does a critic's gradient predict which directions change the return? At checkpoints of runs of a critic.

    offrank train HalfCheetah-v3 --algo q-ars --seeds 1000-1002 --steps 400k --threshold none --out runs/critic
    python -m offrank.lab.experiments.critic_gradient runs/critic/* --out results/rankers/critic-gradient.json

Fresh pairs are run around the checkpoint's policy, both signs from the same start state. Reported is the correlation of
their differences, clipped to their 3rd and 97th percentiles (falls are rare and large), with three predictions: that of
the run's own critic, that of new critics trained on the run's replay with targets of other lengths, and that of ridge
regression on four fifths of the pairs themselves, which is about what a linear prediction can reach.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers import Critic
from offrank.algorithms.search import Search
from offrank.cli.options import count
from offrank.core.arrays import FloatArray, Memory, part
from offrank.core.errors import UsageError
from offrank.core.files import write_json
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.version import versions
from offrank.engines import Engine, make_engine
from offrank.lab.requests import signs
from offrank.lab.script import make_parser, run_script
from offrank.runs.folder import CHECKPOINT
from offrank.runs.opening import read_config
from offrank.runs.run import Run

FOLDS, RIDGE = 5, 100.0


def fresh_pairs(run: Run, engine: Engine, number: int, scale: float, length: int) -> tuple[FloatArray, FloatArray]:
    """Differences (m,) of pairs around the run's policy, and their directions (m, d)."""
    seed, index = run.config.seed + 1_000_000, np.arange(number)
    around = propose(run, scale)
    around = replace(around, directions=Directions(seed, 0, number, len(around.theta)))
    starts = episode_seeds(seed, 0, Role.PLUS, index)
    plus, minus = around.episodes.returns(engine.run(signs(around, index, starts, starts, length))).reshape(2, -1)
    difference = plus - minus
    clipped = np.clip(difference, *np.percentile(difference, [3, 97]))
    return clipped, around.directions.take(index)


def search_of(run: Run) -> Search:
    if not isinstance(run.algorithm, Search):
        raise UsageError(f"{run.config.algo} is no search around one policy")
    return run.algorithm


def propose(run: Run, scale: float) -> Proposal:
    """The candidates of the run's next iteration, at another scale."""
    return replace(search_of(run).propose(run.state, run.config.horizon), scale=scale)


def by_regression(difference: FloatArray, directions: FloatArray) -> float:
    """Correlation of the differences with their predictions by ridge regression on the other folds."""
    predicted, fold = np.zeros(len(difference)), np.arange(len(difference)) % FOLDS
    for held_out in range(FOLDS):
        x, y = directions[fold != held_out], difference[fold != held_out]
        slope = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
        predicted[fold == held_out] = directions[fold == held_out] @ slope
    return correlation(predicted, difference)


def correlation(a: FloatArray, b: FloatArray) -> float:
    return round(float(np.corrcoef(a, b)[0, 1]), 3)


def one_step_rewards(memory: Memory, discount: float) -> FloatArray:
    """The reward of every row of the replay, recovered from its k-step gains."""
    gain, ahead = memory["replay.gain"].astype(np.float64), memory["replay.ahead"]
    k, reward = int(ahead.max()), np.zeros(len(gain))
    for t in range(len(gain) - 2, -1, -1):
        if ahead[t] > 0:
            after = gain[t + 1] - (discount ** (k - 1) * reward[t + k] if ahead[t + 1] == k else 0.0)
            reward[t] = gain[t] - (discount * after if ahead[t + 1] > 0 and ahead[t] > 1 else 0.0)
    return reward


def with_targets(memory: Memory, k: int, discount: float) -> Memory:
    """The memory with its replay's targets over k steps. Episodes that the task ended early are not supported."""
    ahead = memory["replay.ahead"]
    if not (memory["replay.boot"][ahead > 0] > 0).all():
        raise UsageError("an episode in the replay ended early: this script supports tasks without termination only")
    reward, left = one_step_rewards(memory, discount), np.zeros(len(ahead), dtype=np.int64)
    for t in range(len(ahead) - 2, -1, -1):
        left[t] = left[t + 1] + 1 if ahead[t] > 0 else 0
    steps, gain = np.minimum(k, left), np.zeros(len(ahead))
    for j in range(k):
        at = np.flatnonzero(steps > j)
        gain[at] += discount**j * reward[at + j]
    boot = np.where(steps > 0, discount ** steps.astype(float), 0.0)
    return memory | {
        "replay.gain": gain.astype(np.float32),
        "replay.boot": boot.astype(np.float32),
        "replay.ahead": steps,
    }


def new_critic(run: Run, critic: Critic, k: int, updates: int, draw: int) -> FloatArray:
    """The gradient of a critic with new networks, trained on the run's replay."""
    memory = with_targets(part(run.state.memory, "ranker."), k, critic.discount)
    memory |= critic._new_networks(run.algorithm.kind, seed=draw, iteration=0)
    now = propose(run, search_of(run).strategy.noise_std)
    while (done := int(memory["step"])) < updates:
        memory |= critic.train(memory, replace(now, directions=replace(now.directions, seed=draw, iteration=done)))
    return critic.gradient(now, memory)


def measure(folder: Path, engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    config = read_config(folder)
    run = Run(config, engine.space)
    run.restore(folder / CHECKPOINT)
    critic, noise_std = search_of(run).ranker, search_of(run).strategy.noise_std
    if not isinstance(critic, Critic):
        raise UsageError(f"{folder} holds a run of the {critic.name} ranker, not of the critic")
    gradients = {"the run's own": critic.gradient(propose(run, 1.0), part(run.state.memory, "ranker."))}
    for k in args.steps:
        for draw in range(2):
            gradients[f"anew, k = {k}, draw {draw}"] = new_critic(run, critic, k, args.updates, draw)
    rows = []
    for length in args.lengths:
        for scale in (noise_std, noise_std / 3):
            difference, directions = fresh_pairs(run, engine, args.pairs, scale, length)
            found = {name: correlation(directions @ g, difference) for name, g in gradients.items()}
            found["ridge regression"] = by_regression(difference, directions)
            rows.append({"length": length, "noise_std": scale, "correlation": found})
    at = {"seed": config.seed, "iteration": run.state.iteration, "steps": run.state.steps}
    return {"task": config.task, **at, "n_steps": critic.n_steps, "rows": rows}


def compare(args: argparse.Namespace) -> None:
    engine = make_engine(read_config(args.folders[0]).task)
    found = []
    for folder in args.folders:
        found.append(measure(folder, engine, args))
        for row in found[-1]["rows"]:
            print(f"{folder.name}, {row['length']} steps, noise {row['noise_std']:g}: {row['correlation']}", flush=True)
        write_json(args.out, {"found": found, "versions": versions()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("critic_gradient", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="run folders of one task")
    parser.add_argument("--pairs", type=count, default=400)
    parser.add_argument("--lengths", type=count, nargs="+", default=[125, 1000], help="steps of the episodes")
    parser.add_argument("--steps", type=count, nargs="+", default=[1, 5, 20], help="of the new critics' targets")
    parser.add_argument("--updates", type=count, default=5000, help="of the new critics")
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
