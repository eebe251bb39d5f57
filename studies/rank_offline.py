"""How well would a learned ranker have predicted? Replays one recorded run of ARS through many rankers.

Online, a ranker shapes the data it learns from, and every variant costs a run. Here one run with random directions is
recorded, and each ranker learns from it iteration by iteration; before it sees an iteration, it predicts r+ - r- of its
directions and of the two iterations after. Printed is the correlation of prediction and outcome on these random
directions, in all and by thirds of the run.

    python studies/rank_offline.py HalfCheetah-v3 --iterations 60 --out results/rankers/offline.json \\
        memory critic critic:n_steps=1 closed-form
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrank.algorithms.rankers import RANKERS, Random
from offrank.algorithms.rankers.base import Ranking, taught
from offrank.algorithms.rankers.critic import Critic
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory
from offrank.core.candidates import Candidates, Episodes, Pairs, answered
from offrank.core.files import write_json
from offrank.core.version import versions
from offrank.engines import make_engine
from offrank.runs.config import convert, resolve

AHEAD = 3  # iterations whose directions are predicted, the present one included


@dataclass(frozen=True)
class Recorder(Random):
    """The random ranker, keeping what it was given."""

    needs_transitions = True

    def learn(self, memory: Memory, candidates: Candidates, ranking: Ranking, pairs: Pairs) -> Memory:
        TAPE.append((candidates, pairs))
        return memory


TAPE: list[tuple[Candidates, Pairs]] = []


@dataclass(frozen=True)
class ClosedForm(Critic):
    """LSTD instead of networks: Q = w . phi(z) + (a - M z)^T C (1, z), phi random Fourier features, k-step targets."""

    name = "closed-form"

    n_steps: int = 30
    replay: int = 40_000
    features: int = 200
    frequency: float = 0.3
    ridge: float = 0.1  # on C, relative to the mean of its diagonal

    def train(self, memory: Memory, candidates: Candidates) -> Memory:
        return {}

    def gradient(self, candidates: Candidates, memory: Memory) -> FloatArray:
        state, ahead = memory["replay.state"], memory["replay.ahead"]
        p, n = candidates.M.shape
        if len(state) == 0:
            return np.zeros((p, n))
        random = np.random.default_rng(0)
        W, shift = self.frequency * random.normal(size=(n, self.features)), random.uniform(0, 2 * np.pi, self.features)
        z = np.clip(candidates.whitening(state), -10, 10)
        one = np.ones((len(z), 1))
        phi = np.concatenate([np.sqrt(2) * np.cos(z @ W + shift), z, one], axis=1)
        psi = np.concatenate([one, z], axis=1)
        deviation = memory["replay.action"] - z @ candidates.M.T
        at = np.flatnonzero(ahead)
        with one_blas_thread():
            x = np.concatenate([phi[at], (deviation[at, :, None] * psi[at, None, :]).reshape(len(at), -1)], axis=1)
            beyond = memory["replay.boot"][at, None] * phi[at + ahead[at]]
            A = x.T @ x
            A[:, : phi.shape[1]] -= x.T @ beyond
            v = phi.shape[1]
            penalty = np.full(len(A), 1e-3 * len(at))
            penalty[v:] = self.ridge * np.diag(A)[v:].mean()
            C = np.linalg.solve(A + np.diag(penalty), x.T @ memory["replay.gain"][at])[v:].reshape(p, n + 1)
            recent = slice(-int(memory["fresh"]), None)
            return C @ psi[recent].T @ z[recent] / len(z[recent])


def record(task: str, b: int, iterations: int, seed: int) -> None:
    recipe = resolve(task, "ars", "random", {"n_directions": b, "n_top": b})
    engine = make_engine(task)
    state = recipe.strategy.start(engine.info.act_dim, engine.info.obs_dim, seed, Recorder())
    for _ in range(iterations):
        iteration = recipe.strategy.iteration(state, Recorder(), Episodes(engine.info.horizon, **recipe.episodes))
        state, _ = answered(iteration, engine.run)


def replay(spec: str, seed: int) -> dict[str, Any]:
    """What the ranker `name:setting=value,...` makes of the tape, its networks drawn from `seed`."""
    name, _, settings = spec.partition(":")
    kind = {**RANKERS, ClosedForm.name: ClosedForm}[name]
    given = dict(entry.split("=") for entry in settings.split(",") if entry)
    types = {key: type(getattr(kind, key)) for key in given}
    ranker: Any = kind(**{key: convert(key, value, types[key]) for key, value in given.items()})
    p, n = TAPE[0][0].M.shape
    memory = ranker.start(p, n, seed)
    predicted, outcome, began = [], [], time.perf_counter()
    for t, (candidates, pairs) in enumerate(TAPE):
        g = ranker.gradient(candidates, memory)
        if t + AHEAD <= len(TAPE) and g.any():
            near = np.concatenate([q.plus - q.minus for _, q in TAPE[max(0, t - 8) : t + 8]])  # returns grow: units
            for later, q in TAPE[t : t + AHEAD]:
                predicted.append(np.tensordot(later.directions.take(q.index), g / np.linalg.norm(g), axes=2))
                outcome.append((q.plus - q.minus) / np.sqrt(np.mean(near**2)))
        memory = taught(ranker, memory, candidates, Ranking(pairs.index), pairs)
    x, y = np.concatenate(predicted), np.concatenate(outcome)
    thirds = np.array_split(np.arange(len(x)), 3)
    return {
        "ranker": spec,
        "network_seed": seed,
        "correlation": float(np.corrcoef(x, y)[0, 1]),
        "by_thirds": [float(np.corrcoef(x[at], y[at])[0, 1]) for at in thirds],
        "sign_accuracy": float(np.mean(np.sign(x) == np.sign(y))),
        "directions": len(x),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("rankers", nargs="+", help="name, or name:setting=value,...")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=4, help="b of the recorded run (default 4)")
    parser.add_argument("--seed", type=int, default=1000, help="of the recorded run (default 1000)")
    parser.add_argument("--draws", type=int, default=2, help="initial networks tried with each critic (default 2)")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record(given.task, given.pairs, given.iterations, given.seed)
    outcomes = []
    for spec in given.rankers:
        learned = spec.partition(":")[0] == Critic.name
        for seed in range(given.draws if learned else 1):
            outcomes.append(replay(spec, seed))
            print("{ranker:32} {correlation:6.3f}  {by_thirds}".format(**outcomes[-1]), flush=True)
            settings = {key: value for key, value in vars(given).items() if key not in ("out", "rankers")}
            write_json(given.out, {"settings": settings, "versions": versions(), "outcomes": outcomes})


if __name__ == "__main__":
    main()
