"""The paper's ranking without rollouts of its own: on the transitions of the pairs that the last iteration ran.

Those were made by other policies than the one that is perturbed now, so a candidate is held against the actions that
were taken: with the policy M now, a_t what was done in the state s_t, and z_t that state as the policy sees it now,

    f(delta) = max over both signs of 1/N_d sum_t exp(-||M z_t +- nu delta z_t - a_t||^2 / h^2) Q_t.

Where the behaviour policy is M itself, a_t = M z_t and this is the kernel's score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.algorithms.rankers.controls import Random
from offrank.algorithms.rankers.kernel import CHUNK, rewards_to_come
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory
from offrank.core.candidates import Asking, Candidates, Pairs
from offrank.core.errors import UsageError


@dataclass(frozen=True)
class Reuse(Ranker):
    """The kernel's score on the last iteration's own episodes: 2b episodes an iteration."""

    name: ClassVar[str] = "reuse"
    needs_continuous_actions: ClassVar[bool] = True
    needs_transitions: ClassVar[bool] = True

    bandwidth: float = 1.0  # h, in units of the median distance of an action from what was done
    transitions: int = 4000  # of the last iteration that are looked at, at most, evenly spread

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise UsageError(f"bandwidth = {self.bandwidth}: must be positive")
        if self.transitions < 1:
            raise UsageError(f"transitions = {self.transitions}: must be at least 1")

    def start(self, p: int, n: int, seed: int) -> Memory:
        return {"state": np.zeros((0, n)), "action": np.zeros((0, p)), "value": np.zeros(0)}

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        if len(memory["value"]) == 0:
            return (yield from Random().rank(candidates, {}))
        scores, h = self.scores(candidates, memory)
        return Ranking(top(scores, candidates.b), scores, metrics={"h": h})

    def scores(self, candidates: Candidates, memory: Memory) -> tuple[FloatArray, float]:
        """f of every direction, (N,), and the h it took."""
        Q, h = memory["value"], 0.0
        found = []
        with one_blas_thread():
            z = candidates.whitening(memory["state"])
            away = (z @ candidates.M.T - memory["action"]).T  # (p, N_d)
            for first in range(0, candidates.N, CHUNK):
                delta = candidates.directions.take(np.arange(first, min(first + CHUNK, candidates.N)))
                step = candidates.scale * (delta.reshape(-1, z.shape[1]) @ z.T).reshape(len(delta), *away.shape)
                distances = [np.square(away + sign * step).sum(axis=1) for sign in (1, -1)]
                if first == 0:
                    h = self.bandwidth * (float(np.sqrt(np.median(distances))) or 1.0)
                found.append(np.maximum(*(np.exp(-d / h**2) @ Q for d in distances)))
        return np.concatenate(found) / len(Q), h

    def learn(self, memory: Memory, candidates: Candidates, ranking: Ranking, pairs: Pairs) -> Memory:
        run = ranking.pairs or pairs
        seen = [t.observations for t in run.rollouts.trajectories]
        with one_blas_thread():
            done = [candidates.whitening(s) @ W.T for s, W in zip(seen, candidates.weights_of(run), strict=True)]
        state, action = np.concatenate(seen), np.concatenate(done)
        value = rewards_to_come(run.rollouts, candidates.episodes.reward_shift)
        some = slice(None, None, -(-len(state) // self.transitions))
        return {"state": state[some], "action": action[some], "value": value[some]}
