"""A strategy answers two questions: how are candidates drawn, and how does the policy move?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from offrank.arrays import FloatArray, Memory, Metrics
from offrank.candidates import Asking, Candidates, Episodes, Pairs
from offrank.errors import OffrankError, UsageError
from offrank.noise import Directions
from offrank.normalizer import Normalizer, Whitening
from offrank.rankers.base import Ranker, Ranking
from offrank.state import State


@dataclass(frozen=True)
class Strategy:
    """Base of all strategies. A subclass's fields are its hyperparameters."""

    name: ClassVar[str]

    n_directions: int = 8  # N, directions sampled an iteration
    n_top: int = 4  # b, directions run and used

    def __post_init__(self) -> None:
        for field in ("n_directions", "n_top"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} = {getattr(self, field)}: must be at least 1")
        if self.n_top > self.n_directions:
            raise UsageError(
                f"n_top = {self.n_top} is more than n_directions = {self.n_directions}: "
                "b directions are chosen from N, so b <= N"
            )

    @property
    def normalises(self) -> bool:
        return True

    def start(self, p: int, n: int, seed: int, ranker: Ranker) -> State:
        """The state before the first iteration: zero weights."""
        return State(
            seed=seed,
            M=np.zeros((p, n)),
            normalizer=Normalizer.empty(n),
            strategy=self.memory(p, n),
            ranker=ranker.start(),
        )

    def memory(self, p: int, n: int) -> Memory:
        """What the strategy itself carries from iteration to iteration."""
        return {}

    def iteration(self, state: State, ranker: Ranker, episodes: Episodes) -> Asking[tuple[State, Metrics]]:
        """One iteration: asks for its episodes, returns the next state and what to log. Touches nothing else."""
        raise NotImplementedError

    def whitening(self, state: State) -> Whitening:
        """The normaliser that policies of this state act with."""
        return state.normalizer.freeze() if self.normalises else Whitening.identity(state.M.shape[1])

    def draw(self, state: State, scale: float, episodes: Episodes) -> Candidates:
        """N Gaussian directions around the current weights."""
        p, n = state.M.shape
        directions = Directions(state.seed, state.iteration, self.n_directions, (p, n))
        return Candidates(state.M, self.whitening(state), directions, scale, self.n_top, episodes)


def advance(
    state: State, M: FloatArray, memory: Memory, ranker: Ranker, ranking: Ranking, pairs: Pairs, episodes: Episodes
) -> tuple[State, Metrics]:
    """The state after an update, with the statistics of the states seen and the ranker's lesson.

    `pairs` are those that moved the policy; their rollouts are of every pair that was run.
    """
    if not np.isfinite(M).all():
        raise OffrankError(
            f"the weights became non-finite in iteration {state.iteration}: the step size is too large for this task"
        )
    normalizer = state.normalizer.merge(pairs.rollouts.moments)
    if episodes.count_behaviour_states and ranking.behaviour is not None:
        normalizer = normalizer.merge(ranking.behaviour.moments)
    after = replace(
        state,
        M=M,
        normalizer=normalizer,
        iteration=state.iteration + 1,
        strategy=memory,
        ranker=ranker.learn(state.ranker, ranking, pairs),
    )
    totals = pairs.rollouts.totals
    metrics: Metrics = {"return_mean": float(totals.mean()), "return_std": float(totals.std())}
    metrics["weights_norm"] = float(np.linalg.norm(M))
    return after, metrics | ranking.metrics
