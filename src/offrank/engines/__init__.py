"""Engines by name, and which one a task gets."""

from __future__ import annotations

from typing import Any

from offrank.engines.base import Engine, EnvInfo
from offrank.engines.gpu import Gpu
from offrank.engines.mujoco import MujocoEngine, is_built
from offrank.engines.numpy import NumpyEngine
from offrank.errors import UsageError, did_you_mean
from offrank.tasks import LQR, NATIVE, TASKS

NOT_BUILT = "the mujoco engine's compiled part was not built: install a C compiler and reinstall offrank"
ENGINES = ("auto", "mujoco", "gymnasium", "warp", "numpy")


def native_name(task: str) -> str | None:
    """The name of our own task that this id means, or None for a third-party environment."""
    name = task.removeprefix("offrank/")
    return name if name in NATIVE else None


def resolve_engine(task: str, engine: str) -> str:
    """The engine that `engine` means for a task: `auto` is native for our tasks, where the compiled part was built."""
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: one of {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}")
    native = native_name(task)
    if engine == "auto" and native == LQR.name:
        return "numpy"
    if engine == "auto":
        return "mujoco" if native and is_built() else "gymnasium"
    runs = {"mujoco": tuple(TASKS), "warp": tuple(TASKS), "numpy": (LQR.name,)}.get(engine)
    if runs is not None and native not in runs:
        hint = did_you_mean(task, runs)
        raise UsageError(f"the {engine} engine runs {', '.join(runs)}, not {task!r}: use --engine gymnasium{hint}")
    if engine == "mujoco" and not is_built():
        raise UsageError(f"{NOT_BUILT}; or use --engine gymnasium, which is slower")
    return engine


def make_engine(
    task: str,
    engine: str = "auto",
    *,
    threads: int = 0,
    workers: int | None = None,
    env_args: dict[str, Any] | None = None,
    clip_actions: bool | None = None,
    gpu: Gpu | None = None,
) -> Engine:
    """An engine for a task.

    Args:
        task: one of our tasks, or a Gymnasium id (`module:Name-v0` imports the module first).
        engine: auto, mujoco, gymnasium, warp or numpy.
        threads: of the mujoco engine; 0 for all CPUs.
        workers: processes of the gymnasium engine; None for one a CPU, 0 to stay in this process.
        env_args: keyword arguments of the environment's constructor.
        clip_actions: whether actions are clipped to the Box; by default for third-party environments only.
        gpu: of the warp engine.
    """
    for name, value in (("threads", threads), ("workers", workers)):
        if value is not None and value < 0:
            raise UsageError(f"{name} = {value}: must not be negative")
    native = native_name(task)
    if (engine := resolve_engine(task, engine)) in ("mujoco", "warp", "numpy"):
        assert native is not None
        if env_args:
            raise UsageError(f"{native} takes no environment arguments (given: {', '.join(env_args)})")
        if clip_actions:
            raise UsageError(f"{native} takes raw actions on the {engine} engine: clip_actions needs engine gymnasium")
        if engine == "numpy":
            return NumpyEngine(LQR())
        if engine == "mujoco":
            return MujocoEngine(TASKS[native], threads)
        from offrank.engines.warp import WarpEngine

        return WarpEngine(TASKS[native], gpu or Gpu())
    from offrank.engines.environment import registered
    from offrank.engines.gymnasium import GymnasiumEngine

    clip = native is None if clip_actions is None else clip_actions
    return GymnasiumEngine(registered(native or task, env_args or {}), workers, clip)


__all__ = [
    "ENGINES",
    "NOT_BUILT",
    "Engine",
    "EnvInfo",
    "Gpu",
    "is_built",
    "make_engine",
    "native_name",
    "resolve_engine",
]
