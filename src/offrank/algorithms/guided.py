"""Guided search: a small actor follows the gradient of learned critics, and explores by perturbing its parameters.

An iteration is propose, rank, run, learn. Candidates are perturbations of the actor, in antithetic pairs, as large as
changes its actions by a given amount. A few of them get real episodes: those that an off-policy ranker chooses, or, if
no more are drawn than run, all. Every transition teaches the critics, and the critics teach the actor, between requests
(`learning/actor_critic.py`). Each episode is a deterministic policy, so it runs on every engine and on a robot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from offrank.algorithms.base import Algorithm
from offrank.algorithms.generation import Generation, Ran, merged
from offrank.algorithms.learning import actor_critic, replay
from offrank.algorithms.learning.actor_critic import ActorCriticLesson, ActorCriticSettings
from offrank.algorithms.learning.networks import Floats
from offrank.algorithms.rankers.members import Choice, MemberRanker, rank_correlation
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, Metrics, part, prefixed
from offrank.core.errors import UsageError
from offrank.core.noise import Directions, Purpose, philox
from offrank.core.policy import Policy
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy

RECENT, STATES = 2000, 200  # the latest states, and how many of them show what a perturbation changes
ROUNDS = 4  # of finding the size of a perturbation
LEAST, MOST = 1e-3, 1.0  # of the perturbations
WARMUP_NOISE = 0.5  # deviation of the noise on every action before the first update, in half ranges


@dataclass(frozen=True)
class GuidedSettings(ActorCriticSettings):
    """Settings of the search, the critics and the actor."""

    name: ClassVar[str] = "guided"
    suggests: ClassVar[dict[str, Any]] = {"reward_shift": 0.0, "train_horizon": 250}
    eval_steps: ClassVar[int] = 5_000
    on_a_robot: ClassVar[dict[str, Any]] = {"step_noise": 0.0}  # unless asked for
    from_a_policy: ClassVar[dict[str, Any]] = {"actor_rate": 1e-4}  # of young critics, a good actor follows little
    needs_bounds: ClassVar[bool] = True  # an actor that follows a critic leaves the range of what was tried
    unchanged: ClassVar[str] = "warmup_steps"  # setting that says for how many steps the policy does not change

    ratio: float = 1.0  # updates of the critics per training step
    population: int = 2  # episodes per iteration
    candidates: int = 2  # perturbations drawn; of more than the population, the ranker chooses
    action_change: float = 0.2  # root mean square change of actions by a perturbation, in half ranges
    step_noise: float = 0.2  # deviation of the noise on every action, in half ranges; 0: deterministic episodes
    warmup_steps: int = 5_000  # training steps before the first update

    def __post_init__(self) -> None:
        self.check()
        for name in ("population", "warmup_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.candidates < self.population:
            raise UsageError(
                f"candidates = {self.candidates}: must be at least the population that is run, {self.population}"
            )
        for name in ("ratio", "action_change"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)}: must be positive")
        if self.step_noise < 0:
            raise UsageError(f"step_noise = {self.step_noise}: must not be negative")


@dataclass(frozen=True)
class Guided(Algorithm):
    """Propose, rank, run, learn."""

    settings: GuidedSettings
    ranker: MemberRanker

    def __post_init__(self) -> None:
        self.episodes.refuse_probing("guided")

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        theta, normalizer = self.begin(seed, init)
        learner = actor_critic.new_learner(self.settings, self.actor, theta, seed)
        memory = learner | prefixed("replay.", replay.empty(self.actor))
        memory["near"] = np.array(init is not None)  # whether a warm-up stays near the policy
        memory["owed"] = np.zeros(())  # updates that the steps so far have earned and that were not made
        return State(seed, normalizer, memory=memory)

    @property
    def actor(self) -> Policy:
        """The kind of policy that learns."""
        return self.kind

    def policy(self, state: State) -> TrainedPolicy:
        theta = state.memory["actor.theta"].astype(np.float64)
        return TrainedPolicy.for_space(self.space, self.kind, theta, state.normalizer.freeze())

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        settings, memory = self.settings, dict(state.memory)
        # propose
        generation = self.propose(state)
        # rank
        choice = yield from self.choose(generation)
        # run
        ran = yield from generation.run(choice.chosen, keep=True)
        # remember
        everything = [*choice.ran, ran]
        rows = [row for some in everything for row in some.rows(generation, settings.discount, settings.n_steps)]
        memory |= prefixed("replay.", replay.extend(part(memory, "replay."), rows, settings.replay))
        normalizer = merged(state.normalizer, everything)
        metrics = self._metrics(generation, choice, ran)
        # learn
        steps = sum(some.rollouts.steps for some in everything)
        after = replace(state, normalizer=normalizer, iteration=state.iteration + 1)
        learned_from = state.steps - self.begun(state)
        if learned_from + steps >= settings.warmup_steps:
            first = bool(memory["near"]) and int(memory["critic.step"]) == 0
            alone = int(settings.ratio * learned_from) if first else 0  # before an actor that can do something follows
            owed = float(memory["owed"]) + settings.ratio * steps
            memory["owed"] = np.array(owed % 1)
            memory |= yield ActorCriticLesson(
                settings=settings,
                space=self.space,
                policy=self.actor,
                whitening=normalizer.freeze(),
                learner={name: memory[name] for name in memory if name.startswith(("critic.", "actor."))},
                replay=part(memory, "replay."),
                updates=alone + int(owed),
                seed=state.seed,
                iteration=state.iteration,
                alone=alone,
                limit=self.limit(state, steps),
            )
        return replace(after, memory=memory), metrics

    def propose(self, state: State) -> Generation:
        """Perturbations of the actor, in antithetic pairs, as policies to rank and run."""
        memory, count = state.memory, self.settings.candidates
        actor, learned = memory["actor.theta"].astype(np.float64), int(memory["critic.step"]) > 0
        pairs = np.arange(-(-count // 2))
        eps = self.directions(state, Directions(state.seed, state.iteration, len(pairs), len(actor)).take(pairs))
        noise, warm = self.settings.step_noise, not (learned or memory["near"])
        if not warm:
            eps *= self._sizes(state, actor, eps)[:, None]
        elif noise:
            eps, noise = 0 * eps, WARMUP_NOISE
        else:
            eps /= np.sqrt(self.actor.n)  # random policies: of normalised states, actions of about 1
        thetas: FloatArray = (actor + np.stack([eps, -eps], axis=1).reshape(-1, len(actor)))[:count]
        return Generation(
            space=self.space,
            policy=self.actor,
            thetas=thetas,
            mean=actor,
            whitening=state.normalizer.freeze(),
            episodes=self.episodes,
            seed=state.seed,
            iteration=state.iteration,
            noise=noise * self._half_range.astype(np.float64) if noise else None,
            critic=partial(actor_critic.value, memory, self.space) if learned else None,
            replay=part(memory, "replay."),
        )

    def begun(self, state: State) -> int:
        """The training steps before the warm-up of the critics that learn now."""
        return 0

    def directions(self, state: State, eps: FloatArray) -> FloatArray:
        """The directions (m, d) to perturb the actor along, of standard normal ones."""
        return eps

    def limit(self, state: State, steps: int) -> float | None:
        """The largest norm of the weights between the actor's last two layers, once `steps` more are learned from."""
        return None

    def choose(self, generation: Generation) -> Asking[Choice]:
        """The candidates to run."""
        b = self.settings.population
        if len(generation) == b:
            return Choice(np.arange(b), np.zeros(b))
        return (yield from self.ranker.rank(generation, b))

    @property
    def _half_range(self) -> Floats:
        return actor_critic.half_range(self.space, self.actor.p)

    def _sizes(self, state: State, actor: FloatArray, eps: FloatArray) -> FloatArray:
        """How far to go along each direction (m, d), so that actions at the latest states change as wanted."""
        states, whitening = state.memory["replay.state"][-RECENT:], state.normalizer.freeze()
        if len(states):
            z = whitening(states[:: -(-len(states) // STATES)].astype(np.float64))
        else:  # a run that starts from a saved policy: states as its normaliser has them
            random = Generator(philox(state.seed, Purpose.EXPLORATION))
            z = random.standard_normal((STATES, self.actor.n)) * (whitening.scale > 0)
        clip, act = self.space.clip, self.actor.act_together
        scale = self._half_range
        sizes = np.full(len(eps), 1 / np.sqrt(self.actor.n))
        with one_blas_thread():
            now = clip(act(actor, z))
            for _ in range(ROUNDS):
                moved = (clip(act(actor + size * one, z)) for size, one in zip(sizes, eps, strict=True))
                changes = np.array([np.sqrt(np.mean(((to - now) / scale) ** 2)) for to in moved])
                sizes *= np.clip(self.settings.action_change / np.maximum(changes, 1e-6), 0.1, 10.0)
        within: FloatArray = np.clip(sizes, LEAST, MOST)
        return within

    def _metrics(self, generation: Generation, choice: Choice, ran: Ran) -> Metrics:
        totals = ran.rollouts.totals
        metrics: Metrics = {
            "return_mean": float(totals.mean()),
            "return_std": float(totals.std()),
            "return_best": float(totals.max()),
            "length_mean": float(ran.rollouts.lengths.mean()),
            "weights_norm": float(np.linalg.norm(generation.mean)),
            "noise": float(np.sqrt(np.mean((ran.thetas - generation.mean) ** 2))),
        }
        if generation.critic is not None:
            metrics |= generation.value_beside_return(ran, self.settings.discount)
            if len(generation) > len(choice.chosen) > 1:
                returns = self.episodes.returns(ran.rollouts)
                metrics["rank_correlation"] = rank_correlation(choice.scores[choice.chosen], returns)
        return metrics
