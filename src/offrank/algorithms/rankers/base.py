"""A ranker: which b of the N candidate pairs are used, or run at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.proposal import Pairs, Proposal
from offrank.core.arrays import FloatArray, IntArray, Memory, Metrics
from offrank.core.policy import Policy
from offrank.core.rollouts import Rollouts
from offrank.core.work import Asking, Lesson


@dataclass(frozen=True)
class Ranking:
    """The chosen directions, and what was computed or run to choose them."""

    chosen: IntArray  # (b,) directions, ascending
    scores: FloatArray | None = None  # (N,), larger is better
    predicted: FloatArray | None = None  # (N,) predicted differences r+ - r-, up to a positive factor
    pairs: Pairs | None = None  # results of all N pairs, if they were run to rank them
    behaviour: Rollouts | None = None  # rollouts of the unperturbed policy, if they were run to rank the pairs
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class Ranker:
    """Base class of rankers. A subclass's fields are its hyperparameters; its memory is part of the run's state."""

    name: ClassVar[str]
    needs_transitions: ClassVar[bool] = False  # whether `learn` reads the trajectories of the pairs
    preset: ClassVar[str | None] = None  # the ranker whose section of a task's preset it uses; None: its own
    suggests: ClassVar[Mapping[str, Any]] = {}  # settings of other parts that replace the task's preset

    def start(self, policy: Policy, seed: int) -> Memory:
        """The ranker's memory before the first iteration, for a kind of policy."""
        return {}

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        """Choose b directions. May request episodes; their steps are counted."""
        raise NotImplementedError

    def finish(self, memory: Memory, proposal: Proposal, pairs: Pairs) -> Pairs:
        """The pairs that were run, with their returns as the strategy should use them. No requests are possible."""
        return pairs

    def learn(self, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
        """The memory after the chosen pairs were run."""
        return memory

    def lesson(self, memory: Memory, proposal: Proposal) -> Lesson | None:
        """A long computation to do after `learn`, or None. Its result is merged into the memory."""
        return None


def learn_now(ranker: Ranker, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
    """The memory after `learn` and the lesson, which is carried out in this process."""
    after = ranker.learn(memory, proposal, ranking, pairs)
    lesson = ranker.lesson(after, proposal)
    return after if lesson is None else after | lesson.carry_out()


def top(scores: FloatArray, b: int) -> IntArray:
    """The b directions of largest score, ascending. Of equal scores, the lowest index is taken."""
    return np.sort(np.argsort(-scores, kind="stable")[:b])
