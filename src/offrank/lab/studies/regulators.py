"""Controllers that ARS is compared with on LQR: the best one, and two learned from transitions under random inputs.

- nominal control identifies A and B by least squares and takes the best controller of that system;
- LSPI (Lagoudakis and Parr, 2003) learns the quadratic Q-function of a policy by least squares and improves the policy,
  on one batch of data. It needs an initial controller K0 that stabilises the system.

Gains are those of u = gain x. All steps are counted, as for every other method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.random import Generator

from offrank.core.arrays import FloatArray
from offrank.core.errors import require
from offrank.core.noise import Purpose, Role, episode_seeds, philox
from offrank.tasks.lqr import LQR

EXPLORATION = 1.0  # standard deviation of the random input
K0 = -0.5  # LSPI starts from this times the identity: stable, and seven times as costly as the best
IMPROVEMENTS = 10  # of LSPI on each batch of data


def best_gain(task: LQR, A: FloatArray | None = None, B: FloatArray | None = None) -> FloatArray:
    """The gain with the least cost on the task's system, or on another (A, B).

    Raises:
        numpy.linalg.LinAlgError: there is none.
    """
    linalg = require("scipy.linalg", "studies")
    A, B = task.A if A is None else A, task.B if B is None else B
    P = linalg.solve_discrete_are(A, B, task.Q, task.R)
    gain: FloatArray = -np.linalg.solve(task.R + B.T @ P @ B, B.T @ P @ A)
    return gain


def transitions(
    task: LQR, gain: FloatArray, seed: int, steps: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """States, actions, costs and next states of the first `steps` steps of episodes with u = gain x + random input."""
    n, p = task.B.shape
    episodes = -(-steps // task.horizon)
    seeds = episode_seeds(seed, 0, Role.BEHAVIOUR, np.arange(episodes))
    noise = np.stack([task.disturbances(int(s), task.horizon) for s in seeds])
    random = Generator(philox(seed, Purpose.EXPLORATION)).standard_normal((episodes, task.horizon, p))
    x, u, after = (np.empty((episodes, task.horizon, size)) for size in (n, p, n))
    cost = np.empty((episodes, task.horizon))
    state = task.start(episodes)
    for t in range(task.horizon):
        x[:, t], u[:, t] = state, state @ gain.T + EXPLORATION * random[:, t]
        state, cost[:, t], exploded = task.step(state, u[:, t], noise[:, t])
        assert not exploded.any()  # no controller used here diverges within the horizon
        after[:, t] = state
    return x.reshape(-1, n)[:steps], u.reshape(-1, p)[:steps], cost.ravel()[:steps], after.reshape(-1, n)[:steps]


def nominal(task: LQR, seed: int, points: Sequence[int]) -> Iterator[FloatArray | None]:
    """The nominal controller after each number of steps; None where the estimated system has no best controller."""
    n, p = task.B.shape
    x, u, _, after = transitions(task, np.zeros((p, n)), seed, max(points))
    data = np.hstack([x, u, after])
    factor: FloatArray = np.empty((0, data.shape[1]))
    done = 0
    for steps in points:
        # the triangular factor of the data so far replaces it in least squares
        factor = np.asarray(np.linalg.qr(np.vstack([factor, data[done:steps]]), mode="r"))
        AB: FloatArray = np.asarray(np.linalg.lstsq(factor[:, : n + p], factor[:, n + p :], rcond=None)[0].T)
        done = steps
        try:
            yield best_gain(task, AB[:, :n], AB[:, n:])
        except np.linalg.LinAlgError:
            yield None


def lspi(task: LQR, seed: int, points: Sequence[int]) -> Iterator[FloatArray | None]:
    """LSPI's controller after each number of steps; None where the equations have no solution.

    With average cost eta, Q(x, u) = c(x, u) - eta + E Q(x', gain x'). Q is a quadratic form in z = (x, u), so both
    sides are linear in its entries; multiplied by the features of z and summed over the data they are a linear system.
    """
    n, p = task.B.shape
    first = K0 * np.eye(p, n)
    x, u, cost, after = transitions(task, first, seed, max(points))
    features = np.hstack([_products(np.hstack([x, u])), np.ones((len(x), 1))])
    nexts = _products(after)
    k = features.shape[1]
    lefts, rights, costs = np.zeros((k, k)), np.zeros((k, nexts.shape[1])), np.zeros(k)
    done = 0
    for steps in points:
        new = slice(done, steps)
        lefts = lefts + features[new].T @ features[new]
        rights = rights + features[new].T @ nexts[new]
        costs = costs + features[new].T @ cost[new]
        done = steps
        yield _improve(first, lefts, rights, costs) if steps > k else None


def _improve(gain: FloatArray, lefts: FloatArray, rights: FloatArray, costs: FloatArray) -> FloatArray | None:
    """Policy iteration on the sums over one batch."""
    p, n = gain.shape
    for _ in range(IMPROVEMENTS):
        system = lefts.copy()
        system[:, :-1] -= rights @ _products_after(gain)
        try:
            H = _symmetric(np.asarray(np.linalg.solve(system, costs))[:-1], n + p)
            gain = np.asarray(-np.linalg.solve(H[n:, n:], H[n:, :n]))
        except np.linalg.LinAlgError:
            return None
        if not np.isfinite(gain).all():
            return None
    return gain


def _products(z: FloatArray) -> FloatArray:
    """All products z_i z_j with i <= j of vectors (k, d), (k, d (d + 1) / 2)."""
    i, j = np.triu_indices(z.shape[1])
    products: FloatArray = z[:, i] * z[:, j]
    return products


def _products_after(gain: FloatArray) -> FloatArray:
    """The matrix that turns the products of a state into those of (state, gain state), from the right."""
    p, n = gain.shape
    T = np.vstack([np.eye(n), gain])  # (x, gain x) = T x
    i, j = np.triu_indices(n + p)
    a, b = np.triu_indices(n)
    # (T x)_i (T x)_j = sum_ab T_ia T_jb x_a x_b, and x_a x_b is listed once, for a <= b
    both = np.einsum("ia,jb->ijab", T, T)[i, j]
    both = both + np.swapaxes(both, 1, 2) * (1 - np.eye(n))
    products: FloatArray = both[:, a, b].T
    return products


def _symmetric(entries: FloatArray, d: int) -> FloatArray:
    """The symmetric matrix whose quadratic form has these coefficients."""
    H = np.zeros((d, d))
    H[np.triu_indices(d)] = entries
    return (H + H.T) / 2
