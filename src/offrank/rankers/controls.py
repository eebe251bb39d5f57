"""Rankers that know nothing of rewards: what any ranking has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.arithmetic import one_blas_thread
from offrank.arrays import Memory
from offrank.candidates import Asking, Candidates
from offrank.rankers.base import Ranker, Ranking, top
from offrank.rankers.kernel import Behaviour, action_changes, normalised_states


@dataclass(frozen=True)
class Random(Ranker):
    """The first b directions: the paper's bracketed baseline, and the same bits as on-policy ranking with N = b."""

    name: ClassVar[str] = "random"

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        yield from ()  # asks for nothing, but is a generator like every ranker
        return Ranking(chosen=np.arange(candidates.b))


@dataclass(frozen=True)
class SmallestChange(Behaviour):
    """The b directions that change the actions least, in mean square over the behaviour states."""

    name: ClassVar[str] = "smallest-change"
    sign: ClassVar[float] = -1.0

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        behaviour = yield from candidates.behave(self.n_behaviour)
        z = normalised_states(candidates, behaviour)
        with one_blas_thread():
            change = np.concatenate([c.mean(axis=1) for c in action_changes(candidates, z)])
        scores = self.sign * change
        return Ranking(chosen=top(scores, candidates.b), scores=scores, behaviour=behaviour)


@dataclass(frozen=True)
class LargestChange(SmallestChange):
    """The b directions that change the actions most."""

    name: ClassVar[str] = "largest-change"
    sign: ClassVar[float] = 1.0
