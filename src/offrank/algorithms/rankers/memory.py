"""A ranker that remembers: the pairs of recent iterations are a regression problem for the gradient.

Every pair that was run says r+ - r- = <g, delta> + noise about the gradient g of the return where the policy then was.
Ridge regression over the remembered pairs, each weighted by decay^age because the policy has moved since,

    g = D^T (D D^T + ridge * d * diag(decay^-age))^-1 y,     D the m directions (m, d), y their m differences,

costs no interaction and next to no time. `ridge` is how much of a difference is noise, relative to what a random
direction of the true gradient would cause; in dual form the problem is m by m whatever the size of the policy.
Directions are functions of (seed, iteration, index): only these integers are remembered, never a direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from offrank.algorithms.rankers.base import Ranking
from offrank.algorithms.rankers.learned import Learned
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory
from offrank.core.candidates import Candidates, Pairs
from offrank.core.errors import UsageError

FORGOTTEN = 0.02  # a pair of less weight than this is dropped


@dataclass(frozen=True)
class PastPairs(Learned):
    """Orders directions by a ridge regression on the differences of recent pairs: 2b episodes an iteration."""

    name: ClassVar[str] = "memory"

    decay: float = 0.9  # weight of a pair an iteration later
    ridge: float = 1.0  # noise of a difference, relative to what the gradient explains of it
    remembered: int = 1000  # pairs at most: bounds time and memory where b is large

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay < 1:
            raise UsageError(f"decay = {self.decay}: must be between 0 and 1")
        if not self.ridge > 0:
            raise UsageError(f"ridge = {self.ridge}: must be positive")
        if self.remembered < 1:
            raise UsageError(f"remembered = {self.remembered}: must be at least 1")

    def start(self, p: int, n: int, seed: int) -> Memory:
        none = np.zeros(0, dtype=np.int64)
        return super().start(p, n, seed) | {"iteration": none, "index": none, "when": none, "difference": np.zeros(0)}

    def gradient(self, candidates: Candidates, memory: Memory) -> FloatArray:
        y, iteration = memory["difference"], memory["iteration"]
        if len(y) == 0:
            return np.zeros_like(candidates.M)
        now = candidates.directions
        D = np.concatenate(
            [
                replace(now, iteration=int(then))
                .take(memory["index"][iteration == then])
                .reshape(-1, candidates.M.size)
                for then in np.unique(iteration)
            ]
        )
        age = candidates.age - memory["when"]
        with one_blas_thread():
            dual = np.linalg.solve(D @ D.T + np.diag(self.ridge * D.shape[1] * self.decay ** -age.astype(float)), y)
            g: FloatArray = dual @ D
        return g.reshape(candidates.M.shape)

    def learn(self, memory: Memory, candidates: Candidates, ranking: Ranking, pairs: Pairs) -> Memory:
        run = ranking.pairs or pairs
        now = candidates.directions.iteration
        after = super().learn(memory, candidates, ranking, pairs)
        new = {
            "iteration": np.full(len(run.index), now, dtype=np.int64),
            "index": run.index,
            "when": np.full(len(run.index), candidates.age, dtype=np.int64),  # apart: a policy may be returned to later
            "difference": run.plus - run.minus,
        }
        keep = self.decay ** (candidates.age - memory["when"]).astype(float) > FORGOTTEN
        for name, values in new.items():
            after[name] = np.concatenate([memory[name][keep], values])[-self.remembered :]
        return after
