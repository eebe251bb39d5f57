"""Augmented random search, and OP-ARS when its ranker is off-policy.

H. Mania, A. Guy, B. Recht, "Simple random search of static linear policies is competitive for reinforcement learning",
NeurIPS 2018 (https://arxiv.org/abs/1803.07055), Algorithm 2; with the kernel ranker, Algorithm 1 of Eshwar S R,
S. Kolathaya, G. Thoppe, "Improving Sample Efficiency in Evolutionary RL Using Off-Policy Ranking", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.arithmetic import one_blas_thread
from offrank.arrays import FloatArray, Metrics
from offrank.candidates import Asking, Candidates, Episodes, Pairs
from offrank.errors import UsageError, did_you_mean
from offrank.rankers.base import Ranker
from offrank.state import State
from offrank.strategies.base import Strategy, advance

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
    """M += alpha / (b sigma_R) * sum over the top b of (r+ - r-) delta."""

    name: ClassVar[str] = "ars"

    step_size: float = 0.02  # alpha
    noise_std: float = 0.03  # nu
    form: str = "V2-t"  # BRS, V1, V1-t, V2 or V2-t

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise UsageError(f"form = {self.form!r}: one of {', '.join(FORMS)}{did_you_mean(self.form, FORMS)}")
        if not FORMS[self.form][2] and self.n_top != self.n_directions:
            raise UsageError(
                f"form {self.form} uses every direction: set n_top = n_directions = {self.n_directions} "
                f"(n_top is {self.n_top}), or use the form {self.form if self.form != 'BRS' else 'V1'}-t"
            )
        for field in ("step_size", "noise_std"):
            if not getattr(self, field) > 0:
                raise UsageError(f"{field} = {getattr(self, field)}: must be positive")

    @property
    def normalises(self) -> bool:
        return FORMS[self.form][1]

    def iteration(self, state: State, ranker: Ranker, episodes: Episodes) -> Asking[tuple[State, Metrics]]:
        # sample
        candidates = self.draw(state, self.noise_std, episodes)
        # rank
        ranking = yield from ranker.rank(candidates, state.ranker)
        # evaluate
        pairs = ranking.pairs
        if pairs is None:
            pairs = yield from candidates.evaluate(ranking.chosen)
        used = pairs.take(ranking.chosen)
        # update
        sigma_R = float(np.std(np.concatenate([used.plus, used.minus])))
        M = state.M + self.step(candidates, used, sigma_R)
        after, metrics = advance(state, M, state.strategy, ranker, ranking, used, episodes)
        return after, metrics | {"sigma_R": sigma_R}

    def step(self, candidates: Candidates, used: Pairs, sigma_R: float) -> FloatArray:
        """The change of M, (p, n). Equal returns carry no information, and give no step."""
        if sigma_R == 0.0:
            return np.zeros_like(candidates.M)
        alpha, b = self.step_size, len(used.index)
        delta = candidates.directions.take(used.index)
        with one_blas_thread():
            total = np.tensordot(used.plus - used.minus, delta, axes=1)
        scaled_by = sigma_R if FORMS[self.form][0] else 1.0
        step: FloatArray = alpha / (b * scaled_by) * total
        return step
