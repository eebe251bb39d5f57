"""Small tools the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offrank.algorithms.rankers import Ranker
from offrank.algorithms.strategies import Strategy
from offrank.core.arrays import FloatArray
from offrank.core.candidates import Episodes, answered
from offrank.core.errors import EpisodeError
from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Episode, Request, Rollouts, Trajectory
from offrank.core.state import State
from offrank.engines.base import Engine, EnvInfo

Simulate = Callable[[FloatArray, Whitening, int, int], Trajectory]  # weights, whitening, seed, horizon


class FunctionEngine(Engine):
    """Runs episodes of a Python function: for tests of algorithms, where physics would only be in the way."""

    name = "function"

    def __init__(self, simulate: Simulate, obs_dim: int, act_dim: int, horizon: int = 10):
        super().__init__()
        self.info = EnvInfo(obs_dim, act_dim, horizon)
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
                trajectory = self.simulate(
                    request.weights(i), request.whitening, int(request.seeds[i]), request.horizon
                )
            except EpisodeError as error:
                self._fail(ticket, error)
                return
            self._finish(ticket, i, Episode.of(trajectory, request.keep))


def linear_system(obs_dim: int, act_dim: int, seed: int = 0) -> Simulate:
    """s' = 0.9 s + B a + noise, reward -|s|^2 - |a|^2 / 10: a linear policy improves on none."""
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
    """Every policy earns the same."""

    def simulate(weights: FloatArray, whitening: Whitening, seed: int, horizon: int) -> Trajectory:
        seen = np.random.default_rng(seed).normal(size=(horizon, obs_dim))
        return Trajectory(seen, np.ones(horizon), False, seen[-1])

    return simulate


def iterate(
    strategy: Strategy, ranker: Ranker, engine: Engine, iterations: int, seed: int = 0, episodes: Episodes | None = None
) -> tuple[State, list[dict[str, Any]]]:
    """Some iterations from the start; the state and what each logged."""
    info = engine.info
    episodes = episodes or Episodes(horizon=info.horizon)
    state = strategy.start(info.act_dim, info.obs_dim, seed, ranker)
    log = []
    for _ in range(iterations):
        state, metrics = answered(strategy.iteration(state, ranker, episodes), engine.run)
        log.append(metrics)
    return state, log


def pair_request(
    info: EnvInfo, pairs: int, scale: float = 0.03, horizon: int | None = None, keep: bool = False, seed: int = 0
) -> Request:
    """Both signs of some directions around zero weights, episode seeds counted from `seed`."""
    p, n = info.act_dim, info.obs_dim
    return Request(
        base=np.zeros((p, n)),
        whitening=Whitening.identity(n),
        seeds=np.arange(seed, seed + 2 * pairs),
        roles=np.tile([Role.PLUS, Role.MINUS], pairs).astype(np.int64),
        index=np.repeat(np.arange(pairs), 2),
        horizon=horizon or info.horizon,
        scale=scale,
        directions=Directions(0, 0, pairs, (p, n)),
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
