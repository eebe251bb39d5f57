"""The off-policy ranking of the paper: score every direction on a few rollouts of the unperturbed policy.

Eshwar S R, S. Kolathaya, G. Thoppe, "Improving Sample Efficiency in Evolutionary RL Using Off-Policy Ranking", 2023,
(https://arxiv.org/abs/2208.10583), Algorithm 1, steps 6 and 7, and the equation for f:

    f(delta, h) = 1/N_d sum_t exp(-||nu delta z_t||^2 / h^2) Q_t

over the N_d behaviour transitions, z_t the normalised state and Q_t the rewards to come, less their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory
from offrank.core.candidates import Asking, Candidates
from offrank.core.errors import UsageError
from offrank.core.rollouts import Rollouts

CHUNK = 16  # directions scored in one product: fixed, so that the bits are


@dataclass(frozen=True)
class Behaviour(Ranker):
    """Base of the rankers that look at rollouts of the unperturbed policy."""

    needs_continuous_actions: ClassVar[bool] = True

    n_behaviour: int = 1  # n_b, rollouts of the unperturbed policy an iteration

    def __post_init__(self) -> None:
        if self.n_behaviour < 1:
            raise UsageError(
                f"n_behaviour = {self.n_behaviour}: at least one behaviour rollout is needed "
                "(the ranker `reuse` needs none: it looks at the last iteration's own episodes)"
            )


@dataclass(frozen=True)
class Kernel(Behaviour):
    """OP-ARS's ranker: n_b + 2b episodes an iteration."""

    name: ClassVar[str] = "kernel"

    bandwidth: float = 0.5  # h
    relative_bandwidth: bool = False  # h in units of the median action change, whatever the task's scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bandwidth > 0:
            raise UsageError(f"bandwidth = {self.bandwidth}: must be positive")

    def rank(self, candidates: Candidates, memory: Memory) -> Asking[Ranking]:
        behaviour = yield from candidates.behave(self.n_behaviour)
        Q = rewards_to_come(behaviour, candidates.episodes.reward_shift)
        z = normalised_states(candidates, behaviour)
        h = self.bandwidth * (median_change(candidates, z) if self.relative_bandwidth else 1.0)
        f = kernel_scores(candidates, z, Q, h)
        return Ranking(
            chosen=top(f, candidates.b),
            scores=f,
            behaviour=behaviour,
            metrics={"q_mean": float(Q.mean()), "q_negative": float((Q < 0).mean()), "h": h},
        )


def normalised_states(candidates: Candidates, behaviour: Rollouts) -> FloatArray:
    """z_t of all behaviour transitions, (N_d, n): the states as the policy acted on them."""
    return candidates.whitening(np.concatenate([t.observations for t in behaviour.trajectories]))


def rewards_to_come(behaviour: Rollouts, reward_shift: float) -> FloatArray:
    """Q_t = sum_{k >= t} (r_k - eta) to the end of each trajectory, (N_d,); eta is the mean over all transitions."""
    rewards = [t.rewards - reward_shift for t in behaviour.trajectories]
    eta = np.concatenate(rewards).mean()
    return np.concatenate([np.cumsum((r - eta)[::-1])[::-1] for r in rewards])


def kernel_scores(candidates: Candidates, z: FloatArray, Q: FloatArray, h: float) -> FloatArray:
    """f of every direction, (N,), from z (N_d, n) and Q (N_d,)."""
    with one_blas_thread():
        return np.concatenate([np.exp(-change / h**2) @ Q for change in action_changes(candidates, z)]) / len(Q)


def median_change(candidates: Candidates, z: FloatArray) -> float:
    """Median of ||nu delta z|| over states and the first directions: a scale for h that needs no grid."""
    with one_blas_thread():
        return float(np.sqrt(np.median(next(action_changes(candidates, z))))) or 1.0


def action_changes(candidates: Candidates, z: FloatArray) -> Iterator[FloatArray]:
    """||nu delta_k z_t||^2 for each direction and state, CHUNK directions at a time as (CHUNK, N_d)."""
    live = np.flatnonzero(candidates.whitening.scale)  # z is 0 in the features that are switched off
    zT = candidates.scale * z[:, live].T
    p = candidates.M.shape[0]
    for first in range(0, candidates.N, CHUNK):
        delta = candidates.directions.take(np.arange(first, min(first + CHUNK, candidates.N)))
        change = delta[:, :, live].reshape(-1, len(live)) @ zT
        np.square(change, out=change)
        yield change.reshape(-1, p, len(z)).sum(axis=1)
