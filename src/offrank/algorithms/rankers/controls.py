"""Rankers that do not use rewards: baselines that any other ranker has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.algorithms.rankers.kernel import Behaviour, action_changes, normalised_states
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import Memory
from offrank.core.work import Asking


@dataclass(frozen=True)
class Random(Ranker):
    """The first b directions, which is a random choice. The paper's bracketed baseline; the same bits as on-policy
    ranking with N = b."""

    name: ClassVar[str] = "random"

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        yield from ()  # no requests, but `rank` must be a generator
        return Ranking(chosen=np.arange(proposal.b))


@dataclass(frozen=True)
class SmallestChange(Behaviour):
    """The b directions that change the actions least, in mean square over the behaviour states."""

    name: ClassVar[str] = "smallest-change"
    sign: ClassVar[float] = -1.0  # of the change, in the score

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        behaviour = yield from proposal.behave(self.n_behaviour)
        z = normalised_states(proposal, behaviour)
        with one_blas_thread():
            change = np.concatenate([c.mean(axis=1) for c in action_changes(proposal, z)])
        scores = self.sign * change
        return Ranking(chosen=top(scores, proposal.b), scores=scores, behaviour=behaviour)


@dataclass(frozen=True)
class LargestChange(SmallestChange):
    """The b directions that change the actions most."""

    name: ClassVar[str] = "largest-change"
    sign: ClassVar[float] = 1.0
