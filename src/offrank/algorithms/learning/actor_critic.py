"""An actor that follows twin critics while they learn: the lesson of `guided`.

TD3's recipe (S. Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018) with a
small actor that follows the mean of both critics instead of the first, layer normalisation in the critics, and updates
between episodes instead of one after each step. All of it is plain arrays under one BLAS thread: same seed, same bits.
On a GPU, the lessons of many runs are one computation (`batched_actor_critic.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.random import Generator

from offrank.algorithms.learning import critics, networks
from offrank.algorithms.learning.device import has_torch
from offrank.algorithms.learning.networks import Floats
from offrank.algorithms.learning.td3 import TD3Settings
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory, part, prefixed
from offrank.core.checks import check_learned
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Purpose, philox
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.space import Space
from offrank.core.work import Lesson

CHUNK = 100  # updates whose batches are drawn together
OUTLIER = np.float32(10.0)  # normalised states are clipped to this
ACTOR_EVERY = 2  # updates of the critics per update of the actor
LEAST_NORM = np.float32(1e-12)  # of weights, to divide by


@dataclass(frozen=True)
class ActorCriticSettings(TD3Settings):
    """Settings of the critics and the actor."""

    batch: int = 256
    critic_rate: float = 3e-4
    slow: float = 0.05  # share by which the slow copies follow, per update: ten times TD3's, to spread values sooner
    n_steps: int = 2  # steps of real rewards in a target
    pessimism: float = 1.0  # 1: targets by the smaller of the critics; 0: by their mean
    level: bool = True  # whether the critics learn how values differ from a common level
    reward_unit: float = 5.0  # deviations of the rewards that are 1 to the critics; 0: rewards as paid

    def check(self) -> None:
        super().check()
        if self.n_steps < 1:
            raise UsageError(f"n_steps = {self.n_steps}: must be at least 1")
        if not 0 <= self.pessimism <= 1:
            raise UsageError(f"pessimism = {self.pessimism}: must be in [0, 1]")
        if self.reward_unit < 0:
            raise UsageError(f"reward_unit = {self.reward_unit}: must not be negative")

    @property
    def optimism(self) -> float:
        """How far a target lies from the smaller of the critics towards the larger."""
        return (1 - self.pessimism) / 2


def new_learner(settings: TD3Settings, policy: Policy, theta: FloatArray, seed: int) -> Memory:
    """An actor (d,) and its critics before their first update: `critic.*` and `actor.*`."""
    q = critics.draw(Generator(philox(seed, Purpose.CRITIC)), 2, policy.n + policy.p, settings.hidden)
    zeros = networks.zeros_like(q)
    still = np.zeros(len(theta), dtype=np.float32)
    numbers: Memory = {"step": np.zeros((), dtype=np.int64)}
    numbers |= {"level": np.zeros((), dtype=np.float32), "unit": np.ones((), dtype=np.float32)}
    critic: Memory = numbers | networks.pack((q, q, zeros, zeros))
    actor: Memory = {"theta": theta.astype(np.float32), "first": still, "second": still}
    return prefixed("critic.", critic) | prefixed("actor.", actor)


@dataclass(frozen=True, eq=False)
class ActorCriticLesson(Lesson):
    """Updates of the critics, and of the actor after every second one of them."""

    settings: ActorCriticSettings
    space: Space
    policy: Policy
    whitening: Whitening
    learner: Memory  # `critic.*` and `actor.*`
    replay: Memory
    updates: int
    seed: int
    iteration: int
    alone: int = 0  # in the first updates the actor does not move, though its moments do
    limit: float | None = None  # the largest norm of the weights between the actor's last two layers; None: any

    @property
    def batch_key(self) -> Hashable:
        """Runs whose networks and batches have the same sizes learn together, whatever their other settings."""
        return self.settings.hidden, self.settings.batch, self.policy, self.space.box_key, self.limit is None

    @classmethod
    def carry_out_together(
        cls, lessons: Sequence[Self], owners: Sequence[object], device: str
    ) -> list[Memory | OffrankError]:
        if not has_torch(device):
            return super().carry_out_together(lessons, owners, device)
        from offrank.algorithms.learning import batched_actor_critic

        return batched_actor_critic.trainer_on(device).train(lessons, owners)

    def carry_out(self) -> Memory:
        """The learner after its updates.

        Raises:
            OffrankError: it became non-finite.
        """
        nets, actor = networks.unpack(part(self.learner, "critic.")), _copies(part(self.learner, "actor."))
        twins = [[one(net, which) for net in nets] for which in range(2)]
        step = before = int(self.learner["critic.step"])
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for at, eps in self._draws():
                step += 1
                z = self._update_critics(twins, actor["theta"], at, eps, step)
                if step % ACTOR_EVERY == 0:
                    rate = self.settings.actor_rate if step > before + self.alone else 0.0
                    self._update_actor([q for q, *_ in twins], actor, z, networks.step_size(rate, step // ACTOR_EVERY))
        return self.outcome(nets, actor)

    def outcome(self, nets: Sequence[Memory], actor: Memory) -> Memory:
        """The result, of the networks and the actor after all updates.

        Raises:
            OffrankError: they are not finite.
        """
        step = int(self.learner["critic.step"]) + self.updates
        level, unit = (np.array(number) for number in self.scale)
        numbers: Memory = {"step": np.array(step, dtype=np.int64), "level": level, "unit": unit}
        out = prefixed("critic.", numbers | networks.pack(nets))
        out |= prefixed("actor.", actor)
        check_learned("the critics or the actor", self.iteration, *out.values())
        return out

    @cached_property
    def scale(self) -> tuple[np.float32, np.float32]:
        """The level and the unit of the values that the networks learn: value = level + unit * output.

        The level is the value of a state if every transition paid the mean of the replay buffer, and ended the episode
        as often. So a slow copy need not climb there, and values of a long horizon differ from 0 by what states differ.
        The unit is a multiple of the deviation of the rewards: large values would take Adam long to reach.
        """
        settings, gain = self.settings, self.replay["gain"]  # 0 where no transition starts, and so is boot
        count = np.count_nonzero(self.replay["ahead"])
        mean, square = gain.sum(dtype=np.float64) / count, np.square(gain, dtype=np.float64).sum() / count
        ends = 1 - self.replay["boot"].sum(dtype=np.float64) / count
        level = mean / max(ends, 1e-6) if settings.level else 0.0
        unit = settings.reward_unit * np.sqrt(max(square - mean**2, 0.0)) / settings.n_steps
        return np.float32(level), np.float32(unit if unit > 0 else 1.0)

    def stream(self) -> Generator:
        """Random numbers of this lesson."""
        return Generator(philox(self.seed, Purpose.CRITIC, self.iteration, 1))

    def _draws(self) -> Iterator[tuple[IntArray, Floats]]:
        """The rows (B,) of each update's batch, and the noise (B, p) on its target's actions in units of the box."""
        settings, random, starts = self.settings, self.stream(), np.flatnonzero(self.replay["ahead"])
        for begin in range(0, self.updates, CHUNK):
            size = (min(CHUNK, self.updates - begin), settings.batch)
            rows = starts[random.integers(len(starts), size=size)]
            noise = settings.target_noise * random.standard_normal((*size, self.policy.p), dtype=np.float32)
            yield from zip(rows, np.clip(noise, -settings.target_noise_clip, settings.target_noise_clip), strict=True)

    def _update_critics(
        self, twins: Sequence[Sequence[Memory]], theta: Floats, at: IntArray, eps: Floats, step: int
    ) -> Floats:
        """One update, in place. Returns the normalised states (B, n) of the batch."""
        replay, settings, scale = self.replay, self.settings, half_range(self.space, self.policy.p)
        z, later = self._normalised(at), self._normalised(at + replay["ahead"][at])
        action = self.space.clip(self.space.clip(self.policy.act_together(theta, later)) + eps * scale)
        now = np.concatenate([z, replay["action"][at] / scale], axis=1)
        then = np.concatenate([later, action / scale], axis=1)
        values = [critics.forward(slow, then)[2] for _, slow, _, _ in twins]
        low, high = np.minimum(*values), np.maximum(*values)
        beyond: Any = low + np.float32(settings.optimism) * (high - low)
        gain, boot = replay["gain"][at, None], replay["boot"][at, None]
        level, unit = self.scale
        y = (gain - level * (1 - boot)) / unit + boot * beyond
        size, share = networks.step_size(settings.critic_rate, step), float(np.float32(settings.slow))
        for q, slow, first, second in twins:
            networks.adam(q, critics.squared_error_gradient(q, now, y), first, second, size)
            networks.follow(slow, q, share)
        return z

    def _update_actor(self, twins: Sequence[Memory], actor: Memory, z: Floats, size: float) -> None:
        """One step of Adam up the critics' mean value, in place."""
        scale, theta = half_range(self.space, self.policy.p), actor["theta"]
        raw = self.policy.act_together(theta, z)
        action = self.space.clip(raw)
        x = np.concatenate([z, action / scale], axis=1)
        first, second = (critics.input_gradient(critic, x)[:, self.policy.n :] for critic in twins)
        g = (first + second) / (2 * scale)
        g = np.where((raw - action) * g > 0, 0, g)  # beyond the box only the way back counts
        downhill = -self.policy.pull_back(theta, z, g) / np.float32(len(z))
        networks.adam({"": theta}, {"": downhill}, {"": actor["first"]}, {"": actor["second"]}, size)
        if self.limit is not None:
            weights = self.policy.layers(theta)[-1].weights
            weights *= min(np.float32(1), np.float32(self.limit) / max(np.linalg.norm(weights), LEAST_NORM))

    def _normalised(self, rows: IntArray) -> Floats:
        z: Floats = normalised(self.whitening, self.replay["state"][rows])
        return z


def value(learner: Memory, space: Space, z: Floats, actions: Floats) -> Floats:
    """The critics' mean value (B,) of actions (B, p) at normalised states (B, n)."""
    q = part(learner, "critic.q.")
    inputs = np.concatenate([np.clip(z, -OUTLIER, OUTLIER), actions / half_range(space, actions.shape[1])], axis=1)
    values = [critics.forward(one(q, which), inputs)[2][:, 0] for which in range(2)]
    mean: Floats = learner["critic.level"] + learner["critic.unit"] * np.mean(values, axis=0)
    return mean


def one(nets: Memory, which: int) -> Memory:
    """Views of one of several networks."""
    return {name: array[which] for name, array in nets.items()}


def normalised(whitening: Whitening, states: Floats) -> Floats:
    """States (B, n) as the learner sees them."""
    z = (states - whitening.mean.astype(np.float32)) * whitening.scale.astype(np.float32)
    return np.clip(z, -OUTLIER, OUTLIER, out=z)


def half_range(space: Space, p: int) -> Floats:
    """Half of the range (p,) of each action; 1 without bounds."""
    if (box := space.box) is None:
        return np.ones(p, dtype=np.float32)
    low, high = box
    half: Any = (high - low) / 2
    return np.where(np.isfinite(half) & (half > 0), half, 1.0).astype(np.float32)


def _copies(arrays: Memory) -> Memory:
    return {name: array.copy() for name, array in arrays.items()}
