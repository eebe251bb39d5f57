"""Time of a control step on the GPU, and of the part of it that is not physics, for several numbers of worlds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from offrank.engines.warp.engine import ROWS, Preparation, choose_device
from offrank.engines.warp.gpu import Gpu
from offrank.lab.bench.rounds import ratio
from offrank.lab.requests import around_zero
from offrank.tasks import TASKS
from offrank.tasks.locomotion import Task

WARM_UP, STEPS = 30, 100  # control steps before a measurement, and in it


def control_step(name: str, gpu: Gpu, rounds: int) -> dict[str, Any]:
    """Milliseconds of a control step with a random policy per world, with all robots at rest, and without physics."""
    from offrank.engines.warp.worlds import Worlds

    task, device = TASKS[name], choose_device(gpu.device)
    # with robots at rest the solver takes one iteration per substep; else as many as the hardest world needs
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
            seconds = seconds_of(take_steps, device)
            if round:  # the first one warms up
                times[part].append(seconds / STEPS)
    return {
        "task": name,
        "worlds": gpu.worlds,
        "device": device.name,
        "deterministic": gpu.deterministic,
        "milliseconds": {part: [1000 * t for t in values] for part, values in times.items()},
        "share_around_physics": ratio(times["around physics"], times["control step"]),
        "steps_a_second": gpu.worlds / median(times["control step"]),
    }


def seconds_of(take_steps: Callable[[], None], device: Any) -> float:
    """Seconds of some work on the device, up to its end."""
    import warp as wp

    wp.synchronize_device(device)
    begin = time.perf_counter()
    take_steps()
    wp.synchronize_device(device)
    return time.perf_counter() - begin


def random_policies(task: Task, worlds: int, scale: float) -> tuple[Any, ...]:
    """Enough episodes for every world to be busy at every step, as `Worlds.load` takes them."""
    count = ROWS * worlds
    request = around_zero((task.act_dim, task.obs_dim), count, task.horizon, scale=scale)
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
