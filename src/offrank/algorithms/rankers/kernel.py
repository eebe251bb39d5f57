"""The off-policy ranking of the paper: score every direction on a few rollouts of the unperturbed policy.

Eshwar S R, S. Kolathaya, G. Thoppe, "Improving Sample Efficiency in Evolutionary RL Using Off-Policy Ranking", 2023,
(https://arxiv.org/abs/2208.10583), Algorithm 1, steps 6 and 7, and the equation for f:

    f(delta, h) = 1/N_d sum_t exp(-||nu delta z_t||^2 / h^2) Q_t

over the N_d behaviour transitions, with z_t the normalised state and Q_t the centred reward-to-go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers.base import Ranker, Ranking, top
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Memory
from offrank.core.checks import check_scale
from offrank.core.errors import UsageError
from offrank.core.rollouts import Rollouts
from offrank.core.work import Asking

CHUNK = 16  # directions scored in one matrix product: fixed, because the bits depend on it


@dataclass(frozen=True)
class Behaviour(Ranker):
    """Base class of rankers that use rollouts of the unperturbed policy."""

    preset: ClassVar[str | None] = "kernel"  # the paper's n_b and h

    n_behaviour: int = 1  # n_b, rollouts of the unperturbed policy per iteration

    def __post_init__(self) -> None:
        if self.n_behaviour < 1:
            raise UsageError(f"n_behaviour = {self.n_behaviour}: at least one behaviour rollout is needed")


@dataclass(frozen=True)
class Kernel(Behaviour):
    """The paper's ranking: directions are scored on rollouts of the current policy. n_b + 2b episodes per iteration."""

    name: ClassVar[str] = "kernel"

    bandwidth: float = 0.5  # h, bandwidth of the kernel

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale("bandwidth", self.bandwidth)

    def rank(self, proposal: Proposal, memory: Memory) -> Asking[Ranking]:
        behaviour = yield from proposal.behave(self.n_behaviour)
        Q = rewards_to_come(behaviour, proposal.episodes.reward_shift)
        z = normalised_states(proposal, behaviour)
        f = kernel_scores(proposal, z, Q, self.bandwidth)
        return Ranking(
            chosen=top(f, proposal.b),
            scores=f,
            behaviour=behaviour,
            metrics={"q_mean": float(Q.mean()), "q_negative": float((Q < 0).mean()), "h": self.bandwidth},
        )


def normalised_states(proposal: Proposal, behaviour: Rollouts) -> FloatArray:
    """z_t of all behaviour transitions, (N_d, n)."""
    return proposal.whitening(np.concatenate([t.observations for t in behaviour.trajectories]))


def rewards_to_come(behaviour: Rollouts, reward_shift: float) -> FloatArray:
    """Q_t = sum_{k >= t} (r_k - eta) over the rest of the trajectory, (N_d,); eta is the mean of all rewards."""
    rewards = [t.rewards - reward_shift for t in behaviour.trajectories]
    eta = np.concatenate(rewards).mean()
    return np.concatenate([np.cumsum((r - eta)[::-1])[::-1] for r in rewards])


def kernel_scores(proposal: Proposal, z: FloatArray, Q: FloatArray, h: float) -> FloatArray:
    """f of every direction, (N,), from z (N_d, n) and Q (N_d,)."""
    with one_blas_thread():
        return np.concatenate([np.exp(-change / h**2) @ Q for change in action_changes(proposal, z)]) / len(Q)


def action_changes(proposal: Proposal, z: FloatArray) -> Iterator[FloatArray]:
    """Squared change of the action by each direction at each state, as arrays (CHUNK, N_d) of CHUNK directions each.

    ||nu delta_k z_t||^2 for a linear policy, where both signs are equal; otherwise the mean over both signs.
    """
    changes = _linear_changes if proposal.policy.is_linear else _changes
    for first in range(0, proposal.N, CHUNK):
        delta = proposal.directions.take(np.arange(first, min(first + CHUNK, proposal.N)))
        yield changes(proposal, z, delta)


def _linear_changes(proposal: Proposal, z: FloatArray, delta: FloatArray) -> FloatArray:
    m, n, p = len(delta), proposal.policy.n, proposal.policy.p
    live = np.flatnonzero(proposal.whitening.scale)  # z is 0 for features that are switched off
    change = delta.reshape(m, p, n)[:, :, live].reshape(m * p, len(live)) @ (proposal.scale * z[:, live].T)
    np.square(change, out=change)
    total: FloatArray = change.reshape(m, p, len(z)).sum(axis=1)
    return total


def _changes(proposal: Proposal, z: FloatArray, delta: FloatArray) -> FloatArray:
    policy, theta, step = proposal.policy, proposal.theta, proposal.scale * delta
    now = policy.act_together(theta, z)
    plus, minus = (np.square(policy.act_together(moved, z) - now).sum(axis=2) for moved in (theta + step, theta - step))
    mean: FloatArray = (plus + minus) / 2
    return mean
