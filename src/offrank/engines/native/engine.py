"""The native engine: episodes of the six tasks, each run from start to end in compiled code, on all cores.

An episode never returns to Python between its steps (`_rollout.c`). Threads take episodes from a common queue, of
whichever request, so there is no barrier, short episodes hold up nobody, and an ended episode costs nothing. An
episode's arithmetic is its own: results do not depend on threads or company.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from offrank.core.arithmetic import usable_cpus
from offrank.core.arrays import FloatArray
from offrank.core.errors import EngineError, EpisodeError
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode, Request, Trajectory
from offrank.core.space import Space
from offrank.engines.base import Engine
from offrank.tasks.locomotion import Task
from offrank.tasks.models import DIVERGED, quiet_mujoco

_Address, _Int, _Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Piece(ctypes.Structure):
    _fields_ = [("at", _Address), ("count", _Int), ("clip", _Real)]


class _Bound(ctypes.Structure):
    _fields_ = [("at", _Address), ("low", _Real), ("high", _Real), ("closed", _Int)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *[(name, _Address) for name in ("weights", "skip", "bias")],
        *[(name, _Int) for name in ("inputs", "outputs", "squashes")],
    ]


class _World(ctypes.Structure):
    _fields_ = [
        *[(name, _Address) for name in ("mj_step", "model", "data", "ctrl", "warnings")],
        *[(name, _Int) for name in ("n_warnings", "warning_stride", "n", "p", "frame_skip")],
        ("pieces", _Address),
        ("n_pieces", _Int),
        ("position", _Address),
        ("position_weights", _Address),
        ("n_positions", _Int),
        ("position_stride", _Int),
        ("bounds", _Address),
        ("n_bounds", _Int),
        *[(name, _Real) for name in ("dt", "forward_weight", "control_weight", "survival_bonus")],
        ("over", _Address),
    ]


STATUS = ("horizon", "terminated", "the simulation diverged", "non-finite reward", "non-finite observation", "stopped")
_NEVER = _Int(0)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """The compiled function, or None where it was not built."""
    spec = find_spec("offrank.engines.native._rollout")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        function = library.offrank_episode
        library.offrank_layout.restype = _Int
        if library.offrank_layout() != 1000 * ctypes.sizeof(_World) + ctypes.sizeof(_Layer):
            return None  # built from another version of the source
    except (OSError, AttributeError):
        return None
    function.restype = _Int
    function.argtypes = [_Address] * 2 + [_Int] * 2 + [_Address] * 4 + [_Int] + [_Address] * 3
    return function


def is_built() -> bool:
    """Whether the compiled part is there."""
    return _compiled() is not None


@lru_cache(maxsize=1)
def _mj_step() -> int:
    """Address of mj_step in the library that the mujoco package has loaded."""
    folder = Path(mujoco.__file__).parent
    names = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
    for path in (path for name in names for path in sorted(folder.glob(name))):
        address = ctypes.cast(ctypes.CDLL(str(path)).mj_step, _Address).value
        assert address is not None
        return address
    raise EngineError(f"the MuJoCo library was not found in {folder}: reinstall mujoco")


class MujocoEngine(Engine):
    """Runs episodes of one task on `threads` threads (0: all CPUs). Each thread has a simulation of its own."""

    name = "mujoco"

    def __init__(self, task: Task, threads: int = 0, simulation: Callable[[Task], Simulation] | None = None):
        super().__init__()
        self.task = task
        self._simulation = simulation or Simulation
        self.space = Space(task.obs_dim, task.act_dim, task.horizon)
        self._threads = threads or usable_cpus()
        self._round = _Round()
        self._workers: list[threading.Thread] = []

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._round.over.value = 1
        for _ in self._workers:
            self._round.jobs.put(None)
        for worker in self._workers:
            worker.join()  # within a control step: the compiled loop looks at `over`
        self._round, self._workers = _Round(), []

    def _enqueue(self, ticket: int, request: Request) -> None:
        wanted = min(self._threads, sum(missing for _, _, missing in self._open.values()))
        for index in range(len(request)):
            self._round.jobs.put((ticket, index, request))
        while len(self._workers) < wanted:
            arguments = (self._simulation, self.task, self._round)
            self._workers.append(threading.Thread(target=_serve, args=arguments, daemon=True))
            self._workers[-1].start()

    def _withdraw(self, ticket: int) -> None:
        self._round.dropped.add(ticket)

    def _work(self, timeout: float | None) -> None:
        end = None if timeout is None else time.perf_counter() + timeout
        while not self._done:
            try:
                wait = None if end is None else max(end - time.perf_counter(), 0.0)
                ticket, index, outcome = self._round.outcomes.get(timeout=wait)
            except queue.Empty:
                return
            if isinstance(outcome, EpisodeError):
                self._fail(ticket, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._finish(ticket, index, outcome)


class _Round:
    """The queues between an engine and its threads, until it abandons them."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[int, int, Request] | None] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[int, int, Episode | BaseException]] = queue.SimpleQueue()
        self.dropped: set[int] = set()  # tickets whose episodes no longer matter
        self.over = _Int(0)  # looked at by the compiled loop, too


def _serve(make: Callable[[Task], Simulation], task: Task, round: _Round) -> None:
    """Run episodes from the queue, in a thread."""
    simulation = None
    while (job := round.jobs.get()) is not None and not round.over.value:
        ticket, index, request = job
        if ticket in round.dropped:
            continue
        try:
            with quiet_mujoco():  # what MuJoCo says of a diverged simulation is for us alone
                simulation = simulation or make(task)
                outcome: Episode | BaseException = simulation.run(request, index, round.over)
        except BaseException as error:
            outcome = error
        round.outcomes.put((ticket, index, outcome))


class Simulation:
    """One MuJoCo simulation of a task and the buffers of one episode."""

    def __init__(self, task: Task):
        self.task = task
        self.data = mujoco.MjData(task.model)
        self._kept: list[Any] = []  # what the world points to
        self._world = self._describe()
        self._seen: NDArray[np.float64] = np.empty((0, task.obs_dim))
        self._rewards: NDArray[np.float64] = np.empty(0)

    def run(self, request: Request, index: int, over: ctypes.c_int64 | None = None) -> Episode:
        """One episode of a request, from its seed's start state; cut short when `over` becomes other than 0."""
        seed, horizon, task = int(request.seeds[index]), request.horizon, self.task
        if len(self._rewards) < horizon:
            self._seen, self._rewards = np.empty((horizon + 1, task.obs_dim)), np.empty(horizon)
        self._world.over = ctypes.addressof(_NEVER if over is None else over)
        length, status = self.play(request.policy, request.theta(index), request.whitening, seed, horizon)
        if status > 1:
            raise EpisodeError(STATUS[status], seed, length)
        trajectory = Trajectory(self._seen[:length], self._rewards[:length], status == 1, self._seen[length])
        return Episode.of(trajectory, request.keep)

    def play(self, policy: Policy, theta: FloatArray, whitening: Whitening, seed: int, horizon: int) -> tuple[int, int]:
        """Fill the buffers; returns the number of steps and the index of STATUS."""
        task = self.task
        layers, kept, widest = self._layers(policy, theta)
        mean, scale = (self._checked(v, task.obs_dim) for v in (whitening.mean, whitening.scale))
        scratch, live = np.empty(task.obs_dim + 2 * widest), np.empty(task.obs_dim, dtype=np.int64)
        mujoco.mj_resetData(task.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = task.start(seed)
        mujoco.mj_forward(task.model, self.data)
        status = _Int(0)
        length = _compiled()(
            ctypes.byref(self._world),
            ctypes.byref(layers),
            len(layers),
            widest,
            mean.ctypes.data,
            scale.ctypes.data,
            scratch.ctypes.data,
            live.ctypes.data,
            horizon,
            self._seen.ctypes.data,
            self._rewards.ctypes.data,
            ctypes.byref(status),
        )
        del kept  # the layers point into it
        return int(length), status.value

    def _layers(self, policy: Policy, theta: FloatArray) -> tuple[Any, list[FloatArray], int]:
        """The policy as the compiled loop reads it, the arrays it points to, and the width of its widest layer.

        Nothing in the loop checks a size: all of them are checked here.
        """
        task = self.task
        if (policy.n, policy.p) != (task.obs_dim, task.act_dim):
            sizes = f"{task.obs_dim} observations and {task.act_dim} actions"
            raise ValueError(f"{task.name} has {sizes}, the policy {policy.n} and {policy.p}")
        kept: list[FloatArray] = []

        def address(array: FloatArray | None) -> int | None:
            if array is None:
                return None
            kept.append(np.ascontiguousarray(array.T))  # (inputs, outputs)
            return kept[-1].ctypes.data

        rows = []
        for layer, shape in zip(policy.layers(self._checked(theta, policy.size)), policy.table, strict=True):
            at = [address(array) for array in (layer.weights, layer.skip, layer.bias)]
            rows.append(_Layer(*at, shape.inputs, shape.outputs, shape.tanh))
        return (_Layer * len(rows))(*rows), kept, max(shape.outputs for shape in policy.table)

    @staticmethod
    def _checked(values: FloatArray, size: int) -> FloatArray:
        if values.shape != (size,):
            raise ValueError(f"an array of shape {values.shape} where ({size},) is needed")
        return np.ascontiguousarray(values, dtype=np.float64)

    def _describe(self) -> _World:
        """The task as addresses into this simulation."""
        task, data = self.task, self.data
        counters = data.warning.number[DIVERGED]
        first, stride, weights = task.position_weights
        pieces = [_Piece(*self._span(p.field, p.skip), p.clip) for p in task.pieces]
        pieces.append(_Piece(None, task.zeros, np.inf))
        bounds = []
        for b in task.bounds:
            at, count = self._span(b.field, b.first, b.last)
            bounds += [_Bound(at + 8 * i, b.low, b.high, b.closed) for i in range(count)]
        arrays = (_Piece * len(pieces))(*pieces), (_Bound * len(bounds))(*bounds)
        self._kept += [*arrays, weights]
        return _World(
            mj_step=_mj_step(),
            model=task.model._address,
            data=data._address,
            ctrl=data.ctrl.ctypes.data,
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
        """Address and count of the numbers [first, last) of a field of the simulation, flattened."""
        values = getattr(self.data, field)
        assert values.flags.c_contiguous and values.dtype == np.float64
        count = (values.size if last is None else last) - first
        return values.ctypes.data + 8 * first, count
