"""Search around one policy: a strategy samples antithetic candidates and updates the policy, a ranker chooses which
candidates are run.

ARS, TRES and ES, with any ranker. For example, `op-ars` is ARS with the kernel ranker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from offrank.algorithms import horizon
from offrank.algorithms.base import Algorithm
from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers.base import Ranker
from offrank.algorithms.strategies.base import Strategy
from offrank.core.arrays import FloatArray, Memory, Metrics, part, prefixed
from offrank.core.checks import check_learned
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy


@dataclass(frozen=True)
class Search(Algorithm):
    """Sample, rank, evaluate, update, learn."""

    strategy: Strategy
    ranker: Ranker

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        theta, normalizer = self.begin(seed, init)
        memory = _memory(theta, self.strategy.memory(len(theta)), self.ranker.start(self.kind, seed), {})
        return State(seed, normalizer, memory=memory)

    def policy(self, state: State) -> TrainedPolicy:
        return TrainedPolicy.for_space(self.space, self.kind, state.memory["theta"], self.whitening(state))

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        ranker, episodes = self.ranker, self.episodes
        own, remembered = part(state.memory, "strategy."), part(state.memory, "ranker.")
        lengths = part(state.memory, "horizon.")
        # sample
        length = horizon.length(lengths, state.iteration, episodes)
        keep = ranker.needs_transitions or (episodes.probes and length == episodes.horizon)
        proposal = self.propose(state, length, keep)
        # rank
        ranking = yield from ranker.rank(proposal, remembered)
        # evaluate
        pairs = ranking.pairs
        if pairs is None:
            pairs = yield from proposal.evaluate(ranking.chosen)
        pairs = ranker.finish(remembered, proposal, pairs)
        # update
        used = pairs.take(ranking.chosen)
        theta, own, metrics = self.strategy.update(proposal, used, own)
        check_learned("the weights", state.iteration, theta, *own.values(), hint=": the steps are too large")
        # learn
        learned = ranker.learn(remembered, proposal, ranking, used)
        lesson = ranker.lesson(learned, proposal)
        if lesson is not None:
            learned = learned | (yield lesson)
        lengths = horizon.learn(lengths, remembered, ranker, proposal, pairs)
        after = replace(
            state,
            normalizer=state.normalizer.merge(pairs.rollouts.moments),  # of all pairs that were run
            iteration=state.iteration + 1,
            memory=_memory(theta, own, learned, lengths),
        )
        totals = pairs.rollouts.totals
        returns = {"return_mean": float(totals.mean()), "return_std": float(totals.std())}
        if episodes.cuts:
            metrics = {"train_length": length, **metrics}
        return after, {**returns, "weights_norm": float(np.linalg.norm(theta)), **metrics, **ranking.metrics}

    def propose(self, state: State, length: int, keep: bool = False) -> Proposal:
        """The candidates of the iteration after a state, with episodes cut after `length` steps."""
        theta, strategy = state.memory["theta"], self.strategy
        return Proposal(
            policy=self.kind,
            theta=theta,
            whitening=self.whitening(state),
            directions=Directions(state.seed, state.iteration, strategy.n_directions, len(theta)),
            scale=strategy.noise_std,
            b=strategy.n_top,
            episodes=self.episodes,
            length=length,
            keep=keep,
        )

    def whitening(self, state: State) -> Whitening:
        """The normaliser of the policies of a state."""
        return state.normalizer.freeze() if self.normalises else Whitening.identity(self.kind.n)

    @property
    def normalises(self) -> bool:
        return self.strategy.normalises

    @property
    def cached_bytes(self) -> int:
        return 8 * self.strategy.n_directions * self.kind.size


def _memory(theta: FloatArray, strategy: Memory, ranker: Memory, lengths: Memory) -> Memory:
    parts = prefixed("strategy.", strategy) | prefixed("ranker.", ranker) | prefixed("horizon.", lengths)
    return {"theta": theta, **parts}
