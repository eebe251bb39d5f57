"""A ranker answers one question: which b of the N candidates deserve real episodes?"""

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
    """The choice, and whatever was learned on the way to it."""

    chosen: IntArray  # (b,) directions, ascending
    scores: FloatArray | None = None  # (N,), larger is better
    predicted: FloatArray | None = None  # (N,) differences r+ - r- up to a positive factor, where they are predicted
    pairs: Pairs | None = None  # outcomes of all N pairs, where ranking needed them
    behaviour: Rollouts | None = None  # rollouts of the unperturbed policy, where ranking needed them
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class Ranker:
    """Base of all rankers. A subclass's fields are its hyperparameters; its memory is part of the run's state."""

    name: ClassVar[str]
    needs_continuous_actions: ClassVar[bool] = False
    needs_transitions: ClassVar[bool] = False  # whether `learn` reads the trajectories of the pairs
    preset: ClassVar[str | None] = None  # the ranker whose section of a task's preset it shares; None: its own
    suggests: ClassVar[Mapping[str, Any]] = {}  # settings of other parts that suit it better than the task's preset

    def start(self, policy: Policy, seed: int) -> Memory:
        """What the ranker of policies of a kind remembers before the first iteration."""
        return {}

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        """Choose. May ask for episodes; every step of them counts."""
        raise NotImplementedError

    def finish(self, memory: Memory, proposal: Proposal, pairs: Pairs) -> Pairs:
        """The pairs with returns as the strategy should see them. They were run; nothing may be asked for here."""
        return pairs

    def learn(self, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
        """The memory after the outcomes of the chosen pairs are known."""
        return memory

    def lesson(self, memory: Memory, proposal: Proposal) -> Lesson | None:
        """What is still to be done after `learn`, where that takes long; its outcome is merged into the memory."""
        return None


def taught(ranker: Ranker, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
    """The memory after `learn` and its lesson, carried out at once."""
    after = ranker.learn(memory, proposal, ranking, pairs)
    lesson = ranker.lesson(after, proposal)
    return after if lesson is None else after | lesson.carry_out()


def top(scores: FloatArray, b: int) -> IntArray:
    """The b directions of largest score, ascending; equal scores go to the lowest index."""
    return np.sort(np.argsort(-scores, kind="stable")[:b])
