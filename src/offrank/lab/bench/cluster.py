"""Costs of a cluster: efficiency of the ray engine against one process, bytes on the network, time of the driver.

The environment sleeps, so that a few cores can simulate many workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from offrank.core.errors import require
from offrank.core.rollouts import Episode, Request, Rollouts, Trajectory
from offrank.core.space import Space
from offrank.engines import Cluster
from offrank.engines.gymnasium.engine import GymnasiumEngine
from offrank.engines.ray.engine import RayEngine
from offrank.lab.bench.rounds import alternate, ratio
from offrank.lab.requests import around_start
from offrank.policies import make_policy
from offrank.runs.recipe import resolve
from offrank.tasks import TASKS

EPISODE = 0.1  # seconds that an episode should last, within STEPS
STEPS = (10, 200)
HUMANOID = (17, 376)  # (p, n)
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


class Sleeper(gym.Env[Any, Any]):
    """Sleeps `seconds` per step; its observation is noise, its reward the first action."""

    def __init__(self, seconds: float, shape: tuple[int, int] = (4, 16)):
        self.seconds = seconds
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (shape[1],), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (shape[0],), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.seconds:
            time.sleep(self.seconds)
        return self.np_random.normal(size=self.observation_space.shape), float(action[0]), False, False, {}


def some_episodes(shape: tuple[int, int], episodes: int, horizon: int, directions: int) -> Request:
    """Episodes of pairs around zero weights (p, n), with `directions` directions in the request."""
    policy = make_policy("linear", shape[1], shape[0])
    return around_start(policy, episodes, horizon, pairs=True, directions=directions)


@contextmanager
def local_ray(cpus: int) -> Iterator[Any]:
    """A new Ray instance on this machine, told that it has `cpus` CPUs."""
    ray = require("ray", "ray")
    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()


def engine_of(make: Callable[[], gym.Env[Any, Any]], workers: int) -> RayEngine:
    """A ray engine all of whose workers have started."""
    engine = RayEngine(partial(GymnasiumEngine, make, 0, True), Cluster(), workers)
    p, n = engine.space.act_dim, engine.space.obs_dim
    while sum(worker.ready for worker in engine._pool.workers) < workers:
        engine.run(some_episodes((p, n), workers, 1, workers))
    return engine


def efficiency(seconds: float, workers: list[int], episodes: int, rounds: int) -> dict[str, Any]:
    """Time of one process over (time of w workers times w), for an environment that sleeps `seconds` per step.

    Also the share of the workers' time spent in episodes: the rest is messages and waiting for the last one. A lower
    efficiency than that share comes from episodes that take longer side by side on the available cores.
    """
    make = partial(Sleeper, seconds)
    low, high = STEPS
    horizon = min(max(round(EPISODE / seconds), low), high)
    request = some_episodes((4, 16), episodes, horizon, episodes)
    engines: dict[str, Any] = {"one process": GymnasiumEngine(make, 0)}
    engines |= {f"{w} workers": engine_of(make, w) for w in workers}
    times = alternate({name: partial(engine.run, request) for name, engine in engines.items()}, rounds)
    busy = {w: [_busy(engines[f"{w} workers"], request, w) for _ in range(rounds)] for w in workers}
    for engine in engines.values():
        engine.close()
    one = times["one process"]
    found = {w: ratio([t / w for t in one], times[f"{w} workers"]) for w in workers}
    return {
        "step_ms": 1e3 * seconds,
        "measured_step_ms": [1e3 * t / episodes / horizon for t in one],
        "episodes": episodes,
        "steps_an_episode": horizon,
        "seconds": times,
        "efficiency": found,
        "in_episodes": busy,
    }


def _busy(engine: RayEngine, request: Request, workers: int) -> float:
    """Share of the workers' time spent in the episodes of a request."""
    before, begin = engine.seconds, time.perf_counter()
    engine.run(request)
    return (engine.seconds - before) / (time.perf_counter() - begin) / workers


def wire(ray: Any, directions: list[int], episodes: int, requests: int = 20) -> list[dict[str, Any]]:
    """Bytes of a request with Humanoid's policy, for several N: the object that is sent once per node, the loopback
    traffic of the messages to and from the workers, and the driver's time, per piece of work (one episode)."""
    engine = engine_of(partial(Sleeper, 0.0, HUMANOID), 2)
    engine._piece_seconds = 0.0
    rows = []
    for n in directions:
        request = some_episodes(HUMANOID, episodes, 1, n)
        reference = ray.put(request)
        size = ray.experimental.get_object_locations([reference])[reference]["object_size"]
        engine.run(request)
        sent, cpu, begin = _loopback(), time.process_time(), time.perf_counter()
        for _ in range(requests):
            engine.run(request)
        wall, cpu, sent = time.perf_counter() - begin, time.process_time() - cpu, _loopback() - sent
        idle = _loopback()
        time.sleep(wall)
        idle = _loopback() - idle
        rows.append(
            {
                "directions": n,
                "episodes": episodes,
                "request_bytes": size,
                "message_bytes_a_piece": (sent - idle) / requests / episodes,
                "driver_cpu_ms_a_piece": 1e3 * cpu / requests / episodes,
                "wall_ms_a_piece": 1e3 * wall / requests / episodes,
            }
        )
    engine.close()
    return rows


def waiting(ray: Any, answers: int, rounds: int) -> list[float]:
    """Milliseconds of one `ray.wait` on `answers` outstanding answers."""
    never = ray.remote(num_cpus=10**6)(lambda: None)
    due = [never.remote() for _ in range(answers)]
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        ray.wait(due, num_returns=1, timeout=0)
        times.append(1e3 * (time.perf_counter() - begin))
    for answer in due:
        ray.cancel(answer)
    return times


def serial(task: str, algo: str, iterations: int) -> list[float]:
    """CPU seconds of the driver per iteration of a task with its presets, without episodes: ranking, update and state
    statistics. The rollouts are random numbers, of whole episodes."""
    recipe, rng = resolve(task, algo), np.random.default_rng(0)
    p, n = TASKS[task].act_dim, TASKS[task].obs_dim
    algorithm = recipe.algorithm(Space(n, p, TASKS[task].horizon), TASKS[task].horizon)
    state = algorithm.start(0)
    times = []
    for _ in range(iterations):
        iteration = algorithm.iteration(state)
        begin = time.process_time()
        request = next(iteration)
        seconds = time.process_time() - begin
        while True:
            assert isinstance(request, Request)  # these rankers do not learn
            rollouts = _random_rollouts(request, n, rng)
            begin = time.process_time()
            try:
                request = iteration.send(rollouts)
            except StopIteration as done:
                state = done.value[0]
                break
            finally:
                seconds += time.process_time() - begin
        times.append(seconds)
    return times


def _random_rollouts(request: Request, n: int, rng: np.random.Generator) -> Rollouts:
    """Rollouts of the full horizon with random states and rewards."""
    states = rng.normal(size=(request.horizon, n))
    trajectories = [Trajectory(states, rng.normal(size=request.horizon), False) for _ in range(len(request))]
    return Rollouts.of([Episode.of(trajectory, request.keep) for trajectory in trajectories])


def _loopback() -> int:
    """Bytes sent on the loopback device so far; 0 where the system does not provide it."""
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0
