"""The cross-entropy method over a policy's parameters, and CEM-RL: half of the population follows a critic's gradient.

A. Pourchot, O. Sigaud, "CEM-RL: Combining evolutionary and gradient-based methods for policy search", ICLR 2019
(https://arxiv.org/abs/1810.01222), Algorithm 1, with TD3's critics. A generation is drawn from a diagonal Gaussian;
some members get gradient steps; all are run; the better half, weighted by log rank, is the next mean and variance; an
additive variance decays.

What differs from the published code: policies are any of ours (theirs has 400 and 300 tanh units and a tanh at its
output: `mlp:400,300` without the last, clipped to the environment's bounds), critics have two equal layers of rectified
units (theirs 400 and 300 leaky ones), and states are normalised (`normalise_states`).

OP-CEM-RL is ours: more members are drawn than are run, and an off-policy ranker chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from offrank.algorithms.base import Algorithm
from offrank.algorithms.generation import Generation, Ran, merged
from offrank.algorithms.learning import replay, td3
from offrank.algorithms.learning.td3 import TD3Lesson, TD3Settings
from offrank.algorithms.rankers.members import Choice, MemberRanker, rank_correlation
from offrank.core.arrays import FloatArray, IntArray, Memory, Metrics, part, prefixed
from offrank.core.checks import check_learned
from offrank.core.errors import UsageError
from offrank.core.noise import Directions
from offrank.core.normalizer import Whitening
from offrank.core.state import State
from offrank.core.work import Asking
from offrank.policies.trained import TrainedPolicy


@dataclass(frozen=True)
class CEMSettings:
    """Settings of the distribution."""

    name: ClassVar[str] = "cem"
    suggests: ClassVar[dict[str, Any]] = {"reward_shift": 0.0}  # rewards as paid, as published
    needs_bounds: ClassVar[bool] = True  # an actor that follows a critic leaves the range of what was tried
    eval_steps: ClassVar[int] = 10_000  # between evaluations: a generation of whole episodes is as long

    population: int = 10  # members per generation
    elites: int = 5  # best members, which make the next distribution
    start_variance: float = 1e-3  # variance of every parameter in the first generation
    extra_variance: float = 1e-3  # variance added to the elites' in the first generation
    least_variance: float = 1e-5  # variance that extra_variance decays to
    variance_decay: float = 0.95  # factor by which extra_variance decays per generation
    normalise_states: bool = True  # whether policies act on normalised states; the published code's do not

    @property
    def drawn(self) -> int:
        """Members drawn per generation."""
        return self.population

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

    gradient_members: int = 5  # members that get gradient steps before they are run
    warmup_steps: int = 10_000  # training steps before the first gradient step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()
        if not 1 <= self.gradient_members <= self.drawn:
            raise UsageError(
                f"gradient_members = {self.gradient_members}: must be from 1 to the members drawn, {self.drawn} (the "
                "algorithm cem has none)"
            )
        if self.warmup_steps < 0:
            raise UsageError(f"warmup_steps = {self.warmup_steps}: must not be negative")


@dataclass(frozen=True)
class OPCEMRLSettings(CEMRLSettings):
    """Those of CEM-RL, of which `population` members are run, and how many are drawn."""

    name: ClassVar[str] = "op-cem-rl"

    population: int = 5  # members that are run per generation
    candidates: int = 20  # members drawn per generation; the ranker chooses

    @property
    def drawn(self) -> int:
        return self.candidates

    def __post_init__(self) -> None:
        if self.candidates < self.population:
            raise UsageError(
                f"candidates = {self.candidates}: must be at least the population that is run, {self.population}"
            )
        super().__post_init__()


@dataclass(frozen=True)
class CEM(Algorithm):
    """Draw, run, and move the distribution to the better half."""

    settings: CEMSettings
    ranker: Any  # OnPolicy: every member is run

    def __post_init__(self) -> None:
        self.episodes.refuse_probing(self.settings.name)

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        (mean, normalizer), settings = self.begin(seed, init), self.settings
        memory: Memory = {
            "mean": mean,
            "variance": np.full_like(mean, settings.start_variance),
            "extra": np.array(settings.extra_variance),
        }
        return State(seed, normalizer, memory=memory)

    def policy(self, state: State) -> TrainedPolicy:
        return TrainedPolicy.for_space(self.space, self.kind, state.memory["mean"], self.whitening(state))

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        # draw
        generation = self.generation(state, self.draw(state, self.settings.drawn))
        # run
        ran = yield from generation.run(np.arange(len(generation)))
        # update
        moved, metrics = self.update(state, ran)
        return self.after(state, [ran], state.memory | moved), metrics

    def draw(self, state: State, count: int, first: int = 0) -> FloatArray:
        """Members (count, d) of the distribution: in antithetic halves, if their number is even. The directions are
        those from `first` on."""
        mean, variance = state.memory["mean"], state.memory["variance"]
        halves = 2 if count % 2 == 0 else 1
        index = first + np.arange(count // halves)
        drawn = Directions(state.seed, state.iteration, first + len(index), len(mean)).take(index)
        eps = np.concatenate([drawn, -drawn]) if halves == 2 else drawn
        members: FloatArray = mean + eps * np.sqrt(variance)
        return members

    def generation(self, state: State, members: FloatArray, critics: Memory | None = None) -> Generation:
        """Members (N, d) as they are run, and the critics that they are ranked by."""
        critic = None if critics is None else partial(td3.first_value, critics)
        return Generation(
            space=self.space,
            policy=self.kind,
            thetas=members,
            mean=state.memory["mean"],
            whitening=self.whitening(state),
            episodes=self.episodes,
            seed=state.seed,
            iteration=state.iteration,
            critic=critic,
            replay=part(state.memory, "replay."),
        )

    def update(self, state: State, ran: Ran) -> tuple[Memory, Metrics]:
        """The distribution after a generation, as part of the memory, and what to log."""
        settings, members = self.settings, ran.thetas
        best = self.elites(self.episodes.returns(ran.rollouts))
        weights = np.log(settings.elites + 1) - np.log(np.arange(1, settings.elites + 1))
        weights /= weights.sum()
        decay = settings.variance_decay
        extra = decay * float(state.memory["extra"]) + (1 - decay) * settings.least_variance
        gap = members[best] - state.memory["mean"]
        mean = (weights[:, None] * members[best]).sum(axis=0)
        variance = (weights[:, None] * gap * gap).sum(axis=0) / settings.elites + extra
        check_learned("the distribution", state.iteration, mean, variance)
        totals = ran.rollouts.totals
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

    def after(self, state: State, ran: Sequence[Ran], memory: Memory) -> State:
        normalizer = merged(state.normalizer, ran)
        return replace(state, normalizer=normalizer, iteration=state.iteration + 1, memory=memory)

    @property
    def normalises(self) -> bool:
        return self.settings.normalise_states

    def whitening(self, state: State) -> Whitening:
        return state.normalizer.freeze() if self.normalises else Whitening.identity(self.kind.n)


@dataclass(frozen=True)
class CEMRL(CEM):
    """The same, with gradient steps for the first members before all are run."""

    settings: CEMRLSettings

    def start(self, seed: int, init: TrainedPolicy | None = None) -> State:
        state = super().start(seed, init)
        memory = prefixed("critic.", td3.new_critics(self.settings, self.kind, seed))
        memory |= prefixed("replay.", replay.empty(self.kind))
        return replace(state, memory=state.memory | memory | {"last_steps": np.zeros((), dtype=np.int64)})

    def iteration(self, state: State) -> Asking[tuple[State, Metrics]]:
        settings, memory = self.settings, dict(state.memory)
        # draw
        members, critics = self.draw(state, self.settings.drawn), None
        # follow the critic: as many updates as the last generation had steps
        if state.steps > settings.warmup_steps:
            members, critics = yield from self.follow(state, members)
            memory |= prefixed("critic.", critics)
        # choose
        generation = self.generation(state, members, critics)
        choice = yield from self.choose(generation)
        # run
        ran = yield from generation.run(choice.chosen, keep=True)
        # update
        moved, metrics = self.update(state, ran)
        memory |= moved
        # remember
        everything = [*choice.ran, ran]
        rows = [row for some in everything for row in some.rows(generation, settings.discount)]
        memory |= prefixed("replay.", replay.extend(part(memory, "replay."), rows, settings.replay))
        memory["last_steps"] = np.array(sum(some.rollouts.steps for some in everything), dtype=np.int64)
        if critics is not None:
            metrics |= self._how_the_gradient_fared(generation, choice, ran)
        return self.after(state, everything, memory), metrics

    def follow(self, state: State, members: FloatArray) -> Asking[tuple[FloatArray, Memory]]:
        """The members (N, d) after the gradient steps of the first, and the critics after theirs."""
        count, steps = self.settings.gradient_members, int(state.memory["last_steps"])
        outcome = yield TD3Lesson(
            settings=self.settings,
            space=self.space,
            policy=self.kind,
            whitening=self.whitening(state),
            critics=part(state.memory, "critic."),
            replay=part(state.memory, "replay."),
            thetas=members[:count],
            critic_updates=steps,
            actor_updates=steps,
            seed=state.seed,
            iteration=state.iteration,
        )
        critics = {name: value for name, value in outcome.items() if name != "thetas"}
        return np.concatenate([outcome["thetas"], members[count:]]), critics

    def choose(self, generation: Generation) -> Asking[Choice]:
        """The members to run: all of them."""
        yield from ()
        return Choice(np.arange(len(generation)), np.zeros(len(generation)))

    def _how_the_gradient_fared(self, generation: Generation, choice: Choice, ran: Ran) -> Metrics:
        """The share of the elites that had gradient steps; the first critic's value of the members beside their
        return."""
        best = choice.chosen[self.elites(self.episodes.returns(ran.rollouts))]
        share = float(np.mean(best < self.settings.gradient_members))
        return {"gradient_elites": share} | generation.value_beside_return(ran, self.settings.discount)


@dataclass(frozen=True)
class OPCEMRL(CEMRL):
    """CEM-RL that draws more members than it runs: an off-policy ranker chooses."""

    settings: OPCEMRLSettings
    ranker: MemberRanker

    def choose(self, generation: Generation) -> Asking[Choice]:
        """The members that the ranker chooses."""
        return (yield from self.ranker.rank(generation, self.settings.population))

    def _how_the_gradient_fared(self, generation: Generation, choice: Choice, ran: Ran) -> Metrics:
        metrics = super()._how_the_gradient_fared(generation, choice, ran)
        metrics["gradient_chosen"] = float(np.mean(choice.chosen < self.settings.gradient_members))
        returns = self.episodes.returns(ran.rollouts)
        metrics["rank_correlation"] = rank_correlation(choice.scores[choice.chosen], returns)
        return metrics
