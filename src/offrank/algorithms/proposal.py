"""The candidates of one iteration of a search, and the requests for their episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.core.arrays import FloatArray, IntArray
from offrank.core.candidates import Around
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Request, Rollouts
from offrank.core.work import Asking


@dataclass(frozen=True)
class Pairs:
    """Returns of m antithetic pairs, without the survival bonus."""

    index: IntArray  # (m,) directions, ascending
    plus: FloatArray  # (m,) return of theta + scale * delta
    minus: FloatArray  # (m,) return of theta - scale * delta
    rollouts: Rollouts  # 2m episodes, alternating plus and minus

    @staticmethod
    def of(index: IntArray, rollouts: Rollouts, episodes: Episodes) -> Pairs:
        """Pairs from the rollouts of 2m episodes, alternating plus and minus."""
        returns = episodes.returns(rollouts)
        return Pairs(index, returns[0::2], returns[1::2], rollouts)

    @property
    def best(self) -> FloatArray:
        return np.maximum(self.plus, self.minus)

    def take(self, directions: IntArray) -> Pairs:
        """The pairs of the given directions. The rollouts remain those of all pairs."""
        at = np.searchsorted(self.index, directions)
        return Pairs(self.index[at], self.plus[at], self.minus[at], self.rollouts)


@dataclass(frozen=True)
class Proposal:
    """N directions around theta: candidate k is the pair theta +- scale * delta_k. b of them are used."""

    policy: Policy
    theta: FloatArray  # (d,)
    whitening: Whitening
    directions: Directions
    scale: float
    b: int
    episodes: Episodes
    length: int  # steps after which training episodes are cut
    keep: bool = False  # whether the trajectories of the pairs are needed

    @property
    def N(self) -> int:
        return self.directions.count

    @property
    def iteration(self) -> int:
        return self.directions.iteration

    def thetas_of(self, run: Pairs) -> FloatArray:
        """The parameters (2m, d) of the episodes of the pairs, in the same order."""
        delta = np.repeat(self.scale * self.directions.take(run.index), 2, axis=0)
        delta[1::2] *= -1
        return self.theta + delta

    def evaluate(self, chosen: IntArray) -> Asking[Pairs]:
        """Run both signs of the chosen directions."""
        index = np.repeat(chosen, 2)
        roles = np.tile([Role.PLUS, Role.MINUS], len(chosen)).astype(np.int64)
        seeds = np.stack([self._seeds(Role.PLUS, chosen), self._seeds(Role.MINUS, chosen)], axis=1).ravel()
        rollouts = yield Request(
            policy=self.policy,
            candidates=Around(self.theta, self.scale, self.directions, index, np.tile([1.0, -1.0], len(chosen))),
            whitening=self.whitening,
            seeds=seeds,
            roles=roles,
            index=index,
            horizon=self.length,
            keep=self.keep,
        )
        return Pairs.of(chosen, rollouts, self.episodes)

    def behave(self, count: int) -> Asking[Rollouts]:
        """Run the unperturbed policy `count` times, keeping the trajectories."""
        run = self.directions.seed, self.iteration, Role.BEHAVIOUR, np.arange(count)
        rollouts: Rollouts = yield Request.of_one(self.policy, self.theta, self.whitening, *run, self.length, keep=True)
        return rollouts

    def _seeds(self, role: Role, index: IntArray) -> IntArray:
        return episode_seeds(self.directions.seed, self.directions.iteration, role, index)
