"""The members of one generation of a population: explicit parameters, instead of directions around one policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from offrank.algorithms.base import Episodes
from offrank.algorithms.learning import replay
from offrank.algorithms.learning.networks import Floats
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory, Metrics
from offrank.core.candidates import These
from offrank.core.noise import Role, episode_seeds
from offrank.core.normalizer import Normalizer, Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Request, Rollouts
from offrank.core.space import Space
from offrank.core.work import Asking

Critic = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Ran:
    """Episodes that were run, with the parameters of each."""

    thetas: FloatArray  # (E, d)
    rollouts: Rollouts
    request: Request

    def rows(self, generation: Generation, discount: float, n_steps: int = 1) -> list[Memory]:
        """The rows of the episodes for a replay buffer, with actions as the environment took them."""
        made, how = [], (generation.whitening, generation.episodes.reward_shift, n_steps, discount)
        with one_blas_thread():
            for i, (trajectory, theta) in enumerate(zip(self.rollouts.trajectories, self.thetas, strict=True)):
                new = replay.rows(trajectory, generation.policy, theta, *how)
                new["action"] = generation.space.clip(new["action"])
                noise = self.request.step_noise(i)
                if noise is not None and trajectory.actions is None:
                    T = len(trajectory.rewards)
                    new["action"][:T] = generation.space.clip(new["action"][:T] + noise[:T].astype(np.float32))
                made.append(new)
        return made


@dataclass(frozen=True)
class Generation:
    """N members, and what is known before they are run."""

    space: Space
    policy: Policy
    thetas: FloatArray  # (N, d)
    mean: FloatArray  # (d,) of the distribution they were drawn from
    whitening: Whitening
    episodes: Episodes
    seed: int
    iteration: int
    noise: FloatArray | None = None  # (p,) standard deviation of the noise on the actions
    critic: Critic | None = None  # the value of actions (B, p) at normalised states (B, n), once it has learned
    replay: Memory = field(default_factory=dict)  # what it learned from

    def __len__(self) -> int:
        return len(self.thetas)

    def run(
        self, index: IntArray, role: Role = Role.MEMBER, steps: int | None = None, keep: bool = False
    ) -> Asking[Ran]:
        """One episode of each of the members `index` (E,), cut after `steps`."""
        return (yield from self.run_these(self.thetas[index], index, role, steps, keep))

    def behave(self, count: int) -> Asking[Ran]:
        """`count` episodes of the mean, with their trajectories."""
        thetas = np.repeat(self.mean[None], count, axis=0)
        return (yield from self.run_these(thetas, np.arange(count), Role.BEHAVIOUR, None, True))

    def values(self, theta: FloatArray, states: FloatArray) -> FloatArray:
        """The critic's values (S,) of the actions of a policy at states (S, n)."""
        assert self.critic is not None
        z = self.whitening(states).astype(np.float32)
        with one_blas_thread():
            action = self.space.clip(self.policy.act_together(theta.astype(np.float32), z))
            return self.critic(z, action).astype(np.float64)

    def value_beside_return(self, ran: Ran, discount: float) -> Metrics:
        """The critic's mean value of the policies that were run at their start states, and their mean discounted
        return."""
        values, discounted = [], []
        for trajectory, theta in zip(ran.rollouts.trajectories, ran.thetas, strict=True):
            values.append(self.values(theta, trajectory.observations[:1])[0])
            powers = discount ** np.arange(len(trajectory.rewards))
            discounted.append((powers * trajectory.rewards).sum())
        return {"q_start": float(np.mean(values)), "return_discounted": float(np.mean(discounted))}

    def run_these(
        self, thetas: FloatArray, index: IntArray, role: Role, steps: int | None = None, keep: bool = False
    ) -> Asking[Ran]:
        """One episode of each of the parameters (E, d), numbered `index` (E,) within their role."""
        length = self.episodes.length(self.iteration)
        request = Request(
            policy=self.policy,
            candidates=These(thetas),
            whitening=self.whitening,
            seeds=episode_seeds(self.seed, self.iteration, role, index),
            roles=np.full(len(index), role, dtype=np.int64),
            index=index,
            horizon=length if steps is None else min(steps, length),
            keep=keep,
            noise=self.noise if keep else None,
        )
        rollouts = yield request
        return Ran(thetas, rollouts, request)


def merged(normalizer: Normalizer, ran: Sequence[Ran]) -> Normalizer:
    """The normaliser after some episodes."""
    for some in ran:
        normalizer = normalizer.merge(some.rollouts.moments)
    return normalizer
