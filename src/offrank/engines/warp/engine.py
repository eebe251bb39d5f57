"""The GPU engine: thousands of episodes of the six tasks at once, on `mujoco_warp` (`pip install 'offrank[gpu]'`).

Every world runs one episode. Observation, policy, reward, bounds, statistics and transitions are computed on the
device. A control step is one CUDA graph, and nothing is copied to the host within an episode. When an episode ends, its
world starts the next queued one, of any request, in the same graph, so that short episodes leave no world idle.

The device should not wait for the host: finished requests are returned a few at a time, and while the caller processes
them, the next control steps run. Training has priority over evaluation, which uses the worlds that training leaves
free.

Differences from the CPU: the simulation is in float32, and Humanoid uses the Newton solver, because there is no PGS on
the GPU.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from offrank.core.arithmetic import usable_cpus
from offrank.core.arrays import FloatArray
from offrank.core.errors import EngineError, EpisodeError, require
from offrank.core.noise import Role
from offrank.core.rollouts import Request, Rollouts
from offrank.engines.base import Engine
from offrank.engines.warp.gpu import Gpu
from offrank.tasks.locomotion import Task

ROWS = 4  # episodes held on the device, as a multiple of the worlds
POLL = 10  # control steps between two checks for finished episodes
HANDED_OVER = 4  # maximum number of finished requests returned at a time

Prepared = dict[str, NDArray[np.float32]]  # arrays by name, one row per episode
Span = tuple[int, int, int]  # a range of episodes of a request: (ticket, first, end)


class WarpEngine(Engine):
    """Runs episodes of one task on one device.

    Raises:
        EngineError: there is no such device, or not enough memory on it.
    """

    name = "warp"

    def __init__(self, task: Task, gpu: Gpu, clip_actions: bool = False):
        super().__init__()
        device = choose_device(gpu.device)
        from offrank.engines.warp.worlds import Worlds

        self.task = task
        self.device = device.alias if device.is_cuda else None
        self.space = task.space(clip_actions)
        self._worlds = Worlds(task, gpu.worlds, ROWS * gpu.worlds, device, gpu.deterministic, clip_actions)
        self._preparing = ThreadPoolExecutor(usable_cpus(), "offrank-prepare")
        self._prepare = Preparation(task)
        self._prepared: dict[int, Future[Prepared]] = {}  # by ticket
        self._training: deque[Span] = deque()  # queued episodes
        self._evaluation: deque[Span] = deque()
        self._rows: dict[int, tuple[int, int, bool]] = {}  # row on the device: (ticket, episode, whether training)
        self._in_training = 0  # number of rows with training episodes
        self._demand = Demand(task.horizon // POLL)

    def close(self) -> None:
        self._abandon()
        self._preparing.shutdown(wait=False, cancel_futures=True)

    def _abandon(self) -> None:
        self._training.clear()
        self._evaluation.clear()
        self._prepared.clear()
        self._rows.clear()
        self._in_training = 0
        self._worlds.clear()

    def _enqueue(self, ticket: int, request: Request) -> None:
        self._prepared[ticket] = self._preparing.submit(self._prepare, request)
        queue = self._evaluation if request.roles[0] == Role.EVALUATION else self._training
        queue.append((ticket, 0, len(request)))

    def _withdraw(self, ticket: int) -> None:
        self._prepared.pop(ticket, None)
        self._training = deque(span for span in self._training if span[0] != ticket)
        self._evaluation = deque(span for span in self._evaluation if span[0] != ticket)

    def completed(self, timeout: float | None = None) -> list[tuple[int, Rollouts | EpisodeError]]:
        if self._open and not self._worlds.busy:
            self._advance()
        if not self._done and self._open:
            self._work(timeout)
        done, self._done = self._done[:HANDED_OVER], self._done[HANDED_OVER:]
        return done

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done and self._open:
            self._advance()
            if end is not None and time.perf_counter() > end:
                return

    def _advance(self) -> None:
        """Collect finished episodes, upload queued ones, and launch the next control steps."""
        for row, outcome, length in self._worlds.collect_finished():
            ticket, index, training = self._rows.pop(row)
            self._in_training -= training
            if ticket not in self._open:
                continue  # the request failed or was dropped
            if isinstance(outcome, str):
                seed = int(self._open[ticket][0].seeds[index])
                self._fail(ticket, EpisodeError(outcome, seed, length - 1))
            else:
                self._finish(ticket, index, outcome)
        self._upload()
        if self._rows:
            self._worlds.advance(POLL)

    def _upload(self) -> None:
        """Put queued episodes into free rows: training first, then evaluation in worlds that training leaves free."""
        in_evaluation = len(self._rows) - self._in_training
        wanted = self._in_training + sum(end - first for _, first, end in self._training)
        free = self._worlds.free
        training = self._ready(self._training, free)
        free -= sum(end - first for _, first, end in training)
        spare = self._worlds.count - self._demand.peak(wanted) - in_evaluation
        evaluation = self._ready(self._evaluation, min(free, spare))
        if spans := training + evaluation:
            rows = self._load(spans)
            keys = [(ticket, i) for ticket, first, end in spans for i in range(first, end)]
            trains = len(rows) - sum(end - first for _, first, end in evaluation)
            self._rows |= {row: (*key, k < trains) for k, (row, key) in enumerate(zip(rows, keys, strict=True))}
            self._in_training += trains

    def _ready(self, queue: deque[Span], room: int) -> list[Span]:
        """Take up to `room` prepared episodes from the front of a queue. Waits for the preparation if nothing runs."""
        ready: list[Span] = []
        while queue and room > 0:
            ticket, first, end = queue[0]
            if self._rows and not self._prepared[ticket].done():
                break
            cut = min(end, first + room)
            ready.append((ticket, first, cut))
            room -= cut - first
            if cut < end:
                queue[0] = (ticket, cut, end)
            else:
                queue.popleft()
        return ready

    def _load(self, spans: list[Span]) -> list[int]:
        """Copy episodes to the device. Returns their rows."""
        requests = [self._open[ticket][0] for ticket, _, _ in spans]
        sizes = [end - first for _, first, end in spans]
        parts = [{k: v[first:end] for k, v in self._prepared[t].result().items()} for t, first, end in spans]
        for (ticket, _, end), request in zip(spans, requests, strict=True):
            if end == len(request):  # episodes are uploaded in order
                del self._prepared[ticket]
        return self._worlds.load(
            episodes={name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "theta"},
            policies=[r.policy for r, size in zip(requests, sizes, strict=True) for _ in range(size)],
            thetas=[theta for part in parts for theta in part["theta"]],
            whitenings=[r.whitening for r, size in zip(requests, sizes, strict=True) for _ in range(size)],
            horizons=np.repeat([r.horizon for r in requests], sizes),
            keep=np.repeat([r.keep for r in requests], sizes),
            noise=[r.step_noise(i) for r, (_, *span) in zip(requests, spans, strict=True) for i in range(*span)],
        )


class Demand:
    """The recent demand of training for worlds: its maximum over the last one to two windows of calls."""

    def __init__(self, window: int):
        self._window, self._looks, self._now, self._before = max(window, 1), 0, 0, 0

    def peak(self, wanted: int) -> int:
        self._looks += 1
        if self._looks > self._window:
            self._looks, self._before, self._now = 1, self._now, 0
        self._now = max(self._now, wanted)
        return max(self._now, self._before)


class Preparation:
    """Computes what an episode needs on the device, in CPU threads: parameters, start state and first observation, so
    that a reset on the device needs no forward pass."""

    def __init__(self, task: Task):
        self.task = task
        self._derived = [name for name in task.fields if name not in ("qpos", "qvel")]
        self._local = threading.local()

    def __call__(self, request: Request) -> Prepared:
        """theta (E, d), start_qpos (E, nq), start_qvel (E, nv), start_observation (E, n) and start_position (E, 1) of
        the episodes of a request, in float32."""
        theta = np.empty((len(request), request.policy.size), dtype=np.float32)
        for i in range(len(request)):
            theta[i] = request.theta(i)
        qpos, qvel = map(np.array, zip(*(self.task.start(int(seed)) for seed in request.seeds), strict=True))
        state = {"qpos": qpos, "qvel": qvel} | self._forward(qpos, qvel)
        starts = {
            "start_qpos": qpos,
            "start_qvel": qvel,
            "start_observation": self.task.observe(state),
            "start_position": self.task.positions(state)[:, None],
        }
        return {"theta": theta} | {name: values.astype(np.float32) for name, values in starts.items()}

    def _forward(self, qpos: FloatArray, qvel: FloatArray) -> dict[str, FloatArray]:
        """The derived fields that the task reads, at E states."""
        if not self._derived:
            return {}
        model = self.task.model
        if not hasattr(self._local, "data"):
            self._local.data = mujoco.MjData(model)
        data, found = self._local.data, []
        for q, v in zip(qpos, qvel, strict=True):
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:] = q, v
            mujoco.mj_forward(model, data)
            found.append([getattr(data, name).copy() for name in self._derived])
        return dict(zip(self._derived, map(np.array, zip(*found, strict=True)), strict=True))


def choose_device(device: str | None) -> Any:
    """The Warp device with a name; None for the first GPU.

    Raises:
        UsageError: Warp is not installed.
        EngineError: there is no such device.
    """
    wp = require("warp", "gpu")
    require("mujoco_warp", "gpu")
    wp.config.log_level = wp.LOG_ERROR  # problems are reported by our own errors
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
