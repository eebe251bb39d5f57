"""Rankers that know nothing of rewards, or one bit of them: what any ranking has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.algorithms.rankers.kernel import Behaviour, action_changes, normalised_states, rewards_to_come
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import Memory
from offrank.core.candidates import Asking, Candidates
from offrank.core.rollouts import Rollouts


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

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        behaviour = yield from candidates.behave(self.n_behaviour)
        z = normalised_states(candidates, behaviour)
        with one_blas_thread():
            change = np.concatenate([c.mean(axis=1) for c in action_changes(candidates, z)])
        scores = self.sign(candidates, behaviour) * change
        return Ranking(chosen=top(scores, candidates.b), scores=scores, behaviour=behaviour)

    def sign(self, candidates: Candidates, behaviour: Rollouts) -> float:
        """Of the change, in the score."""
        return -1.0


@dataclass(frozen=True)
class LargestChange(SmallestChange):
    """The b directions that change the actions most."""

    name: ClassVar[str] = "largest-change"

    def sign(self, candidates: Candidates, behaviour: Rollouts) -> float:
        return 1.0


@dataclass(frozen=True)
class SignedChange(SmallestChange):
    """Those that change the actions least where mean Q is positive, most where it is negative.

    This is the kernel's score to first order in the squared change, if Q and the change are uncorrelated along the
    rollout: what is left when all it knows of rewards is one sign.
    """

    name: ClassVar[str] = "signed-change"

    def sign(self, candidates: Candidates, behaviour: Rollouts) -> float:
        return -float(np.sign(rewards_to_come(behaviour, candidates.episodes.reward_shift).mean()))
