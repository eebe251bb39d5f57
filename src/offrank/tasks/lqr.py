"""The linear quadratic regulator of the paper: x' = A x + B u + w with w ~ N(0, I), cost x'Qx + u'Ru per step.

The instance is that of S. Dean, H. Mania, N. Matni, B. Recht, S. Tu, "On the sample complexity of the linear quadratic
regulator", 2017: a slightly unstable system (spectral radius 1.024) whose actions cost a thousand times as much as its
states, so that doing nothing is best unless the horizon is long. The optimal controller is known, and the cost of any
linear controller has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from offrank.core.arrays import BoolArray, FloatArray, Metrics
from offrank.core.noise import Purpose, philox
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy

NAME = "LQR"


def _matrix(*rows: tuple[float, ...]) -> FloatArray:
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class LQR:
    """The system. Methods are batched over E episodes; the result of an episode does not depend on the others."""

    name: str = NAME
    A: FloatArray = field(default_factory=lambda: _matrix((1.01, 0.01, 0), (0.01, 1.01, 0.01), (0, 0.01, 1.01)))
    B: FloatArray = field(default_factory=lambda: np.eye(3))
    Q: FloatArray = field(default_factory=lambda: 1e-3 * np.eye(3))
    R: FloatArray = field(default_factory=lambda: np.eye(3))
    horizon: int = 300
    limit: float = 1e6  # a state beyond it has exploded: the episode ends

    @property
    def worst(self) -> float:
        """The largest cost of a step: that of a state at the limit."""
        return float(self.limit**2 * self.Q.trace())

    def rest(self, steps: int) -> float:
        """The cost charged for the remaining steps of an exploded episode."""
        return steps * self.worst

    def hold(self, x: FloatArray) -> FloatArray:
        """States clipped to the limit."""
        return np.clip(np.nan_to_num(x, nan=self.limit), -self.limit, self.limit)

    def disturbances(self, seed: int, horizon: int) -> FloatArray:
        """Process noise (T, n) of the episode with a seed; the first steps do not depend on the horizon."""
        return Generator(philox(seed, Purpose.PROCESS_NOISE)).standard_normal((horizon, len(self.A)))

    def start(self, episodes: int) -> FloatArray:
        """Start states (E, n): the origin."""
        return np.zeros((episodes, len(self.A)))

    def step(self, x: FloatArray, u: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """One step of E episodes.

        Args:
            x, u, w: states (E, n), actions (E, p) and disturbances (E, n).

        Returns:
            The next states, the costs (E,), and which episodes exploded.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            cost = _form(self.Q, x) + _form(self.R, u)
            after = _product(self.A, x) + _product(self.B, u) + w
            exploded: BoolArray = ~np.asarray((np.abs(after) <= self.limit).all(axis=1))
            cost = np.where(cost <= self.worst, cost, self.worst)
        return after, cost, exploded

    def exact(self, policy: Policy, theta: FloatArray, whitening: Whitening) -> Metrics:
        """Metrics of a linear policy u = M whitening(x), logged in every iteration: the average cost per step over an
        infinite horizon (infinite if unstable) and the spectral radius of the closed loop. Empty for other policies."""
        if not policy.is_linear:
            return {}
        gain = theta.reshape(policy.p, policy.n) * whitening.scale
        return {"cost": self.cost(gain, -gain @ whitening.mean), "spectral_radius": self.radius(gain)}

    def radius(self, gain: FloatArray) -> float:
        """Spectral radius of the closed loop with u = gain x. The system is stable if it is below 1."""
        return float(np.abs(np.linalg.eigvals(self.A + self.B @ gain)).max())

    def cost(self, gain: FloatArray, offset: FloatArray | None = None) -> float:
        """Average cost per step of u = gain x + offset over an infinite horizon; infinite if unstable."""
        if not self.radius(gain) < 1:
            return float("inf")
        n = len(self.A)
        g = np.zeros(len(gain)) if offset is None else offset
        L = self.A + self.B @ gain
        # the stationary state has mean L mean + B g and covariance L S L' + I
        mean = np.linalg.solve(np.eye(n) - L, self.B @ g)
        S = np.linalg.solve(np.eye(n * n) - np.kron(L, L), np.eye(n).ravel()).reshape(n, n)
        u = gain @ mean + g
        return float(np.trace((self.Q + gain.T @ self.R @ gain) @ S) + mean @ self.Q @ mean + u @ self.R @ u)


def _product(matrix: FloatArray, vectors: FloatArray) -> FloatArray:
    """matrix @ v for each of the vectors (E, n), summed in a fixed order, so that the bits do not depend on E."""
    return _sum([vectors[:, j, None] * matrix[:, j] for j in range(len(matrix))])


def _form(matrix: FloatArray, vectors: FloatArray) -> FloatArray:
    """v' matrix v for each of the vectors (E, n)."""
    return _sum(list((vectors * _product(matrix, vectors)).T))


def _sum(terms: list[FloatArray]) -> FloatArray:
    """Sum of a few arrays. Faster than NumPy's sum over such a short axis."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
