"""Off-policy ranking with on-policy iterations in between.

The paper interleaves on Ant, where OP-ARS alone gets stuck, and gives no schedule. There are two here: a fixed period,
and a rule that falls back to on-policy ranking for one iteration if the off-policy scores no longer agree with the
returns of the directions that were run, or if returns have stopped growing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.rankers.base import Ranking
from offrank.algorithms.rankers.kernel import Kernel
from offrank.algorithms.rankers.on_policy import OnPolicy
from offrank.core.arithmetic import concordance
from offrank.core.arrays import Memory
from offrank.core.checks import LARGEST
from offrank.core.errors import UsageError
from offrank.core.policy import Policy
from offrank.core.work import Asking


@dataclass(frozen=True)
class Mixed(Kernel):
    """Base class: each iteration ranks either by the kernel or on-policy, where all N pairs are run."""

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        on_policy = self.on_policy_now(proposal.iteration, memory)
        if on_policy:
            ranking = yield from OnPolicy().rank(proposal, memory)
        else:
            ranking = yield from Kernel.rank(self, proposal, memory)
        ranking.metrics["on_policy"] = on_policy
        return ranking

    def on_policy_now(self, iteration: int, memory: Memory) -> bool:
        """Whether the iteration with this number, counted from 0, ranks on-policy."""
        raise NotImplementedError


@dataclass(frozen=True)
class Interleaved(Mixed):
    """As the kernel, but every `period`-th iteration ranks on-policy."""

    name: ClassVar[str] = "interleaved"

    period: int = 5  # iterations from one on-policy ranking to the next

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period < 1:
            raise UsageError(f"period = {self.period}: must be at least 1 (1 ranks on-policy in every iteration)")

    def on_policy_now(self, iteration: int, memory: Memory) -> bool:
        return (iteration + 1) % self.period == 0


@dataclass(frozen=True)
class Adaptive(Mixed):
    """As the kernel, but on-policy for one iteration if the scores disagree with the returns, or progress stalls.

    Agreement is Kendall's tau between the scores and max(r+, r-) of the b directions run, averaged over about
    1 / (1 - memory_decay) iterations. It is not defined for b = 1, where only a stall counts. Progress is the best
    average return so far; `patience` iterations without a new best are a stall.
    """

    name: ClassVar[str] = "adaptive"

    agreement: float = 0.0  # fall back while the average agreement is below this
    memory_decay: float = 0.8  # weight of the past in the averages of agreement and return
    patience: int = 10  # iterations without a new best average return that count as a stall

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.memory_decay < 1:
            raise UsageError(f"memory_decay = {self.memory_decay}: must be in [0, 1)")
        if self.patience < 1:
            raise UsageError(f"patience = {self.patience}: must be at least 1")

    def start(self, policy: Policy, seed: int) -> Memory:
        # off-policy ranking is trusted until its scores disagree with the returns
        return {
            "tau": np.ones(()),
            "progress": np.full((), -LARGEST),
            "average": np.zeros(()),
            "stalled": np.zeros((), dtype=np.int64),
            "fall_back": np.zeros((), dtype=np.bool_),
        }

    def on_policy_now(self, iteration: int, memory: Memory) -> bool:
        return bool(memory["fall_back"])

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        ranking = yield from super().rank(proposal, memory)
        trusted = not ranking.metrics["on_policy"]
        ranking.metrics.update(
            ranker_trust=float(memory["tau"]), ranker_learned=trusted, stalled=int(memory["stalled"])
        )
        return ranking

    def learn(self, memory: Memory, proposal: Proposal, ranking: Ranking, pairs: Pairs) -> Memory:
        tau, progress, average = (float(memory[k]) for k in ("tau", "progress", "average"))
        stalled, was_on_policy = int(memory["stalled"]), bool(memory["fall_back"])
        decay = self.memory_decay

        if was_on_policy:
            tau = max(tau, self.agreement)  # the fallback lasts one iteration: the next one is off-policy again
        elif ranking.scores is not None and len(ranking.chosen) > 1:
            tau = decay * tau + (1 - decay) * concordance(ranking.scores[pairs.index], pairs.best)

        run = ranking.pairs or pairs  # all that were run: only the best of an on-policy iteration would seem progress
        now = float(np.mean([run.plus, run.minus]))
        first = progress == -LARGEST
        average = now if first else decay * average + (1 - decay) * now
        stalled = 0 if average > progress or was_on_policy else stalled + 1
        return {
            "tau": np.full((), tau),
            "progress": np.full((), max(progress, average)),
            "average": np.full((), average),
            "stalled": np.full((), stalled, dtype=np.int64),
            "fall_back": np.full((), tau < self.agreement or stalled >= self.patience, dtype=np.bool_),
        }
