"""How well does one order of the candidates agree with another? Rank correlations with intervals, overlap of the top.

Intervals are percentiles over resampled candidates. One set of resamples serves every comparison of a checkpoint, so
that the difference of two rankers has its own interval: their errors are shared, and mostly cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from offrank.algorithms.rankers.base import top
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray
from offrank.core.errors import require

LEVEL = 0.95  # of every interval


def targets(plus: FloatArray, minus: FloatArray | None = None) -> dict[str, FloatArray]:
    """The true scores that a ranking is compared with, (N,) each, from mean returns (N,) of the two signs, or of
    candidates without signs.

    `max` is what on-policy ranking orders by, `gap` carries the gradient, `mean` tells the cost of being perturbed.
    """
    if minus is None:
        return {"return": plus}
    return {"max": np.maximum(plus, minus), "gap": np.abs(plus - minus), "mean": (plus + minus) / 2}


TARGETS = tuple(targets(np.zeros(0), np.zeros(0)))  # of pairs


@dataclass(frozen=True)
class Estimate:
    """A number, with its values in resamples (R,) for an interval."""

    value: float
    resampled: FloatArray

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.resampled - other.resampled)

    @property
    def interval(self) -> tuple[float, float]:
        low, high = np.quantile(self.resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def to_json(self) -> dict[str, float]:
        low, high = self.interval
        return {"value": _short(self.value), "low": _short(low), "high": _short(high)}

    @staticmethod
    def average(estimates: list[Estimate]) -> Estimate:
        return Estimate(float(np.mean([e.value for e in estimates])), np.mean([e.resampled for e in estimates], axis=0))


@dataclass(frozen=True)
class Agreement:
    """Agreement of a score with a target."""

    spearman: Estimate
    kendall: Estimate
    overlap: float  # share of the target's top b that the score's top b holds; b / N by chance

    def to_json(self) -> dict[str, object]:
        return {
            "spearman": self.spearman.to_json(),
            "kendall": self.kendall.to_json(),
            "overlap": _short(self.overlap),
        }

    @staticmethod
    def average(agreements: list[Agreement]) -> Agreement:
        return Agreement(
            Estimate.average([a.spearman for a in agreements]),
            Estimate.average([a.kendall for a in agreements]),
            float(np.mean([a.overlap for a in agreements])),
        )


class Order:
    """The order of the candidates by some values (N,), with its ranks in every resample."""

    def __init__(self, values: FloatArray, resamples: Resamples):
        self.values, self.resamples = values, resamples

    def agreement(self, other: Order, b: int) -> Agreement:
        stats = require("scipy.stats", "studies")
        shared = np.intersect1d(top(self.values, b), top(other.values, b))
        if np.ptp(self.values) == 0 or np.ptp(other.values) == 0:  # equal values give no order: the agreement is 0
            nothing = Estimate(0.0, np.zeros(self.resamples.count))
            return Agreement(nothing, nothing, len(shared) / b)
        return Agreement(
            Estimate(float(stats.spearmanr(self.values, other.values).statistic), self._spearman(other)),
            Estimate(float(stats.kendalltau(self.values, other.values).statistic), self._kendall(other)),
            len(shared) / b,
        )

    def _spearman(self, other: Order) -> FloatArray:
        """The correlation of the ranks in every resample, (R,)."""
        correlation: FloatArray = np.einsum("rn,rn->r", self._ranks, other._ranks)
        return correlation

    @cached_property
    def _ranks(self) -> FloatArray:
        """(R, N) ranks within each resample, centred and of length 1; 0 where all are equal."""
        ranks: FloatArray = require("scipy.stats", "studies").rankdata(self.values[self.resamples.index], axis=1)
        ranks -= ranks.mean(axis=1, keepdims=True)
        length = np.linalg.norm(ranks, axis=1, keepdims=True)
        return ranks / np.where(length > 0, length, 1.0)

    def _kendall(self, other: Order) -> FloatArray:
        """tau-b in every resample, (R,), as quadratic forms of how often each candidate was drawn."""
        agree = self.resamples.form(self._signs * other._signs)
        length = np.sqrt(self._pairs * other._pairs)
        return agree / np.where(length > 0, length, 1.0)

    @cached_property
    def _signs(self) -> FloatArray:
        return np.sign(np.subtract.outer(self.values, self.values))

    @cached_property
    def _pairs(self) -> FloatArray:
        """(R,) ordered pairs that are not tied."""
        return self.resamples.form(np.abs(self._signs))


class Resamples:
    """R draws of N candidates with replacement."""

    def __init__(self, N: int, count: int, seed: int = 0):
        self.N, self.count = N, count
        self.index: IntArray = np.random.default_rng(seed).integers(N, size=(count, N))

    @cached_property
    def _drawn(self) -> FloatArray:
        """(R, N) how often each candidate was drawn."""
        drawn = np.zeros((self.count, self.N))
        np.add.at(drawn, (np.arange(self.count)[:, None], self.index), 1.0)
        return drawn

    def form(self, matrix: FloatArray) -> FloatArray:
        """Sum over the pairs of each resample of the matrix (N, N) at them, (R,)."""
        with one_blas_thread():
            total: FloatArray = np.einsum("rn,rn->r", self._drawn @ matrix, self._drawn)
        return total


def split_halves(returns: FloatArray, splits: int = 20, seed: int = 0) -> dict[str, dict[str, float]]:
    """How well two halves of the episodes (signs, N, E) agree on each target, and the ceiling for a perfect ranker.

    Returns:
        by target: `halves`, their Spearman correlation averaged over splits; `ceiling`, about what the true scores
        themselves would reach against the estimate from all E episodes (the square root of its reliability, after
        Spearman and Brown).
    """
    stats = require("scipy.stats", "studies")
    rng = np.random.default_rng(seed)
    half = returns.shape[2] // 2
    found: dict[str, list[float]] = {name: [] for name in targets(*returns.mean(axis=2))}
    for _ in range(splits):
        order = rng.permutation(returns.shape[2])
        one, two = (targets(*returns[:, :, part].mean(axis=2)) for part in (order[:half], order[half : 2 * half]))
        for name in found:
            flat = np.ptp(one[name]) == 0 or np.ptp(two[name]) == 0
            found[name].append(0.0 if flat else float(stats.spearmanr(one[name], two[name]).statistic))
    halves = {name: float(np.mean(values)) for name, values in found.items()}
    return {
        name: {"halves": _short(r), "ceiling": _short(float(np.sqrt(max(2 * r / (1 + r), 0.0))))}
        for name, r in halves.items()
    }


def _short(value: float) -> float:
    return round(value, 4)
