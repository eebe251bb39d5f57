"""Rankers of the members of a generation: which b of N explicit candidates get whole episodes.

A ranker of pairs (`base.py`) orders directions and never signs; here every candidate is a policy of its own. Before the
critics have learned anything, those that need them choose at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from offrank.algorithms.generation import Generation, Ran
from offrank.algorithms.rankers.base import top
from offrank.algorithms.rankers.kernel import rewards_to_come
from offrank.core.arithmetic import one_blas_thread
from offrank.core.arrays import FloatArray, IntArray, Memory
from offrank.core.checks import check_scale
from offrank.core.errors import UsageError
from offrank.core.noise import Purpose, Role, philox
from offrank.core.work import Asking

Scored = tuple[FloatArray, tuple[Ran, ...]]

STATES = 1000  # replayed states over which a candidate's value is averaged


@dataclass(frozen=True)
class Choice:
    """The members to run, and what was computed or run to choose them."""

    chosen: IntArray  # (b,) ascending
    scores: FloatArray  # (N,) larger is better
    ran: tuple[Ran, ...] = ()  # episodes that were run to rank them: training data as any other


@dataclass(frozen=True)
class MemberRanker:
    """Base class. A subclass's fields are its hyperparameters."""

    name: ClassVar[str]
    needs_critic: ClassVar[bool] = False
    preset: ClassVar[str | None] = None
    suggests: ClassVar[dict[str, object]] = {}

    def rank(self, generation: Generation, b: int) -> Asking[Choice]:
        """Choose b members. May request episodes; their steps are counted."""
        if self.needs_critic and generation.critic is None:
            scored: Scored = at_random(generation), ()
        else:
            scored = yield from self.score(generation)
        return Choice(top(scored[0], b), *scored)

    def score(self, generation: Generation) -> Asking[Scored]:
        """Scores (N,) of all members, and the episodes run for them."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomMembers(MemberRanker):
    """Any b members: what every other ranker has to beat."""

    name: ClassVar[str] = "random"

    def score(self, generation: Generation) -> Asking[Scored]:
        yield from ()
        return at_random(generation), ()


@dataclass(frozen=True)
class Value(MemberRanker):
    """The critic's mean value of a member's actions over the latest replayed states near the start of an episode.
    Costs no steps."""

    name: ClassVar[str] = "value"
    needs_critic: ClassVar[bool] = True

    start_steps: int = 100  # steps since the episode began, up to which a state is near the start

    def __post_init__(self) -> None:
        if self.start_steps < 1:
            raise UsageError(f"start_steps = {self.start_steps}: must be at least 1")

    def score(self, generation: Generation) -> Asking[Scored]:
        yield from ()
        states = near_starts(generation.replay, self.start_steps)
        return np.array([generation.values(theta, states).mean() for theta in generation.thetas]), ()


@dataclass(frozen=True)
class Race(MemberRanker):
    """A short episode of every member: its rewards, and the critic's value of where it stood at the end."""

    name: ClassVar[str] = "race"
    needs_critic: ClassVar[bool] = True

    race_steps: int = 100  # steps of the short episodes

    def __post_init__(self) -> None:
        if self.race_steps < 1:
            raise UsageError(f"race_steps = {self.race_steps}: must be at least 1")

    def score(self, generation: Generation) -> Asking[Scored]:
        ran = yield from generation.run(np.arange(len(generation)), Role.RACE, self.race_steps, keep=True)
        beyond = [
            0.0 if trajectory.terminated else float(generation.values(theta, trajectory.last[None])[0])
            for trajectory, theta in zip(ran.rollouts.trajectories, ran.thetas, strict=True)
        ]
        return generation.episodes.returns(ran.rollouts) + np.array(beyond), (ran,)


@dataclass(frozen=True)
class KernelOfMembers(MemberRanker):
    """The paper's score, on rollouts of the mean: mean of exp(-||change of the action||^2 / h^2) Q_t."""

    name: ClassVar[str] = "kernel"

    n_behaviour: int = 1  # n_b, rollouts of the mean per iteration
    bandwidth: float = 0.5  # h, bandwidth of the kernel

    def __post_init__(self) -> None:
        if self.n_behaviour < 1:
            raise UsageError(f"n_behaviour = {self.n_behaviour}: at least one behaviour rollout is needed")
        check_scale("bandwidth", self.bandwidth)

    def score(self, generation: Generation) -> Asking[Scored]:
        ran = yield from generation.behave(self.n_behaviour)
        Q = rewards_to_come(ran.rollouts, generation.episodes.reward_shift)
        z = generation.whitening(np.concatenate([t.observations for t in ran.rollouts.trajectories]))
        clip, act = generation.space.clip, generation.policy.act_together
        with one_blas_thread():
            now = clip(act(generation.mean, z))
            changes = (np.square(clip(act(theta, z)) - now).sum(axis=1) for theta in generation.thetas)
            scores = np.array([(np.exp(-change / self.bandwidth**2) * Q).mean() for change in changes])
        return scores, (ran,)


def near_starts(replay: Memory, steps: int) -> FloatArray:
    """The latest states (S, n) of a replay buffer that are within `steps` steps of the start of their episode."""
    ends = np.flatnonzero(replay["ahead"] == 0)  # the last row of each episode
    row = np.arange(len(replay["ahead"]))
    begins = np.concatenate([[0], ends[:-1] + 1])
    since = row - begins[np.searchsorted(ends, row)]
    near: FloatArray = replay["state"][np.flatnonzero(since < steps)[-STATES:]].astype(np.float64)
    return near


def at_random(generation: Generation) -> FloatArray:
    """Random scores (N,)."""
    return Generator(philox(generation.seed, Purpose.RANKING, generation.iteration)).random(len(generation))


def rank_correlation(x: FloatArray, y: FloatArray) -> float:
    """Spearman's correlation of x and y (m,), ties broken by their order; 0 if one is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (x, y)]
    first, second = (rank - rank.mean() for rank in ranks)
    return float(first @ second / (first @ first))
