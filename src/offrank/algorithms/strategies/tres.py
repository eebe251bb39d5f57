"""Trust region evolution strategies, and OP-TRES with an off-policy ranker.

G. Liu et al., "Trust Region Evolution Strategies", AAAI 2019; as reviewed, and combined with off-policy ranking, in
appendices B and C of Eshwar S R, S. Kolathaya, G. Thoppe, "Improving Sample Efficiency in Evolutionary RL Using
Off-Policy Ranking", 2023 (Algorithm A1).

Candidates are x = theta +- sigma eps. Their returns are used in K epochs, each a step of gradient ascent on

    L_CLIP(theta') = mean over the 2b samples of  sum_i min(r_i V, clip(r_i, 1 - lambda, 1 + lambda) V)

with one ratio r_i = p_theta'(x^i) / p_theta(x^i) per *dimension*, not one per sample. In units of sigma, with
w = (theta' - theta) / sigma, log r_i = +-eps_i w_i - w_i^2 / 2. V = (R - mean) / std of the 2b returns: its sign
decides which side is clipped, so returns must be centred; the sign of a raw return has no meaning. If V < 0 a large
ratio is not clipped, but it is bounded: log r <= eps^2 / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Pairs, Proposal
from offrank.algorithms.strategies.base import Strategy, return_deviation
from offrank.core.arithmetic import in_threads
from offrank.core.arrays import FloatArray, Memory, Metrics
from offrank.core.checks import check_scale
from offrank.core.errors import OffrankError

CHUNK = 128  # dimensions at a time: they do not interact, and a chunk stays in the CPU's cache for all K epochs


@dataclass(frozen=True)
class TRES(Strategy):
    """theta' += alpha * gradient of L_CLIP, K times over the same returns."""

    name: ClassVar[str] = "tres"

    learning_rate: float = 3e-4  # alpha, step size
    epochs: int = 10  # K, gradient steps on the same returns
    clip: float = 0.5  # lambda, how far a probability ratio may be from 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("learning_rate", self.learning_rate)
        self._check("positive", lambda value: value > 0, "clip")
        self._check("at least 1", lambda value: value >= 1, "epochs")

    def update(self, proposal: Proposal, used: Pairs, memory: Memory) -> tuple[FloatArray, Memory, Metrics]:
        theta, sigma, sigma_R = proposal.theta, proposal.scale, return_deviation(used)
        if sigma_R == 0.0:  # equal returns carry no information: no step
            return theta, memory, {"sigma_R": sigma_R, "clipped": 0.0}
        mean = np.mean([used.plus, used.minus])
        V_plus, V_minus = (used.plus - mean) / sigma_R, (used.minus - mean) / sigma_R
        eps = proposal.directions.take(used.index)

        w = np.zeros(eps.shape[1])

        def ascend(first: int) -> int:
            part, outside = slice(first, first + CHUNK), 0
            here = np.ascontiguousarray(eps[:, part])
            for _ in range(self.epochs):
                gradient, outside = clip_gradient(w[part], here, V_plus, V_minus, self.clip)
                w[part] += self.learning_rate / sigma**2 * gradient  # alpha d/d theta' = alpha / sigma d/dw, in sigmas
            return outside

        clipped = sum(in_threads(ascend, range(0, len(w), CHUNK)))
        if not np.isfinite(w).all():
            raise OffrankError(
                "TRES's probability ratios overflowed: learning_rate is too large for noise_std "
                f"({self.learning_rate:g} and {sigma:g})"
            )
        metrics = {"sigma_R": sigma_R, "clipped": clipped / (2 * eps.size), "trust": float(np.sqrt(np.mean(w * w)))}
        return theta + sigma * w, memory, metrics


def clip_gradient(
    w: FloatArray, eps: FloatArray, V_plus: FloatArray, V_minus: FloatArray, clip: float
) -> tuple[FloatArray, int]:
    """Gradient (d,) of L_CLIP with respect to w, and the number of the 2b x d ratios that were clipped.

    Args:
        w: (d,) distance from theta, in sigmas.
        eps: (b, d) of the pairs; the samples are +eps and -eps.
        V_plus, V_minus: (b,) values of the samples.
        clip: lambda.
    """
    gradient = np.zeros_like(w)
    live = 0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # the caller checks for overflow
        r_plus = np.exp((eps - 0.5 * w) * w)
        r_minus = np.exp(-w * w) / r_plus
        for u, V, r_V in ((eps, V_plus[:, None], r_plus), (-eps, V_minus[:, None], r_minus)):
            r_V *= V
            # min(r V, clip(r) V) is constant where the clipped term is smaller: where this fails, for either sign of V
            inside = r_V <= V + clip * np.abs(V)
            live += int(np.count_nonzero(inside))
            r_V *= inside
            r_V *= u - w  # d log r / dw
            gradient += r_V.sum(axis=0)
    return gradient / (2 * len(eps)), 2 * eps.size - live
