"""Time of a control step on the GPU, and of the part of it that is not physics, for several numbers of worlds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from offrank.engines.warp.engine import ROWS, Preparation, choose_device
from offrank.engines.warp.gpu import Gpu
from offrank.lab.bench.rounds import ratio
from offrank.lab.requests import around_start
from offrank.policies import make_policy
from offrank.tasks import TASKS
from offrank.tasks.locomotion import Task

WARM_UP, STEPS = 30, 100  # control steps before a measurement, and in it


def control_step(name: str, gpu: Gpu, rounds: int, policies: Sequence[str] = ("linear",)) -> dict[str, Any]:
    """Milliseconds of a control step with a random policy per world, with all robots at rest, and without physics; the
    first of them with policies of several kinds, by turns."""
    from offrank.engines.warp.worlds import Worlds

    task, device = TASKS[name], choose_device(gpu.device)
    # with robots at rest the solver takes one iteration per substep; else as many as the hardest world needs
    scales = {"control step": 0.1, "at rest": 0.0, "around physics": 0.1} | dict.fromkeys(policies[1:], 0.1)
    kinds = {part: part if part in policies else policies[0] for part in scales}
    worlds = {part: Worlds(task, gpu.worlds, ROWS * gpu.worlds, device, gpu.deterministic) for part in scales}
    episodes = {part: random_policies(task, gpu.worlds, scale, kinds[part]) for part, scale in scales.items()}
    times: dict[str, list[float]] = {part: [] for part in scales}
    for round in range(rounds + 1):
        contestants: dict[str, Callable[[], None]] = {}
        for part, some in worlds.items():
            some.clear()
            some.load(**episodes[part])
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
        "milliseconds": {part: [1000 * t for t in values] for part, values in times.items() if part not in policies},
        "policies": {
            kind: {
                "milliseconds": [1000 * t for t in times[kind]],
                "of_the_first": ratio(times[kind], times["control step"]),
            }
            for kind in policies[1:]
        },
        "policy": policies[0],
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


def random_policies(task: Task, worlds: int, scale: float, policy: str = "linear") -> dict[str, Any]:
    """Enough episodes for every world to be busy at every step, as `Worlds.load` takes them."""
    count = ROWS * worlds
    kind = make_policy(policy, task.obs_dim, task.act_dim)
    request = around_start(kind, count, task.horizon, scale=scale)
    prepared = Preparation(task)(request)
    return {
        "thetas": list(prepared.pop("theta")),
        "episodes": prepared,
        "policies": [kind] * count,
        "whitenings": [request.whitening] * count,
        "horizons": np.full(count, task.horizon),
        "keep": np.zeros(count, dtype=bool),
    }


def _around(worlds: Any) -> Callable[[], None]:
    """STEPS control steps without their physics, from a graph where the device has graphs."""
    import warp as wp

    def once() -> None:
        worlds._act()
        worlds._observe_and_reset()

    launch = once
    if worlds.device.is_cuda:
        with wp.ScopedDevice(worlds.device), wp.ScopedCapture() as capture:
            once()
        launch = partial(wp.capture_launch, capture.graph)

    def repeated() -> None:
        for _ in range(STEPS):
            launch()

    return repeated
