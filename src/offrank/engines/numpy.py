"""Episodes of LQR, in batches: a step of a thousand episodes costs little more than a step of one."""

from __future__ import annotations

import numpy as np

from offrank.core.arrays import BoolArray, FloatArray, IntArray
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Request, Trajectory
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.tasks.lqr import LQR

TOGETHER = 2048  # maximum number of episodes in a batch; it limits memory and does not change results


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
        """Run queued episodes in batches until a request is complete. A batch takes a fraction of a second, so the
        timeout is ignored."""
        while self._waiting and not self._done:
            batch_key = self._batch_key(self._waiting[0])
            batch = [key for key in self._waiting if self._batch_key(key) == batch_key][:TOGETHER]
            taken = set(batch)
            self._waiting = [key for key in self._waiting if key not in taken]
            self._run_batch(batch, *batch_key)

    def _batch_key(self, key: tuple[int, int]) -> tuple[Policy, int]:
        """Policy and horizon of an episode: those of a batch must be equal."""
        request = self._open[key[0]][0]
        return request.policy, request.horizon

    def _run_batch(self, keys: list[tuple[int, int]], policy: Policy, horizon: int) -> None:
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
        pushes = np.zeros((len(keys), horizon, policy.p)) if any(r.noise is not None for r in requests) else None
        for i, (request, (_, index)) in enumerate(zip(requests, keys, strict=True)):
            if pushes is not None and (own := request.step_noise(index)) is not None:
                pushes[i] = own
        seen, last, rewards, lengths, exploded = simulate(self.task, policy, thetas, mean, scale, noise, pushes)
        for i, ((ticket, index), request) in enumerate(zip(keys, requests, strict=True)):
            length = int(lengths[i])
            trajectory = Trajectory(seen[i, :length], rewards[i, :length], bool(exploded[i]), last[i])
            self._finish(ticket, index, Episode.of(trajectory, request.keep))


def simulate(
    task: LQR,
    policy: Policy,
    thetas: FloatArray,
    mean: FloatArray,
    scale: FloatArray,
    noise: FloatArray,
    pushes: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, BoolArray]:
    """Simulate E episodes.

    Args:
        thetas, mean, scale, noise: (E, d), (E, n), (E, n) and (E, T, n).
        pushes: (E, T, p), added to the actions.

    Returns:
        States (E, T, n), last states (E, n), rewards (E, T), lengths (E,) and whether the state exploded (E,).
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
        if pushes is not None:
            u = u + pushes[:, t]
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
