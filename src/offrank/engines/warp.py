"""The GPU engine: episodes of the six tasks on `mujoco_warp`, thousands at once (`pip install 'offrank[gpu]'`).

Every world runs one episode. Observation, policy, reward, bounds, statistics and transitions are computed on the
device; one CUDA graph holds a control step, and nothing is copied to the host inside an episode. A world whose episode
ended takes the next one that waits, of whichever request, in the same graph, so that short episodes keep it full.

What differs from the CPU: simulation in float32, and Humanoid's Newton solver instead of PGS, which the GPU lacks.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from offrank.arrays import FloatArray
from offrank.engines.base import Engine, EnvInfo
from offrank.errors import EngineError, EpisodeError, require
from offrank.rollouts import Episode, Request, Trajectory
from offrank.tasks.locomotion import Task

WORLDS = 2048
ROWS = 4  # episodes held on the device, as a multiple of the worlds
POLL = 10  # control steps between two looks at what has finished
STATUS = ("horizon", "terminated", "the simulation diverged", "the contact buffers overflowed")


class WarpEngine(Engine):
    """Runs episodes of one task in `worlds` worlds on one device.

    Args:
        task: one of the six.
        worlds: simulations side by side.
        device: a Warp device, such as cuda:0 or cpu; by default the first GPU.
        deterministic: mujoco_warp's deterministic mode: equal bits from run to run, at a cost.
    """

    name = "warp"

    def __init__(self, task: Task, worlds: int = WORLDS, device: str | None = None, deterministic: bool = False):
        super().__init__()
        from offrank.engines.warp_kernels import Worlds

        self.task = task
        self.info = EnvInfo(task.obs_dim, task.act_dim, task.horizon)
        self._waiting: deque[tuple[int, int]] = deque()
        self._worlds = Worlds(task, worlds, ROWS * worlds, choose_device(device), deterministic)
        self._rows: dict[int, tuple[int, int]] = {}  # row on the device: (ticket, episode)
        self._starts = Starts(task)

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._waiting.clear()
        self._rows.clear()
        self._worlds.clear()

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._waiting.extend((ticket, i) for i in range(len(request)))

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done:
            self._upload()
            self._worlds.advance(POLL)
            for row, episode in self._worlds.harvest():
                self._settle(row, episode)
            if end is not None and time.perf_counter() > end:
                return

    def _upload(self) -> None:
        """Put waiting episodes into free rows of the device's table."""
        count = min(len(self._waiting), self._worlds.free)
        if not count:
            return
        keys = [self._waiting.popleft() for _ in range(count)]
        requests = [self._open[ticket][0] for ticket, _ in keys]
        seeds = [int(r.seeds[i]) for r, (_, i) in zip(requests, keys, strict=True)]
        weights = np.stack([r.weights(i) for r, (_, i) in zip(requests, keys, strict=True)])
        rows = self._worlds.load(
            weights=weights,
            whitenings=[r.whitening for r in requests],
            starts=self._starts.of(seeds),
            horizons=np.array([r.horizon for r in requests]),
            keep=np.array([r.keep for r in requests]),
        )
        self._rows |= dict(zip(rows, keys, strict=True))

    def _settle(self, row: int, outcome: Outcome) -> None:
        ticket, index = self._rows.pop(row)
        if ticket not in self._open:
            return  # of a request that failed meanwhile
        request = self._open[ticket][0]
        what = STATUS[outcome.status] if outcome.status > 1 else "non-finite reward"
        if outcome.status > 1 or not np.isfinite(outcome.total):
            self._waiting = deque(key for key in self._waiting if key[0] != ticket)
            self._fail(ticket, EpisodeError(what, int(request.seeds[index]), outcome.length - 1))
        else:
            self._finish(ticket, index, outcome.episode())


class Outcome:
    """What the device says of one episode."""

    def __init__(
        self,
        status: int,
        length: int,
        total: float,
        mean: FloatArray,
        m2: FloatArray,
        trajectory: Trajectory | None,
    ):
        self.status, self.length, self.total = status, length, total
        self.mean, self.m2, self.trajectory = mean, m2, trajectory

    def episode(self) -> Episode:
        if self.trajectory is not None:  # reduce what is kept as every engine does
            return Episode.of(self.trajectory, keep=True)
        return Episode(self.total, self.length, self.mean, self.m2)


class Starts:
    """Start states and first observations, from the CPU: a reset on the device then needs no forward pass there."""

    def __init__(self, task: Task):
        self.task, self.data = task, mujoco.MjData(task.model)

    def of(self, seeds: list[int]) -> dict[str, NDArray[Any]]:
        task, data = self.task, self.data
        out: dict[str, list[Any]] = {"qpos": [], "qvel": [], "observation": [], "position": []}
        for seed in seeds:
            mujoco.mj_resetData(task.model, data)
            data.qpos[:], data.qvel[:] = task.start(seed)
            mujoco.mj_forward(task.model, data)
            state = {name: getattr(data, name)[None] for name in ("qpos", *task.fields)}
            out["qpos"].append(data.qpos.copy())
            out["qvel"].append(data.qvel.copy())
            out["observation"].append(task.observe(state)[0])
            out["position"].append(task.positions(state)[0])
        return {name: np.array(values, dtype=np.float32) for name, values in out.items()}


def choose_device(device: str | None) -> Any:
    """The Warp device to use, or one clear line."""
    wp = require("warp", "gpu")
    require("mujoco_warp", "gpu")
    wp.config.quiet = True
    wp.init()
    if device is None:
        if not wp.is_cuda_available():
            raise EngineError(
                "the warp engine found no NVIDIA GPU or no working driver: use --engine mujoco, or --device cpu to try "
                "it slowly on the CPU"
            )
        device = "cuda:0"
    try:
        return wp.get_device(device)
    except (ValueError, RuntimeError) as error:
        known = ", ".join(str(d) for d in wp.get_devices())
        raise EngineError(f"there is no device {device!r}: one of {known}") from error


def device_model(task: Task) -> mujoco.MjModel:
    """The task's model as the GPU can run it: Newton where it asks for PGS."""
    model = copy.copy(task.model)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model
