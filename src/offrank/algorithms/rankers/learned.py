"""Rankers that learn which directions change the return, and say so themselves when they do not know.

A learned ranker holds an estimate g of the gradient of the return. To first order r+ - r- is proportional to
<g, delta>, so directions are ordered by |<g, delta>|: candidates are free, and N can be in the thousands. Real episodes
still decide the sign and size of every step. What is learned, and from what, is the subclass's own; here is how it is
used, and when it is not:

- a share of the directions stays random, so that what g misses is still found;
- every prediction is compared with its outcome (`trust.py`), and while trust is low the fallback ranks instead, as it
  does in the first iterations, where nothing is known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.algorithms.rankers.controls import Random
from offrank.algorithms.rankers.on_policy import OnPolicy
from offrank.algorithms.rankers.trust import correlation, no_evidence, observe, sign_accuracy
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory
from offrank.core.candidates import Asking, Candidates, Pairs
from offrank.core.errors import UsageError, did_you_mean

FALLBACKS: dict[str, type[Ranker]] = {ranker.name: ranker for ranker in (Random, OnPolicy)}


@dataclass(frozen=True)
class Learned(Ranker):
    """Base: orders directions by |<g, delta>| once g has been seen to predict."""

    suggests: ClassVar[Mapping[str, Any]] = {"n_directions": 1000}  # candidates cost no episodes

    warmup: int = 20  # iterations that the fallback ranks in any case
    explore: float = 0.25  # share of the directions run that is random
    trust_needed: float = 0.0  # correlation of prediction and outcome on random directions, below which to stand back
    trust_decay: float = 0.9  # how much of the evidence is left an iteration later
    fallback: str = "random"  # what ranks while trust is low: random or on-policy
    fallback_directions: int = 32  # directions an on-policy fallback runs

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UsageError(f"warmup = {self.warmup}: must not be negative")
        if not 0 <= self.explore <= 1:
            raise UsageError(f"explore = {self.explore}: must be in [0, 1]")
        if not -1 <= self.trust_needed <= 1:
            raise UsageError(f"trust_needed = {self.trust_needed}: must be in [-1, 1] (-1 trusts always)")
        if not 0 <= self.trust_decay < 1:
            raise UsageError(f"trust_decay = {self.trust_decay}: must be in [0, 1)")
        if self.fallback_directions < 1:
            raise UsageError(f"fallback_directions = {self.fallback_directions}: must be at least 1")
        if self.fallback not in FALLBACKS:
            raise UsageError(
                f"fallback = {self.fallback!r}: one of {', '.join(FALLBACKS)}{did_you_mean(self.fallback, FALLBACKS)}"
            )

    def start(self, p: int, n: int, seed: int) -> Memory:
        return {"trust": no_evidence()}

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        trust = correlation(memory["trust"])
        g = self.gradient(candidates, memory)
        size = float(np.linalg.norm(g))
        predicted = along(candidates, g / size) if size > 0 else None
        learned = trust >= self.trust_needed and candidates.age >= self.warmup
        if predicted is not None and learned:
            ranking = Ranking(self.choose(candidates, predicted), np.abs(predicted), predicted)
        else:
            ranking = yield from FALLBACKS[self.fallback]().rank(self._few(candidates), {})
            ranking, learned = replace(ranking, predicted=predicted), False
        accuracy = sign_accuracy(memory["trust"])
        ranking.metrics.update(ranker_trust=trust, ranker_sign_accuracy=accuracy, ranker_learned=learned)
        return ranking

    def choose(self, candidates: Candidates, predicted: FloatArray) -> IntArray:
        """The b directions to run, ascending: a share of them the first of all, whatever is predicted of them."""
        b, done = candidates.b, candidates.directions.iteration
        random = int((done + 1) * b * self.explore) - int(done * b * self.explore)  # the share holds over iterations
        chosen = top(np.abs(predicted), b - random)
        rest = np.setdiff1d(np.arange(candidates.N), chosen, assume_unique=True)
        return np.sort(np.concatenate([chosen, rest[:random]]))

    def _few(self, candidates: Candidates) -> Candidates:
        """The first of the candidates: as many as may be run."""
        count = min(candidates.N, max(candidates.b, self.fallback_directions))
        return replace(candidates, directions=replace(candidates.directions, count=count))

    def learn(self, memory: Memory, candidates: Candidates, ranking: Ranking, pairs: Pairs) -> Memory:
        run = ranking.pairs or pairs  # all that were run
        after = dict(memory)
        if ranking.predicted is not None:
            difference = run.plus - run.minus
            after["trust"] = observe(memory["trust"], ranking.predicted[run.index], difference, self.trust_decay)
        return after

    def gradient(self, candidates: Candidates, memory: Memory) -> FloatArray:
        """g (p, n), up to a positive factor; 0 while nothing is known."""
        raise NotImplementedError


def along(candidates: Candidates, g: FloatArray) -> FloatArray:
    """<g, delta> of every direction, (N,), a block of directions at a time."""
    with one_blas_thread():
        return np.concatenate([delta.reshape(len(delta), -1) @ g.ravel() for delta in candidates.directions.blocks()])
