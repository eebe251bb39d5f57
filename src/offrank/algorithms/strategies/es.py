"""OpenAI's evolution strategies, and OP-ES with an off-policy ranker.

T. Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning", 2017
(https://arxiv.org/abs/1703.03864): antithetic samples, returns replaced by their centred ranks, Adam, weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.strategies.base import Strategy, return_deviation
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory, Metrics
from offrank.core.checks import check_scale


@dataclass(frozen=True)
class ES(Strategy):
    """theta += Adam(g - weight_decay * theta), g = 1 / (2 b) * sum (s+ - s-) eps, ranks s, as in the paper's code."""

    name: ClassVar[str] = "es"

    learning_rate: float = 0.01  # alpha, step size of Adam
    weight_decay: float = 0.005  # factor of theta that is subtracted from the gradient
    beta1: float = 0.9  # decay of Adam's average of gradients
    beta2: float = 0.999  # decay of Adam's average of squared gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("learning_rate", self.learning_rate)
        self._check("not negative", lambda value: value >= 0, "weight_decay")
        self._check("in [0, 1)", lambda value: 0 <= value < 1, "beta1", "beta2")

    def memory(self, d: int) -> Memory:
        return {"m": np.zeros(d), "v": np.zeros(d), "t": np.zeros((), dtype=np.int64)}

    def update(self, proposal: Proposal, used: Pairs, memory: Memory) -> tuple[FloatArray, Memory, Metrics]:
        theta, b = proposal.theta, len(used.index)
        shaped = centred_ranks(np.concatenate([used.plus, used.minus]))
        eps = proposal.directions.take(used.index)
        with one_blas_thread():
            total = np.tensordot(shaped[:b] - shaped[b:], eps, axes=1)
        g = total / (2 * b) - self.weight_decay * theta

        t = int(memory["t"]) + 1
        m = self.beta1 * memory["m"] + (1 - self.beta1) * g
        v = self.beta2 * memory["v"] + (1 - self.beta2) * g * g
        step = m / (1 - self.beta1**t) / (np.sqrt(v / (1 - self.beta2**t)) + 1e-8)
        after: Memory = {"m": m, "v": v, "t": np.array(t, dtype=np.int64)}
        return theta + self.learning_rate * step, after, {"sigma_R": return_deviation(used)}


def centred_ranks(values: FloatArray) -> FloatArray:
    """Ranks (m,) of values (m,), scaled to [-0.5, 0.5]. Equal values share their mean rank, so equal returns give 0."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    rank = (last - (count + 1) / 2)[place]
    centred: FloatArray = rank / max(len(values) - 1, 1) - 0.5
    return centred
