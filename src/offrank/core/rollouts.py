"""The interface between algorithms and engines: a Request asks for episodes, Rollouts are their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offrank.core.arrays import FloatArray, IntArray
from offrank.core.candidates import Around, Candidates
from offrank.core.checks import LARGEST
from offrank.core.errors import EpisodeError
from offrank.core.noise import Role, action_noise, episode_seeds
from offrank.core.normalizer import Moments, Whitening
from offrank.core.policy import Policy


@dataclass(frozen=True)
class Request:
    """E episodes to run. All policies are of one kind, and deterministic; noise on their actions is of the episode."""

    policy: Policy
    candidates: Candidates  # the parameters of each episode's policy
    whitening: Whitening
    seeds: IntArray  # (E,)
    roles: IntArray  # (E,), see Role
    index: IntArray  # (E,) number of the candidate, within its role
    horizon: int
    keep: bool = False  # whether to return the trajectories, not only their returns and moments
    noise: FloatArray | None = None  # (p,) deviation of the noise on the actions of training episodes; None: no noise

    def __post_init__(self) -> None:
        if not len(self.candidates) == len(self.seeds) == len(self.roles) == len(self.index):
            counts = [len(part) for part in (self.candidates, self.seeds, self.roles, self.index)]
            raise ValueError(f"candidates, seeds, roles and index are of {counts} episodes")
        if self.noise is not None and not self.keep:
            raise ValueError("noise on the actions is for episodes to learn from, whose trajectories are kept")

    @staticmethod
    def of_one(
        policy: Policy,
        theta: FloatArray,
        whitening: Whitening,
        seed: int,
        iteration: int,
        role: Role,
        index: IntArray,
        horizon: int,
        keep: bool = False,
    ) -> Request:
        """The episodes `index` (E,) of one policy theta (d,), in one role of an iteration of the run with this seed."""
        return Request(
            policy=policy,
            candidates=Around.itself(theta, len(index)),
            whitening=whitening,
            seeds=episode_seeds(seed, iteration, role, index),
            roles=np.full(len(index), role, dtype=np.int64),
            index=index,
            horizon=horizon,
            keep=keep,
        )

    def __len__(self) -> int:
        return len(self.seeds)

    def theta(self, episode: int) -> FloatArray:
        """Parameters (d,) of one episode's policy. The array must not be modified."""
        return self.candidates.theta(episode)

    def step_noise(self, episode: int) -> FloatArray | None:
        """What is added to the clipped actions (horizon, p) of an episode, before they are clipped again. It is a
        function of the episode's seed and the step, whichever engine runs it."""
        if self.noise is None:
            return None
        return self.noise * action_noise(int(self.seeds[episode]), self.horizon, len(self.noise))

    def take(self, episodes: Sequence[int]) -> Request:
        """A request for the given episodes only, in the given order."""
        at = list(episodes)
        return replace(
            self,
            candidates=self.candidates.take(at),
            seeds=self.seeds[at],
            roles=self.roles[at],
            index=self.index[at],
        )


@dataclass(frozen=True)
class Trajectory:
    """The T transitions of one episode."""

    observations: FloatArray  # (T, n), before each step
    rewards: FloatArray  # (T,), as the environment returned them
    terminated: bool  # whether the task ended the episode; False if the horizon did
    last_observation: FloatArray | None = None  # (n,), after the last step
    actions: FloatArray | None = None  # (T, p) as carried out, where they are not those of the policy

    @property
    def last(self) -> FloatArray:
        """The observation (n,) after the last step; if unknown, the one before it."""
        return self.observations[-1] if self.last_observation is None else self.last_observation


@dataclass(frozen=True)
class Episode:
    """The result of one episode."""

    total: float  # sum of the environment's rewards; the algorithm subtracts a survival bonus
    length: int
    mean: FloatArray  # (n,) of the observations before each step
    m2: FloatArray  # (n,) sum of their squared deviations
    trajectory: Trajectory | None = None

    @staticmethod
    def of(trajectory: Trajectory, keep: bool) -> Episode:
        """The result of a trajectory. Its arrays are copied if kept, so the caller may reuse its buffers."""
        observations, rewards = trajectory.observations, trajectory.rewards
        mean = observations.mean(axis=0)
        deviation = observations - mean
        kept = None
        if keep:
            last, actions = (None if x is None else x.copy() for x in (trajectory.last_observation, trajectory.actions))
            kept = Trajectory(observations.copy(), rewards.copy(), trajectory.terminated, last, actions)
        return Episode(float(rewards.sum()), len(rewards), mean, (deviation * deviation).sum(axis=0), kept)


@dataclass(frozen=True)
class Rollouts:
    """The results of a request, in the order of its episodes."""

    totals: FloatArray  # (E,)
    lengths: IntArray  # (E,)
    moments: Moments
    trajectories: tuple[Trajectory, ...] = ()  # one per episode if the request has keep=True, else none

    @staticmethod
    def of(episodes: Sequence[Episode]) -> Rollouts:
        lengths = np.array([e.length for e in episodes], dtype=np.int64)
        return Rollouts(
            totals=np.array([e.total for e in episodes]),
            lengths=lengths,
            moments=Moments(lengths, np.stack([e.mean for e in episodes]), np.stack([e.m2 for e in episodes])),
            trajectories=tuple(e.trajectory for e in episodes if e.trajectory is not None),
        )

    def episodes(self) -> list[Episode]:
        """The results of the single episodes: the inverse of `of`."""
        kept = self.trajectories or (None,) * len(self.totals)
        parts = (self.totals.tolist(), self.lengths.tolist(), self.moments.mean, self.moments.m2, kept)
        return [Episode(*episode) for episode in zip(*parts, strict=True)]

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())


def check_finite(observations: FloatArray, rewards: FloatArray, seed: int) -> None:
    """Check observations (T, n) and rewards (T,) of an episode.

    Raises:
        EpisodeError: one is not finite, or too large to learn from; it names the first such step.
    """
    for name, values in (("reward", rewards[:, None]), ("observation", observations)):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            value = values[bad[0]][~np.isfinite(values[bad[0]])][0]
            raise EpisodeError(f"non-finite {name} ({value})", seed, int(bad[0]))
        bad = np.flatnonzero((np.abs(values) > LARGEST).any(axis=1))
        if len(bad):
            value = values[bad[0]][np.argmax(np.abs(values[bad[0]]))]
            what = f"{name} of {value:g}, too large to learn from (at most {LARGEST:g})"
            raise EpisodeError(what, seed, int(bad[0]))
