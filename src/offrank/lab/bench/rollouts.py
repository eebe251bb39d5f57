"""Closed-loop rollouts, compared with bare physics and with the peers, on the same starts, controls and lengths."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from mujoco.batch import Batch

from offrank.core.arithmetic import usable_cpus
from offrank.core.arrays import FloatArray, IntArray
from offrank.core.rollouts import Request
from offrank.engines.native.compiled import Actor
from offrank.engines.native.engine import MujocoEngine
from offrank.lab.bench.rounds import alternate, ratio
from offrank.lab.requests import around_start
from offrank.policies import make_policy
from offrank.tasks import TASKS, Task
from offrank.tasks.models import quiet_mujoco

PEERS = {  # name: (module, how to install it)
    "gymnasium": ("gymnasium", "pip install gymnasium"),
    "gymnasium-sync": ("gymnasium", "pip install gymnasium"),
    "gymnasium-async": ("gymnasium", "pip install gymnasium"),
    "envpool": ("envpool", "pip install 'offrank[bench]'"),
}


@dataclass(frozen=True)
class Recording:
    """Recorded episodes, which bare physics and the peers repeat."""

    task: Task
    request: Request
    lengths: IntArray
    controls: tuple[FloatArray, ...]  # (T, p) per episode
    last_observations: tuple[FloatArray, ...]

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())

    def padded(self) -> FloatArray:
        """Controls (longest T, E, p), zero after an episode's end."""
        out = np.zeros((int(self.lengths.max()), len(self.controls), self.task.act_dim))
        for i, control in enumerate(self.controls):
            out[: len(control), i] = control
        return out


def some_policies(
    task: Task, candidates: int, horizon: int = 1000, scale: float = 0.03, policy: str = "linear"
) -> Request:
    """Perturbations of an untrained policy, as in a first iteration."""
    return around_start(make_policy(policy, task.obs_dim, task.act_dim), candidates, horizon, scale=scale)


def record(task: Task, request: Request, engine: MujocoEngine) -> Recording:
    """Run a request and compute the controls, bit for bit as the compiled loop applied them."""
    found = engine.run(replace(request, keep=True))
    controls, actor = [], Actor(request.policy)
    for i, trajectory in enumerate(found.trajectories):
        controls.append(actor.set(request.theta(i), request.whitening)(trajectory.observations))
    last = [t.last_observation for t in found.trajectories]
    return Recording(task, request, found.lengths, tuple(controls), tuple(x for x in last if x is not None))


def bare_physics(recording: Recording, threads: int) -> Callable[[], None]:
    """Repeats the controls with `mujoco.batch`, which does not return to Python between steps."""
    task, count = recording.task, len(recording.controls)
    batch = Batch(task.model, count, threads)
    starts = [task.start(int(seed)) for seed in recording.request.seeds]
    qpos, qvel = (np.stack(part) for part in zip(*starts, strict=True))
    padded = recording.padded()
    pieces: list[tuple[IntArray, FloatArray]] = []  # episodes that run until the next one ends, and their controls
    begin = 0
    for end in np.unique(recording.lengths):
        ids = np.flatnonzero(recording.lengths >= end)
        controls = np.repeat(padded[begin:end, ids].transpose(1, 0, 2), task.frame_skip, axis=1)
        pieces.append((ids, np.ascontiguousarray(controls)))
        begin = int(end)

    def replay() -> None:
        batch.reset(stage=0)
        batch.bind("qpos")[:], batch.bind("qvel")[:] = qpos, qvel
        batch.forward()
        for ids, controls in pieces:
            batch.rollout(controls.shape[1], controls, record=(), ids=ids)

    def check() -> None:
        """Assert that it ends in exactly the states of the closed loop."""
        for name in task.fields:
            batch.bind(name)
        replay()
        state = {name: batch.bind(name) for name in ("qpos", *task.fields)}
        if not np.array_equal(task.observe(state), np.stack(recording.last_observations)):
            raise AssertionError(f"{task.name}: bare physics did not end in the states of the closed loop")

    check()
    return replay


class _Started:
    """Gymnasium's environment with our start states; a factory that worker processes can unpickle."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self) -> Any:
        import gymnasium as gym
        import mujoco

        task = TASKS[self.name]
        with warnings.catch_warnings(), quiet_mujoco():
            warnings.simplefilter("ignore")
            env = gym.make(self.name.replace("v3", "v4"), disable_env_checker=True)

        class Started(gym.Wrapper[Any, Any, Any, Any]):
            def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
                _, info = self.env.reset(seed=seed, options=options)
                inner: Any = self.env.unwrapped
                mujoco.mj_resetData(inner.model, inner.data)
                inner.set_state(*task.start(seed or 0))
                return inner._get_obs(), info

        return Started(env)


def one_environment(recording: Recording) -> Callable[[], None]:
    """One Gymnasium environment in a Python loop."""
    env = _Started(recording.task.name)()

    def loop() -> None:
        for seed, controls in zip(recording.request.seeds, recording.controls, strict=True):
            env.reset(seed=int(seed))
            for control in controls:
                env.step(control)

    return loop


def vector_environments(recording: Recording, kind: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Gymnasium's vector environments, one per episode; one whose episode has ended is stepped on."""
    import gymnasium as gym

    factories = [_Started(recording.task.name)] * len(recording.controls)
    vector: Any
    if kind == "gymnasium-sync":
        vector = gym.vector.SyncVectorEnv(factories)
    else:
        vector = gym.vector.AsyncVectorEnv(factories, context="spawn")
    controls = recording.padded()
    seeds = [int(seed) for seed in recording.request.seeds]

    def loop() -> None:
        vector.reset(seed=seeds)
        for control in controls:
            vector.step(control)

    return loop, vector.close


def env_pool(recording: Recording, threads: int) -> Callable[[], None]:
    """EnvPool's v3 tasks with the same controls. It has its own start states, and restarts ended episodes at once: all
    of its steps count."""
    import envpool

    count = len(recording.controls)
    pool = envpool.make_gymnasium(recording.task.name, num_envs=count, num_threads=threads, seed=0)
    steps = max(recording.steps // count, 1)
    low, high = pool.action_space.low, pool.action_space.high
    longest = recording.padded()
    controls = np.clip(longest[np.arange(steps) % len(longest)], low, high)

    def loop() -> None:
        pool.reset()
        for control in controls:
            pool.step(control)

    return loop


def compare(
    name: str, candidates: int, peers: list[str], rounds: int, threads: int = 0, policy: str = "linear"
) -> dict[str, Any]:
    """Times of our engine, bare physics and the peers on one task."""
    task = TASKS[name]
    threads = threads or usable_cpus()
    engine = MujocoEngine(task, threads)
    request = some_policies(task, candidates, policy=policy)
    recording = record(task, request, engine)
    contestants: dict[str, Callable[[], object]] = {
        "offrank": lambda: engine.run(request),
        "bare physics": bare_physics(recording, threads),
    }
    closers: list[Callable[[], None]] = [engine.close]
    for peer in peers:
        if peer == "gymnasium":
            contestants[peer] = one_environment(recording)
        elif peer == "envpool":
            contestants[peer] = env_pool(recording, threads)
        else:
            contestants[peer], close = vector_environments(recording, peer)
            closers.append(close)
    times = alternate(contestants, rounds)
    for close in closers:
        close()
    return {
        "task": name,
        "candidates": candidates,
        "policy": policy,
        "threads": threads,
        "steps": recording.steps,
        "microseconds_a_step": {k: [1e6 * t / recording.steps for t in v] for k, v in times.items()},
        "share_of_bare_physics": ratio(times["bare physics"], times["offrank"]),
        "times_faster_than": {peer: ratio(times[peer], times["offrank"]) for peer in peers},
        "at_most": {peer: ratio(times[peer], times["bare physics"]) for peer in peers},
    }


def missing(peer: str) -> str | None:
    """How to install a peer that is not installed, or None."""
    module, how = PEERS[peer]
    return None if find_spec(module) else how
