"""A strategy answers two questions: how are candidates drawn, and how does the policy move?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from offrank.algorithms import horizon, starts
from offrank.algorithms.rankers.base import Ranker
from offrank.core.arrays import FloatArray, Memory, Metrics
from offrank.core.candidates import Asking, Candidates, Episodes, Pairs
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Directions
from offrank.core.normalizer import Normalizer, Whitening
from offrank.core.state import State

MOST_DIRECTIONS = 10_000_000  # an iteration: more is a slip of the pen, and would never end


@dataclass(frozen=True)
class Strategy:
    """Base of all strategies. A subclass's fields are its hyperparameters, and its `update` is the algorithm."""

    name: ClassVar[str]

    n_directions: int = 8  # N, directions sampled an iteration
    n_top: int = 4  # b, directions run and used
    noise_std: float = 0.03  # nu or sigma: a candidate is M +- noise_std * delta
    orthogonal: bool = False  # directions are drawn orthogonal to one another, in blocks

    def __post_init__(self) -> None:
        self._check("at least 1", lambda value: value >= 1, "n_directions", "n_top")
        self._check(f"at most {MOST_DIRECTIONS:,}", lambda value: value <= MOST_DIRECTIONS, "n_directions")
        self._check("positive", lambda value: value > 0, "noise_std")
        if self.n_top > self.n_directions:
            raise UsageError(
                f"n_top = {self.n_top} is more than n_directions = {self.n_directions}: "
                "b directions are chosen from N, so b <= N"
            )

    def _check(self, wanted: str, holds: Callable[[float], bool], *names: str) -> None:
        for name in names:
            if not holds(getattr(self, name)):
                raise UsageError(f"{name} = {getattr(self, name)}: must be {wanted}")

    def start(self, p: int, n: int, seed: int, ranker: Ranker) -> State:
        """The state before the first iteration: zero weights."""
        return State(
            seed=seed,
            M=np.zeros((p, n)),
            normalizer=Normalizer.empty(n),
            strategy=self.memory(p, n),
            ranker=ranker.start(p, n, seed),
        )

    def iteration(self, state: State, ranker: Ranker, episodes: Episodes) -> Asking[tuple[State, Metrics]]:
        """One iteration: asks for its episodes, returns the next state and what to log. Touches nothing else."""
        # begin anew, or settle for the best beginning
        p, n = state.M.shape
        state = starts.chosen(state, episodes, fresh=lambda: self.start(p, n, state.seed, ranker))
        # sample
        length = horizon.length(state, episodes)
        keep = ranker.needs_transitions or (episodes.probes and length == episodes.horizon)
        candidates = self.candidates(state, episodes, length, keep)
        # rank
        ranking = yield from ranker.rank(candidates, state.ranker)
        # evaluate
        pairs = ranking.pairs
        if pairs is None:
            pairs = yield from candidates.evaluate(ranking.chosen)
        paid, pairs = pairs, ranker.finish(state.ranker, candidates, pairs)
        # update
        used = pairs.take(ranking.chosen)
        M, memory, metrics = self.update(candidates, used, state.strategy)
        if not np.isfinite(M).all():
            raise OffrankError(f"the weights became non-finite in iteration {state.iteration}: the steps are too large")
        normalizer = state.normalizer.merge(pairs.rollouts.moments)  # of every pair that was run
        if episodes.count_behaviour_states and ranking.behaviour is not None:
            normalizer = normalizer.merge(ranking.behaviour.moments)
        # learn
        learned = ranker.learn(state.ranker, candidates, ranking, used)
        lesson = ranker.lesson(learned, candidates)
        if lesson is not None:
            learned = learned | (yield lesson)
        after = replace(
            state,
            M=M,
            normalizer=normalizer,
            iteration=state.iteration + 1,
            strategy=memory,
            ranker=learned,
            horizon=horizon.learn(state, ranker, candidates, pairs),
            starts=starts.learn(state, episodes, paid, length),
        )
        totals = pairs.rollouts.totals
        returns = {"return_mean": float(totals.mean()), "return_std": float(totals.std())}
        if episodes.starts > 1:
            metrics = {"start": int(after.starts["start"]), **metrics}
        if episodes.cuts:
            metrics = {"train_length": length, **metrics}
        return after, {**returns, "weights_norm": float(np.linalg.norm(M)), **metrics, **ranking.metrics}

    def candidates(self, state: State, episodes: Episodes, length: int, keep: bool = False) -> Candidates:
        """Those of the iteration after a state, their episodes cut after `length` steps."""
        return Candidates(
            M=state.M,
            whitening=self.whitening(state),
            directions=Directions(state.seed, state.iteration, self.n_directions, state.M.shape, self.orthogonal),
            scale=self.noise_std,
            b=self.n_top,
            episodes=episodes,
            length=length,
            keep=keep,
            first=starts.first_iteration(state),
        )

    def update(self, candidates: Candidates, used: Pairs, memory: Memory) -> tuple[FloatArray, Memory, Metrics]:
        """The weights (p, n) after learning from the b pairs used, the strategy's memory, and what to log."""
        raise NotImplementedError

    def memory(self, p: int, n: int) -> Memory:
        """What the strategy itself carries from iteration to iteration, at the start."""
        return {}

    @property
    def normalises(self) -> bool:
        """Whether policies act on normalised states."""
        return True

    def whitening(self, state: State) -> Whitening:
        """The normaliser that policies of this state act with."""
        return state.normalizer.freeze() if self.normalises else Whitening.identity(state.M.shape[1])


def return_deviation(used: Pairs) -> float:
    """sigma_R: the population standard deviation of the 2b returns used."""
    return float(np.std(np.concatenate([used.plus, used.minus])))
