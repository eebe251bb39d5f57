"""One MuJoCo simulation of a task, which runs whole episodes in compiled code."""

from __future__ import annotations

import ctypes
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from offrank.core.arrays import FloatArray
from offrank.core.errors import EpisodeError
from offrank.core.rollouts import Episode, Request, Trajectory
from offrank.engines.native.compiled import Actor, Bound, Int, Piece, World, library, mj_step_address
from offrank.tasks.locomotion import Task
from offrank.tasks.models import DIVERGED

STATUS = ("horizon", "terminated", "the simulation diverged", "non-finite reward", "non-finite observation", "stopped")
_NEVER = Int(0)


class Simulation:
    """One MuJoCo simulation of a task and the buffers of one episode."""

    def __init__(self, task: Task, clip_actions: bool = False):
        self.task = task
        self._box = task.action_box if clip_actions else None
        self.data = mujoco.MjData(task.model)
        self._kept: list[Any] = []  # keeps the arrays alive that the world points to
        self._world = self._describe()
        self._seen: NDArray[np.float64] = np.empty((0, task.obs_dim))
        self._rewards: NDArray[np.float64] = np.empty(0)
        self._actor: Actor | None = None  # of the last episode, reused for policies of the same kind

    def run(self, request: Request, index: int, over: ctypes.c_int64 | None = None) -> Episode:
        """Run one episode of a request. It is stopped when `over` becomes non-zero.

        Raises:
            EpisodeError: the simulation diverged, a reward or observation is not finite, or it was stopped.
        """
        seed, horizon, task = int(request.seeds[index]), request.horizon, self.task
        if len(self._rewards) < horizon:
            self._seen, self._rewards = np.empty((horizon + 1, task.obs_dim)), np.empty(horizon)
        self._world.over = ctypes.addressof(_NEVER if over is None else over)
        if self._actor is None or self._actor.policy != request.policy:
            self._actor = Actor(request.policy)
        self._actor.set(request.theta(index), request.whitening)
        length, status = self.simulate(self._actor, seed, horizon, request.step_noise(index))
        if status > 1:
            raise EpisodeError(STATUS[status], seed, length)
        trajectory = Trajectory(self._seen[:length], self._rewards[:length], status == 1, self._seen[length])
        return Episode.of(trajectory, request.keep)

    def simulate(self, actor: Actor, seed: int, horizon: int, noise: FloatArray | None = None) -> tuple[int, int]:
        """Fill the buffers with one episode. Returns the number of steps and the index of STATUS."""
        task, policy = self.task, actor.policy
        if (policy.n, policy.p) != (task.obs_dim, task.act_dim):
            sizes = f"{task.obs_dim} observations and {task.act_dim} actions"
            raise ValueError(f"{task.name} has {sizes}, the policy {policy.n} and {policy.p}")
        mujoco.mj_resetData(task.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = task.start(seed)
        mujoco.mj_forward(task.model, self.data)
        status = Int(0)
        length = library().offrank_episode(
            ctypes.byref(self._world),
            ctypes.byref(actor.structure),
            horizon,
            None if noise is None else noise.ctypes.data,
            self._seen.ctypes.data,
            self._rewards.ctypes.data,
            ctypes.byref(status),
        )
        return int(length), status.value

    def _describe(self) -> World:
        """The task, as addresses of fields of this simulation."""
        task, data = self.task, self.data
        counters = data.warning.number[DIVERGED]
        first, stride, weights = task.position_weights
        pieces = [Piece(*self._span(p.field, p.skip), p.clip) for p in task.pieces]
        pieces.append(Piece(None, task.zeros, np.inf))
        bounds = []
        for b in task.bounds:
            at, count = self._span(b.field, b.first, b.last)
            bounds += [Bound(at + 8 * i, b.low, b.high, b.closed) for i in range(count)]
        arrays = (Piece * len(pieces))(*pieces), (Bound * len(bounds))(*bounds)
        self._kept += [*arrays, weights]
        return World(
            mj_step=mj_step_address(),
            model=task.model._address,
            data=data._address,
            ctrl=data.ctrl.ctypes.data,
            low=None if self._box is None else self._box[0].ctypes.data,
            high=None if self._box is None else self._box[1].ctypes.data,
            warnings=counters.ctypes.data,
            n_warnings=len(counters),
            warning_stride=counters.strides[0] // counters.itemsize,
            n=task.obs_dim,
            p=task.act_dim,
            frame_skip=task.frame_skip,
            pieces=ctypes.addressof(arrays[0]),
            n_pieces=len(pieces),
            position=self._span(task.position, first)[0],
            position_weights=weights.ctypes.data,
            n_positions=len(weights),
            position_stride=stride,
            bounds=ctypes.addressof(arrays[1]),
            n_bounds=len(bounds),
            dt=task.dt,
            forward_weight=task.forward_weight,
            control_weight=task.control_weight,
            survival_bonus=task.survival_bonus,
        )

    def _span(self, field: str, first: int, last: int | None = None) -> tuple[int, int]:
        """Address and count of the numbers [first, last) of a flattened field of the simulation."""
        values = getattr(self.data, field)
        assert values.flags.c_contiguous and values.dtype == np.float64
        count = (values.size if last is None else last) - first
        return values.ctypes.data + 8 * first, count
