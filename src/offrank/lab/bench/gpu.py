"""A control step on the GPU, and what in it is not physics, at several numbers of worlds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from offrank.core.noise import Directions, Role
from offrank.core.normalizer import Whitening
from offrank.core.rollouts import Request
from offrank.engines.warp.engine import ROWS, Preparation, choose_device
from offrank.engines.warp.gpu import Gpu
from offrank.lab.bench.rounds import ratio
from offrank.tasks import TASKS
from offrank.tasks.locomotion import Task

WARM_UP, STEPS = 30, 100  # control steps before a measurement, and in it


def control_step(name: str, gpu: Gpu, rounds: int) -> dict[str, Any]:
    """Milliseconds of a control step with a random policy a world, of one with all robots at rest, and of what is
    around the physics in either."""
    import warp as wp

    from offrank.engines.warp.worlds import Worlds

    task, device = TASKS[name], choose_device(gpu.device)
    # a robot at rest costs the solver one iteration a substep; a batch of moving ones as many as the hardest of them
    scales = {"control step": 0.1, "at rest": 0.0, "around physics": 0.1}
    worlds = {part: Worlds(task, gpu.worlds, ROWS * gpu.worlds, device, gpu.deterministic) for part in scales}
    episodes = {scale: random_policies(task, gpu.worlds, scale) for scale in set(scales.values())}
    times: dict[str, list[float]] = {part: [] for part in scales}
    for round in range(rounds + 1):
        contestants: dict[str, Callable[[], None]] = {}
        for part, some in worlds.items():
            some.clear()
            some.load(*episodes[scales[part]])
            some.advance(WARM_UP)  # out of the start state, and into contact
            contestants[part] = _around(some) if part == "around physics" else partial(some.advance, STEPS)
        for part, take_steps in contestants.items():
            wp.synchronize_device(device)
            begin = time.perf_counter()
            take_steps()
            wp.synchronize_device(device)
            if round:  # the first one warms up
                times[part].append((time.perf_counter() - begin) / STEPS)
    return {
        "task": name,
        "worlds": gpu.worlds,
        "device": device.name,
        "deterministic": gpu.deterministic,
        "milliseconds": {part: [1000 * t for t in values] for part, values in times.items()},
        "share_around_physics": ratio(times["around physics"], times["control step"]),
        "steps_a_second": gpu.worlds / median(times["control step"]),
    }


def random_policies(task: Task, worlds: int, scale: float) -> tuple[Any, ...]:
    """Enough episodes for every world to be at work in every step, as `Worlds.load` takes them."""
    count, shape = ROWS * worlds, (task.act_dim, task.obs_dim)
    request = Request(
        base=np.zeros(shape),
        whitening=Whitening.identity(task.obs_dim),
        seeds=np.arange(count),
        roles=np.full(count, Role.PLUS, dtype=np.int64),
        index=np.arange(count),
        horizon=task.horizon,
        scale=scale,
        directions=Directions(0, 0, count, shape),
    )
    horizons, keep = np.full(count, task.horizon), np.zeros(count, dtype=bool)
    return Preparation(task)(request), [request.whitening] * count, horizons, keep


def _around(worlds: Any) -> Callable[[], None]:
    """STEPS control steps without their physics, from a graph where the device has graphs."""
    import warp as wp

    def once() -> None:
        worlds._act()
        worlds._look()

    launch = once
    if worlds.device.is_cuda:
        with wp.ScopedDevice(worlds.device), wp.ScopedCapture() as capture:
            once()
        launch = partial(wp.capture_launch, capture.graph)

    def repeated() -> None:
        for _ in range(STEPS):
            launch()

    return repeated
