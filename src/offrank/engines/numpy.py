"""Episodes of LQR, all that are waiting at once: a step of a thousand episodes costs little more than a step of one."""

from __future__ import annotations

import numpy as np

from offrank.core.arrays import BoolArray, FloatArray, IntArray
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Request, Trajectory
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.tasks.lqr import LQR

TOGETHER = 2048  # episodes simulated at once: bounds the memory, not the outcome


class NumpyEngine(Engine):
    """Runs episodes of LQR in this process."""

    name = "numpy"

    def __init__(self, task: LQR):
        super().__init__()
        self.task = task
        n, p = task.B.shape
        self.space = Space(n, p, task.horizon, exact=task.exact)
        self._waiting: list[tuple[int, int]] = []

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._waiting.clear()

    def _withdraw(self, ticket: int) -> None:
        self._waiting = [key for key in self._waiting if key[0] != ticket]

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._waiting += [(ticket, index) for index in range(len(request))]

    def _work(self, timeout: float | None) -> None:
        """Runs what is waiting, TOGETHER episodes at a time: a fraction of a second, whatever the timeout."""
        while self._waiting and not self._done:
            alike = self._alike(self._waiting[0])
            same = [key for key in self._waiting if self._alike(key) == alike][:TOGETHER]
            taken = set(same)
            self._waiting = [key for key in self._waiting if key not in taken]
            self._play(same, *alike)

    def _alike(self, key: tuple[int, int]) -> tuple[Policy, int]:
        """What episodes must have in common to be simulated together: the kind of policy, and the horizon."""
        request = self._open[key[0]][0]
        return request.policy, request.horizon

    def _play(self, keys: list[tuple[int, int]], policy: Policy, horizon: int) -> None:
        requests = [self._open[ticket][0] for ticket, _ in keys]
        thetas = np.stack([request.theta(index) for request, (_, index) in zip(requests, keys, strict=True)])
        mean = np.stack([request.whitening.mean for request in requests])
        scale = np.stack([request.whitening.scale for request in requests])
        noise = np.stack(
            [
                self.task.disturbances(int(request.seeds[index]), horizon)
                for request, (_, index) in zip(requests, keys, strict=True)
            ]
        )
        seen, last, rewards, lengths, exploded = simulate(self.task, policy, thetas, mean, scale, noise)
        for i, ((ticket, index), request) in enumerate(zip(keys, requests, strict=True)):
            length = int(lengths[i])
            trajectory = Trajectory(seen[i, :length], rewards[i, :length], bool(exploded[i]), last[i])
            self._finish(ticket, index, Episode.of(trajectory, request.keep))


def simulate(
    task: LQR, policy: Policy, thetas: FloatArray, mean: FloatArray, scale: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, BoolArray]:
    """E whole episodes.

    Args:
        thetas, mean, scale, noise: (E, d), (E, n), (E, n) and (E, T, n).

    Returns:
        States (E, T, n), where they led at last (E, n), rewards (E, T), lengths (E,) and which exploded.
    """
    episodes, horizon, n = noise.shape
    seen, rewards = np.zeros((episodes, horizon, n)), np.zeros((episodes, horizon))
    lengths, last = np.full(episodes, horizon), np.zeros((episodes, n))
    alive = np.ones(episodes, dtype=bool)
    x = task.start(episodes)
    for t in range(horizon):
        seen[:, t] = x
        with np.errstate(over="ignore", invalid="ignore"):
            u = policy.act(thetas, (x - mean) * scale)
        x, cost, exploded = task.step(x, u, noise[:, t])
        rewards[:, t] = -cost
        ending = alive & exploded
        if ending.any():
            rewards[ending, t] -= task.rest(horizon - 1 - t)
            lengths[ending], last[ending] = t + 1, task.hold(x[ending])
            alive &= ~exploded
        if not alive.all():
            x[~alive] = 0.0
    last[alive] = x[alive]
    return seen, last, rewards, lengths, ~alive
