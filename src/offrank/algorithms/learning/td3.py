"""Twin critics and actors that follow their gradient, as TD3 has them.

S. Fujimoto, H. van Hoof, D. Meger, "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018
(https://arxiv.org/abs/1802.09477): targets are the minimum of two slow copies at a slightly perturbed action. States
are normalised as the policies see them, actions clipped to the environment's box where it has one. Everything is plain
arrays in single precision, under one BLAS thread: same seed, same bits. On a GPU, the lessons of many runs are one
computation (`batched_td3.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.random import Generator

from offrank.algorithms.learning import networks
from offrank.algorithms.learning.device import has_torch
from offrank.algorithms.learning.networks import Floats
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory, part
from offrank.core.checks import check_learned
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Purpose, philox
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.space import Space
from offrank.core.work import Lesson

CHUNK = 200  # updates whose batches are drawn together


@dataclass(frozen=True)
class TD3Settings:
    """Settings of critics and actors, fields of the algorithms that have them."""

    hidden: int = 256  # units in each of a critic's two hidden layers
    batch: int = 100  # transitions per update
    discount: float = 0.99  # factor per step by which later rewards count less
    critic_rate: float = 1e-3  # learning rate of the critics
    actor_rate: float = 1e-3  # learning rate of the actors
    slow: float = 0.005  # share by which the slow copies follow, per update
    target_noise: float = 0.2  # deviation of the noise on the target's action
    target_noise_clip: float = 0.5  # largest noise on the target's action
    replay: int = 1_000_000  # transitions remembered

    def check(self) -> None:
        for name in ("hidden", "batch", "replay"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("critic_rate", "actor_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must be positive")
        for name in ("target_noise", "target_noise_clip"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must not be negative")
        for name, low in (("discount", 0.0), ("slow", 0.0)):
            if not low <= getattr(self, name) <= 1:
                raise UsageError(f"{name} = {getattr(self, name)}: must be in [0, 1]")


def new_critics(settings: TD3Settings, policy: Policy, seed: int) -> Memory:
    """Twin critics before their first update, with their slow copies and Adam's moments."""
    q = networks.draw(Generator(philox(seed, Purpose.CRITIC)), 2, policy.n + policy.p, settings.hidden)
    zeros = networks.zeros_like(q)
    return {"step": np.zeros((), dtype=np.int64), **networks.pack((q, q, zeros, zeros))}


@dataclass(frozen=True, eq=False)
class TD3Lesson(Lesson):
    """Updates of the critics and of g actors. The critics' are in g shares: share i has the target actions of actor i
    as it was drawn. Then actor i follows the first critic as it was after share i."""

    settings: TD3Settings
    space: Space
    policy: Policy
    whitening: Whitening
    critics: Memory
    replay: Memory
    thetas: FloatArray  # (g, d) of the actors
    critic_updates: int  # in all
    actor_updates: int  # per actor
    seed: int
    iteration: int

    @property
    def batch_key(self) -> Hashable:
        return self.settings, self.policy, len(self.thetas), self.space.box_key

    @property
    def shares(self) -> list[int]:
        """The number of the critics' updates with each actor's actions, (g,)."""
        each, more = divmod(self.critic_updates, len(self.thetas))
        return [each + (member < more) for member in range(len(self.thetas))]

    @classmethod
    def carry_out_together(
        cls, lessons: Sequence[Self], owners: Sequence[object], device: str
    ) -> list[Memory | OffrankError]:
        if not has_torch(device):
            return super().carry_out_together(lessons, owners, device)
        from offrank.algorithms.learning import batched_td3

        return batched_td3.trainer_on(device).train(lessons, owners)

    def carry_out(self) -> Memory:
        """The critics after their updates, and `thetas` (g, d) of the actors after theirs.

        Raises:
            OffrankError: they became non-finite.
        """
        q, slow, first, second = nets = networks.unpack(self.critics)
        step = int(self.critics["step"])
        starts, actors = np.flatnonzero(self.replay["ahead"]), self.thetas.astype(np.float32)
        followed: list[Memory] = []  # the first critic after each share
        trained = np.empty_like(self.thetas)
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            random = self.stream(0)
            for theta, share in zip(actors, self.shares, strict=True):
                for rows, noise in self._draws(random, starts, share, noisy=True):
                    for at, eps in zip(rows, noise, strict=True):
                        step += 1
                        self._update_critics(q, slow, first, second, theta, at, eps, step)
                followed.append({name: value[:1].copy() for name, value in q.items()})
            for member, (theta, critic) in enumerate(zip(actors, followed, strict=True)):
                trained[member] = self._follow(critic, theta, self.stream(1 + member), starts)
        return self.outcome(nets, trained)

    def outcome(self, nets: Sequence[Memory], thetas: FloatArray) -> Memory:
        """The result, of the networks and actors after all updates.

        Raises:
            OffrankError: they are not finite.
        """
        step = int(self.critics["step"]) + self.critic_updates
        out: Memory = {"step": np.array(step, dtype=np.int64), "thetas": thetas, **networks.pack(nets)}
        check_learned("the critics or actors", self.iteration, *out.values())
        return out

    def stream(self, which: int) -> Generator:
        """Random numbers of this lesson: 0 for the critics, 1 + i for actor i."""
        return Generator(philox(self.seed, Purpose.CRITIC, self.iteration, 1 + which))

    def _draws(self, random: Generator, starts: IntArray, updates: int, noisy: bool) -> Any:
        """Rows of the batches (u, B), and noise on the target's actions (u, B, p), some updates at a time."""
        for begin in range(0, updates, CHUNK):
            size = (min(CHUNK, updates - begin), self.settings.batch)
            rows = starts[random.integers(len(starts), size=size)]
            deviation, limit = self.settings.target_noise, self.settings.target_noise_clip
            noise = (
                random.standard_normal((*size, self.policy.p), dtype=np.float32) if noisy else np.zeros((size[0], 0))
            )
            yield rows, np.clip(deviation * noise, -limit, limit)

    def _update_critics(
        self,
        q: Memory,
        slow: Memory,
        first: Memory,
        second: Memory,
        theta: Floats,
        at: IntArray,
        eps: Floats,
        step: int,
    ) -> None:
        replay, settings = self.replay, self.settings
        z, later = self._normalised(replay["state"][at]), self._normalised(replay["state"][at + replay["ahead"][at]])
        action = self.space.clip(self.space.clip(self.policy.act_together(theta, later)) + eps)
        beyond = networks.forward(slow, np.concatenate([later, action], axis=1))[2].min(axis=0)
        y = replay["gain"][at, None] + replay["boot"][at, None] * beyond
        x = np.concatenate([z, replay["action"][at]], axis=1)
        gradient = networks.squared_error_gradient(q, x, np.broadcast_to(y, (2, *y.shape)))
        networks.adam(q, gradient, first, second, networks.step_size(settings.critic_rate, step))
        networks.follow(slow, q, float(np.float32(settings.slow)))

    def _follow(self, critic: Memory, theta: Floats, random: Generator, starts: IntArray) -> Floats:
        """An actor after its updates: gradient ascent on a critic's value, by Adam from zero moments."""
        nets, first, second = ({"theta": array} for array in (theta.copy(), np.zeros_like(theta), np.zeros_like(theta)))
        step = 0
        for rows, _ in self._draws(random, starts, self.actor_updates, noisy=False):
            for at in rows:
                step += 1
                z = self._normalised(self.replay["state"][at])
                raw = self.policy.act_together(nets["theta"], z)
                action = self.space.clip(raw)
                g = networks.input_gradient(critic, np.concatenate([z, action], axis=1))[:, self.policy.n :]
                g = np.where(action == raw, g, 0)  # beyond the box an action changes nothing
                uphill = self.policy.pull_back(nets["theta"], z, g) / len(at)
                size = networks.step_size(self.settings.actor_rate, step)
                networks.adam(nets, {"theta": -uphill}, first, second, size)
        trained: Floats = nets["theta"]
        return trained

    def _normalised(self, states: Floats) -> Floats:
        whitening = self.whitening
        z: Floats = (states - whitening.mean.astype(np.float32)) * whitening.scale.astype(np.float32)
        return z


def first_value(critics: Memory, z: Floats, actions: Floats) -> Floats:
    """The first critic's values (B,) of actions (B, p) at normalised states (B, n)."""
    first = {name: value[:1] for name, value in part(critics, "q.").items()}
    values: Floats = networks.forward(first, np.concatenate([z, actions], axis=1))[2][0, :, 0]
    return values
