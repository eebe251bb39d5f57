"""Augmented random search, and OP-ARS with an off-policy ranker.

H. Mania, A. Guy, B. Recht, "Simple random search of static linear policies is competitive for reinforcement learning",
NeurIPS 2018 (https://arxiv.org/abs/1803.07055), Algorithm 2; with the kernel ranker, Algorithm 1 of Eshwar S R,
S. Kolathaya, G. Thoppe, "Improving Sample Efficiency in Evolutionary RL Using Off-Policy Ranking", 2023.
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
from offrank.core.errors import UsageError, did_you_mean

# form: (steps divided by sigma_R, states normalised, only the top b used)
FORMS = {
    "BRS": (False, False, False),
    "V1": (True, False, False),
    "V1-t": (True, False, True),
    "V2": (True, True, False),
    "V2-t": (True, True, True),
}


@dataclass(frozen=True)
class ARS(Strategy):
    """theta += alpha / (b sigma_R) * sum over the top b of (r+ - r-) delta; with momentum its running average."""

    name: ClassVar[str] = "ars"

    step_size: float = 0.02  # alpha, step size
    form: str = "V2-t"  # what is scaled, normalised and used: BRS, V1, V1-t, V2 or V2-t
    momentum: float = 0.0  # weight of the previous average in a step; 0: the published algorithm

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("step_size", self.step_size)
        self._check("in [0, 1)", lambda value: 0 <= value < 1, "momentum")
        if self.form not in FORMS:
            raise UsageError(f"form = {self.form!r}: one of {', '.join(FORMS)}{did_you_mean(self.form, FORMS)}")
        if not FORMS[self.form][2] and self.n_top != self.n_directions:
            raise UsageError(
                f"form {self.form} uses every direction: set n_top = n_directions = {self.n_directions} "
                f"(n_top is {self.n_top}), or use the form {self.form if self.form != 'BRS' else 'V1'}-t"
            )

    @property
    def normalises(self) -> bool:
        return FORMS[self.form][1]

    def memory(self, d: int) -> Memory:
        return {"average": np.zeros(d)} if self.momentum else {}

    def update(self, proposal: Proposal, used: Pairs, memory: Memory) -> tuple[FloatArray, Memory, Metrics]:
        alpha, b, sigma_R = self.step_size, len(used.index), return_deviation(used)
        if sigma_R == 0.0:  # equal returns carry no information: no step
            return proposal.theta, memory, {"sigma_R": sigma_R}
        scaled_by = sigma_R if FORMS[self.form][0] else 1.0
        delta = proposal.directions.take(used.index)
        with one_blas_thread():
            total = np.tensordot(used.plus - used.minus, delta, axes=1)
        if self.momentum:
            total = self.momentum * memory["average"] + (1 - self.momentum) / (b * scaled_by) * total
            return proposal.theta + alpha * total, {"average": total}, {"sigma_R": sigma_R}
        return proposal.theta + alpha / (b * scaled_by) * total, memory, {"sigma_R": sigma_R}
