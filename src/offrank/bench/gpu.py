"""A control step on the GPU beside its physics alone, at several numbers of worlds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from offrank.bench.rounds import alternate, ratio
from offrank.engines.gpu import Gpu
from offrank.engines.warp import ROWS, Preparation, choose_device
from offrank.noise import Directions, Role
from offrank.normalizer import Whitening
from offrank.rollouts import Request
from offrank.tasks import TASKS

STEPS = 50  # control steps a measurement


def control_step(name: str, gpu: Gpu, rounds: int) -> dict[str, Any]:
    """Milliseconds of a control step and of the physics in it, with small random policies acting in every world."""
    import warp as wp

    from offrank.engines.warp_worlds import Worlds

    task, count = TASKS[name], ROWS * gpu.worlds
    device = choose_device(gpu.device)
    worlds = Worlds(task, gpu.worlds, count, device, gpu.deterministic)
    shape = (task.act_dim, task.obs_dim)
    request = Request(
        base=np.zeros(shape),
        whitening=Whitening.identity(task.obs_dim),
        seeds=np.arange(count),
        roles=np.full(count, Role.PLUS, dtype=np.int64),
        index=np.arange(count),
        horizon=task.horizon,
        scale=0.1,
        directions=Directions(0, 0, count, shape),
    )
    horizons, keep = np.full(count, task.horizon), np.zeros(count, dtype=bool)
    worlds.load(Preparation(task)(request), [request.whitening] * count, horizons, keep)
    worlds.advance(STEPS)  # out of the start state, and into contact

    def physics() -> None:
        for _ in range(task.frame_skip):
            worlds.mjw.step(worlds.model, worlds.data)

    def whole() -> None:
        worlds.advance(STEPS)
        wp.synchronize_device(device)

    times = alternate({"control step": whole, "physics": _repeated(physics, device)}, rounds)
    milliseconds = {part: [1000 * t / STEPS for t in values] for part, values in times.items()}
    around = ratio([a - b for a, b in zip(*times.values(), strict=True)], times["control step"])
    return {
        "task": name,
        "worlds": gpu.worlds,
        "device": device.name,
        "deterministic": gpu.deterministic,
        "milliseconds": milliseconds,
        "share_around_physics": around,
        "steps_a_second": gpu.worlds / median(times["control step"]) * STEPS,
    }


def _repeated(body: Callable[[], None], device: Any) -> Callable[[], None]:
    """STEPS times what `body` launches, from a graph where the device has graphs."""
    import warp as wp

    once = body
    if device.is_cuda:
        with wp.ScopedDevice(device), wp.ScopedCapture() as capture:
            body()
        once = partial(wp.capture_launch, capture.graph)

    def repeated() -> None:
        for _ in range(STEPS):
            once()
        wp.synchronize_device(device)

    return repeated
