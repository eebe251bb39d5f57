"""The ranking of ARS: run every candidate pair, and use the b pairs with the largest max(r+, r-).

H. Mania, A. Guy, B. Recht, "Simple random search of static linear policies is competitive for reinforcement learning",
NeurIPS 2018 (https://arxiv.org/abs/1803.07055), Algorithm 2, step 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.core.arrays import Memory
from offrank.core.work import Asking


@dataclass(frozen=True)
class OnPolicy(Ranker):
    """Every candidate is run, and the best are used. 2N episodes per iteration, all of them in the state statistics."""

    name: ClassVar[str] = "on-policy"

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        pairs = yield from proposal.evaluate(np.arange(proposal.N))
        return Ranking(chosen=top(pairs.best, proposal.b), scores=pairs.best, pairs=pairs)
