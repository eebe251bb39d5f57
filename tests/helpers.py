"""Helper functions shared by the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import toy_envs
from offrank.algorithms.base import Episodes
from offrank.algorithms.proposal import Proposal
from offrank.algorithms.rankers import Ranker
from offrank.algorithms.search import Search
from offrank.algorithms.strategies import Strategy
from offrank.asktell import EpisodeToRun
from offrank.core.arrays import FloatArray, Memory, part
from offrank.core.candidates import Around
from offrank.core.errors import EpisodeError
from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Request, Rollouts, Trajectory
from offrank.core.space import Space
from offrank.core.state import State
from offrank.core.work import answered
from offrank.engines.base import Engine
from offrank.policies import make_policy

Simulate = Callable[[Any, Whitening, int, int], Trajectory]  # weights, whitening, seed, horizon


class Controller:
    """A non-linear policy with the interface `weights @ z`, for simulations written for a matrix."""

    def __init__(self, policy: Policy, theta: FloatArray):
        self.policy, self.theta = policy, theta

    def __matmul__(self, z: FloatArray) -> FloatArray:
        return self.policy.act(self.theta, z)


class FunctionEngine(Engine):
    """Runs episodes of a Python function: for tests of algorithms, which need no physics."""

    name = "function"

    def __init__(self, simulate: Simulate, obs_dim: int, act_dim: int, horizon: int = 10):
        super().__init__()
        self.space = Space(obs_dim, act_dim, horizon)
        self.simulate = simulate
        self.requests: list[Request] = []
        self._queue: list[tuple[int, Request]] = []

    def close(self) -> None: ...

    def _abandon(self) -> None:
        self._queue.clear()

    def _withdraw(self, ticket: int) -> None:
        self._queue = [(other, request) for other, request in self._queue if other != ticket]

    def _enqueue(self, ticket: int, request: Request) -> None:
        self.requests.append(request)
        self._queue.append((ticket, request))

    def _work(self, timeout: float | None) -> None:
        ticket, request = self._queue.pop(0)
        for i in range(len(request)):
            try:
                policy, theta = request.policy, request.theta(i)
                linear = policy.is_linear
                weights = theta.reshape(policy.p, policy.n) if linear else Controller(policy, theta)
                trajectory = self.simulate(weights, request.whitening, int(request.seeds[i]), request.horizon)
            except EpisodeError as error:
                self._fail(ticket, error)
                return
            self._finish(ticket, i, Episode.of(trajectory, request.keep))


def linear_system(obs_dim: int, act_dim: int, seed: int = 0) -> Simulate:
    """s' = 0.9 s + B a + noise, reward -|s|^2 - |a|^2 / 10: a linear policy is better than none."""
    B = np.random.default_rng(seed).normal(size=(obs_dim, act_dim)) / 2

    def simulate(weights: FloatArray, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        rng = np.random.default_rng(seed)
        s = rng.normal(size=obs_dim)
        seen, paid = [], []
        for _ in range(horizon):
            a = weights @ whitening(s)
            seen.append(s)
            paid.append(-float(s @ s) - float(a @ a) / 10)
            s = 0.9 * s + B @ a + 0.1 * rng.normal(size=obs_dim)
        return Trajectory(np.stack(seen), np.array(paid), False, s)

    return simulate


def constant_reward(obs_dim: int) -> Simulate:
    """Every policy has the same return."""

    def simulate(weights: FloatArray, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        seen = np.random.default_rng(seed).normal(size=(horizon, obs_dim))
        return Trajectory(seen, np.ones(horizon), False, seen[-1])

    return simulate


def search(
    strategy: Strategy, ranker: Ranker, space: Space, episodes: Episodes | None = None, policy: str = "linear"
) -> Search:
    """A search with these parts for an environment."""
    kind = make_policy(policy, space.obs_dim, space.act_dim)
    return Search(space, kind, episodes or Episodes(horizon=space.horizon), strategy, ranker)


def iterate(
    strategy: Strategy,
    ranker: Ranker,
    engine: Engine,
    iterations: int,
    seed: int = 0,
    episodes: Episodes | None = None,
    policy: str = "linear",
) -> tuple[State, list[dict[str, Any]]]:
    """Run some iterations from the start. Returns the state and the metrics of each."""
    algorithm = search(strategy, ranker, engine.space, episodes, policy)
    state = algorithm.start(seed)
    log = []
    for _ in range(iterations):
        state, metrics = answered(algorithm.iteration(state), engine.run)
        log.append(metrics)
    return state, log


def matrix(state: State) -> FloatArray:
    """M (p, n) of a linear policy."""
    return state.memory["theta"].reshape(-1, len(state.normalizer.mean))


def ranker_memory(state: State) -> Memory:
    return part(state.memory, "ranker.")


def proposal(
    M: FloatArray,
    N: int,
    b: int,
    scale: float,
    episodes: Episodes,
    *,
    seed: int = 0,
    iteration: int = 0,
    whitening: Whitening | None = None,
    length: int | None = None,
) -> Proposal:
    """Candidates around a linear policy M (p, n)."""
    p, n = M.shape
    return Proposal(
        policy=make_policy("linear", n, p),
        theta=M.ravel(),
        whitening=whitening or Whitening.identity(n),
        directions=Directions(seed, iteration, N, p * n),
        scale=scale,
        b=b,
        episodes=episodes,
        length=episodes.horizon if length is None else length,
    )


def pair_request(
    space: Space,
    pairs: int,
    scale: float = 0.03,
    horizon: int | None = None,
    keep: bool = False,
    seed: int = 0,
    policy: str = "linear",
) -> Request:
    """Both signs of some directions around a policy that acts as zero, episode seeds counted from `seed`."""
    kind = make_policy(policy, space.obs_dim, space.act_dim)
    index = np.repeat(np.arange(pairs), 2)
    directions = Directions(0, 0, pairs, kind.size)
    return Request(
        policy=kind,
        candidates=Around(kind.start(0), scale, directions, index, np.tile([1.0, -1.0], pairs)),
        whitening=Whitening.identity(space.obs_dim),
        seeds=np.arange(seed, seed + 2 * pairs),
        roles=np.tile([Role.PLUS, Role.MINUS], pairs).astype(np.int64),
        index=index,
        horizon=horizon or space.horizon,
        keep=keep,
    )


def request_of(
    policy: Policy, theta: FloatArray, whitening: Whitening, seeds: Any, horizon: int, keep: bool = False
) -> Request:
    """Evaluation episodes of one policy."""
    seeds = np.asarray(seeds)
    return Request(
        policy=policy,
        candidates=Around.itself(theta, len(seeds)),
        whitening=whitening,
        seeds=seeds,
        roles=np.full(len(seeds), Role.EVALUATION, dtype=np.int64),
        index=np.arange(len(seeds)),
        horizon=horizon,
        keep=keep,
    )


def same_rollouts(a: Rollouts, b: Rollouts) -> bool:
    """Equal to the last bit."""
    parts = (
        (a.totals, b.totals),
        (a.lengths, b.lengths),
        (a.moments.mean, b.moments.mean),
        (a.moments.m2, b.moments.m2),
    )
    return all(np.array_equal(x, y) for x, y in parts)


HOLD = """
import sys
from pathlib import Path
from offrank.runs.lock import lock_folder
lock = lock_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that locks the folder until it is told to end, or killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def perform(episode: EpisodeToRun, env: Any = None, last: bool = True) -> dict[str, Any]:
    """Run an episode correctly. Returns the arguments of `tell`."""
    env = env or toy_envs.Point()
    observation, _ = env.reset(seed=episode.seed)
    observations, rewards = [observation], []
    for step in range(episode.horizon):
        observation, reward, *_ = env.step(episode.act(observation, step))
        observations.append(observation)
        rewards.append(reward)
    return {"rewards": rewards, "observations": observations if last else observations[:-1]}
