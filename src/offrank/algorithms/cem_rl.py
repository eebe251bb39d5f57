"""The cross-entropy method over a policy's parameters, and CEM-RL: half of the population follows a critic's gradient.

A. Pourchot, O. Sigaud, "CEM-RL: Combining evolutionary and gradient-based methods for policy search", ICLR 2019
(https://arxiv.org/abs/1810.01222), Algorithm 1, with TD3's critics. A generation is drawn from a diagonal Gaussian;
some members get gradient steps; all are run; the better half, weighted by log rank, is the next mean and variance; an
additive variance decays.

What differs from the published code: policies are any of ours (theirs has 400 and 300 tanh units and a tanh at its
output: `mlp:400,300` without the last, clipped to the environment's bounds), critics have two equal layers of rectified
units (theirs 400 and 300 leaky ones), and states are normalised (`normalise_states`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.base import Algorithm
from offrank.algorithms.learning import networks, replay, td3
from offrank.algorithms.learning.td3 import TD3Lesson, TD3Settings
from offrank.algorithms.rankers import OnPolicy
from offrank.algorithms.rankers.base import Ranker
from offrank.core.arrays import FloatArray, IntArray, Memory, Metrics, part, prefixed
from offrank.core.candidates import These
from offrank.core.errors import OffrankError, UsageError
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.normalizer import Normalizer, Whitening
from offrank.core.rollouts import Request, Rollouts
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy


@dataclass(frozen=True)
class CEMSettings:
    """Settings of the distribution."""

    name: ClassVar[str] = "cem"
    suggests: ClassVar[dict[str, Any]] = {"reward_shift": 0.0}  # rewards as paid, as published
    eval_steps: ClassVar[int] = 10_000  # between evaluations: a generation of whole episodes is as long

    population: int = 10  # members per generation
    elites: int = 5  # the best ones, which make the next distribution
    start_variance: float = 1e-3  # of every parameter
    extra_variance: float = 1e-3  # added to the elites' in the first generation
    least_variance: float = 1e-5  # what that decays to
    variance_decay: float = 0.95  # per generation
    normalise_states: bool = True  # ours: the published code does not

    def __post_init__(self) -> None:
        if self.population < 2:
            raise UsageError(f"population = {self.population}: must be at least 2")
        if not 1 <= self.elites <= self.population:
            raise UsageError(f"elites = {self.elites}: must be from 1 to the population, {self.population}")
        for name in ("start_variance", "extra_variance", "least_variance"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must not be negative")
        if not 0 <= self.variance_decay <= 1:
            raise UsageError(f"variance_decay = {self.variance_decay}: must be in [0, 1]")


@dataclass(frozen=True)
class CEMRLSettings(TD3Settings, CEMSettings):
    """Those of the distribution, and of the members that follow the critic."""

    name: ClassVar[str] = "cem-rl"
    needs_bounds: ClassVar[bool] = True  # an actor that follows a critic leaves the range of what was tried

    gradient_members: int = 5  # that get gradient steps before they are run
    warmup_steps: int = 10_000  # of training before the first gradient step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()
        if not 1 <= self.gradient_members <= self.population:
            raise UsageError(
                f"gradient_members = {self.gradient_members}: must be from 1 to the population, {self.population} "
                "(the algorithm cem has none)"
            )
        if self.warmup_steps < 0:
            raise UsageError(f"warmup_steps = {self.warmup_steps}: must not be negative")


@dataclass(frozen=True)
class CEM(Algorithm):
    """Draw, run, and move the distribution to the better half."""

    settings: CEMSettings
    ranker: Ranker

    def __post_init__(self) -> None:
        if not isinstance(self.ranker, OnPolicy):
            raise UsageError(
                f"{self.settings.name} runs every member: it takes no ranker ({self.ranker.name} was given)"
            )
        if self.episodes.probe_share > 0:
            raise UsageError(
                f"probe_share = {self.episodes.probe_share:g}: {self.settings.name} does not search for the length of "
                "its episodes; train_horizon sets it"
            )

    def start(self, seed: int) -> State:
        mean, settings = self.kind.start(seed), self.settings
        memory: Memory = {
            "mean": mean,
            "variance": np.full_like(mean, settings.start_variance),
            "extra": np.array(settings.extra_variance),
        }
        return State(seed, Normalizer.empty(self.kind.n), memory=memory)

    def policy(self, state: State) -> TrainedPolicy:
        return TrainedPolicy.for_space(self.space, self.kind, state.memory["mean"], self.whitening(state))

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        # draw
        members = self.draw(state)
        # run
        rollouts = yield self.request(state, members)
        # update
        moved, metrics = self.update(state, members, rollouts)
        return self.after(state, rollouts, state.memory | moved), metrics

    def draw(self, state: State) -> FloatArray:
        """The members (population, d) of a generation: in antithetic halves, if their number is even."""
        mean, variance, count = state.memory["mean"], state.memory["variance"], self.settings.population
        halves = 2 if count % 2 == 0 else 1
        drawn = Directions(state.seed, state.iteration, count // halves, len(mean)).take(np.arange(count // halves))
        eps = np.concatenate([drawn, -drawn]) if halves == 2 else drawn
        members: FloatArray = mean + eps * np.sqrt(variance)
        return members

    def request(self, state: State, members: FloatArray, keep: bool = False) -> Request:
        """One episode of every member."""
        index = np.arange(len(members))
        return Request(
            policy=self.kind,
            candidates=These(members),
            whitening=self.whitening(state),
            seeds=episode_seeds(state.seed, state.iteration, Role.MEMBER, index),
            roles=np.full(len(index), Role.MEMBER, dtype=np.int64),
            index=index,
            horizon=self.episodes.length(state.iteration),
            keep=keep,
        )

    def update(self, state: State, members: FloatArray, rollouts: Rollouts) -> tuple[Memory, Metrics]:
        """The distribution after a generation, as part of the memory, and what to log."""
        settings, returns = self.settings, self.episodes.returns(rollouts)
        best = self.elites(returns)
        weights = np.log(settings.elites + 1) - np.log(np.arange(1, settings.elites + 1))
        weights /= weights.sum()
        decay = settings.variance_decay
        extra = decay * float(state.memory["extra"]) + (1 - decay) * settings.least_variance
        gap = members[best] - state.memory["mean"]
        mean = (weights[:, None] * members[best]).sum(axis=0)
        variance = (weights[:, None] * gap * gap).sum(axis=0) / settings.elites + extra
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise OffrankError(f"the distribution became non-finite in iteration {state.iteration}")
        totals = rollouts.totals
        metrics = {
            "return_mean": float(totals.mean()),
            "return_std": float(totals.std()),
            "return_best": float(totals.max()),
            "weights_norm": float(np.linalg.norm(mean)),
            "variance_mean": float(variance.mean()),
        }
        return {"mean": mean, "variance": variance, "extra": np.array(extra)}, metrics

    def elites(self, returns: FloatArray) -> IntArray:
        """The best members, best first; of equal ones the first."""
        return np.argsort(-returns, kind="stable")[: self.settings.elites]

    def after(self, state: State, rollouts: Rollouts, memory: Memory) -> State:
        normalizer = state.normalizer.merge(rollouts.moments)
        return replace(state, normalizer=normalizer, iteration=state.iteration + 1, memory=memory)

    def whitening(self, state: State) -> Whitening:
        return state.normalizer.freeze() if self.settings.normalise_states else Whitening.identity(self.kind.n)


@dataclass(frozen=True)
class CEMRL(CEM):
    """The same, with gradient steps for the first members before all are run."""

    settings: CEMRLSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space.discrete:
            raise UsageError("cem-rl follows the gradient of actions, so it needs continuous ones: use cem")

    def start(self, seed: int) -> State:
        state = super().start(seed)
        memory = prefixed("critic.", td3.new_critics(self.settings, self.kind, seed))
        memory |= prefixed("replay.", replay.empty(self.kind))
        return replace(state, memory=state.memory | memory | {"last_steps": np.zeros((), dtype=np.int64)})

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        settings, memory = self.settings, dict(state.memory)
        # draw
        members = self.draw(state)
        # follow the critic: as many updates as the last generation had steps
        learning = state.steps > settings.warmup_steps
        if learning:
            steps, count = int(memory["last_steps"]), settings.gradient_members
            learned = yield TD3Lesson(
                settings=settings,
                space=self.space,
                policy=self.kind,
                whitening=self.whitening(state),
                critics=part(memory, "critic."),
                replay=part(memory, "replay."),
                thetas=members[:count],
                critic_updates=steps,
                actor_updates=steps,
                seed=state.seed,
                iteration=state.iteration,
            )
            members[:count] = learned["thetas"]
            memory |= prefixed("critic.", {name: value for name, value in learned.items() if name != "thetas"})
        # run
        rollouts = yield self.request(state, members, keep=True)
        # update
        moved, metrics = self.update(state, members, rollouts)
        memory |= moved
        # remember
        whitening = self.whitening(state)
        rows = [
            replay.rows(trajectory, self.kind, theta, whitening, 0.0, 1, settings.discount)
            for trajectory, theta in zip(rollouts.trajectories, members, strict=True)
        ]
        for new in rows:
            new["action"] = td3.clipped(self.space, new["action"])
        memory |= prefixed("replay.", replay.extend(part(memory, "replay."), rows, settings.replay))
        memory["last_steps"] = np.array(rollouts.steps, dtype=np.int64)
        if learning:
            best = self.elites(self.episodes.returns(rollouts))
            metrics["gradient_elites"] = float(np.mean(best < settings.gradient_members))
            metrics |= self._value_beside_return(memory, members, rollouts, whitening)
        return self.after(state, rollouts, memory), metrics

    def _value_beside_return(
        self, memory: Memory, members: FloatArray, rollouts: Rollouts, whitening: Whitening
    ) -> Metrics:
        """The first critic's mean value of the members at their start states, and their mean discounted return."""
        values, discounted = [], []
        critic = {name: value[:1] for name, value in part(memory, "critic.q.").items()}
        for trajectory, theta in zip(rollouts.trajectories, members, strict=True):
            z = whitening(trajectory.observations[:1]).astype(np.float32)
            action = td3.clipped(self.space, self.kind.act_together(theta.astype(np.float32), z))
            values.append(float(networks.forward(critic, np.concatenate([z, action], axis=1))[2].mean()))
            powers = self.settings.discount ** np.arange(len(trajectory.rewards))
            discounted.append(float((powers * trajectory.rewards).sum()))
        return {"q_start": float(np.mean(values)), "return_discounted": float(np.mean(discounted))}
