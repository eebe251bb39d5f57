"""Engines by name, and the choice of the engine for a task."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from offrank.core.checks import check_kind, check_whole, is_number
from offrank.core.errors import UsageError, did_you_mean
from offrank.engines.base import Engine
from offrank.engines.native.compiled import is_built
from offrank.engines.native.engine import MujocoEngine
from offrank.engines.numpy import NumpyEngine
from offrank.engines.ray.cluster import Cluster
from offrank.engines.warp.gpu import Gpu
from offrank.tasks import LQR, NATIVE, TASKS

NOT_BUILT = "the mujoco engine's compiled part was not built: install a C compiler and reinstall offrank"
LOCAL = ("auto", "mujoco", "gymnasium", "warp", "numpy")
RAY = "ray"
ENGINES = (*LOCAL, RAY)
MAX_WORKERS = 100_000  # threads or processes
Env = str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]  # by its name, as it is, or how to make it


def native_name(task: str) -> str | None:
    """The name of our task with this id, or None for a third-party environment."""
    name = task.removeprefix("offrank/")
    return name if name in NATIVE else None


def on_cluster(engine: str) -> bool:
    """Whether an engine's name asks for a cluster: `ray`, or `ray:gymnasium`."""
    return str(engine).partition(":")[0] == RAY


def resolve_engine(task: str, engine: str) -> str:
    """The local engine that `engine` stands for on a task. It determines the bits of the episodes.

    `auto` is the native engine for our tasks if the compiled part was built. `ray` is resolved to the engine that its
    workers use, so that a run can be moved between this machine and a cluster.

    Raises:
        UsageError: there is no such engine, or it cannot run the task.
    """
    if not isinstance(task, str):
        raise UsageError(f"task = {task!r}: must be a name, such as 'Hopper-v3' or a Gymnasium id")
    if on_cluster(engine):
        engine = engine.partition(":")[2] or "auto"
        if engine not in ("auto", "mujoco", "gymnasium", "numpy"):
            raise UsageError(f"unknown engine 'ray:{engine}': workers hold mujoco, gymnasium or numpy")
    if engine not in LOCAL:
        raise UsageError(f"unknown engine {engine!r}: one of {', '.join(ENGINES)}{did_you_mean(str(engine), ENGINES)}")
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
    cluster: Cluster | None = None,
    episode_seconds: float | None = None,
) -> Engine:
    """An engine for a task.

    Args:
        task: one of our tasks, or a Gymnasium id (`module:Name-v0` imports the module first).
        engine: auto, mujoco, gymnasium, warp, numpy, or ray (`ray:gymnasium` names the engine of its workers).
        threads: of the mujoco engine, and of lessons; 0 for one per CPU.
        workers: processes of the gymnasium engine; None for one per CPU, 0 to run episodes in this process. On a
            cluster, the number to ask for; None for as many as there is room for.
        env_args: keyword arguments of the environment's constructor.
        clip_actions: whether actions are clipped to the Box; by default for third-party environments only.
        gpu: device and settings of the warp engine.
        cluster: run the episodes on this cluster; by default one is used only if the engine is ray.
        episode_seconds: an episode that takes longer has hung: its worker is replaced, and it is run again. For the
            gymnasium engine, and for clusters.
    """
    check_pool(threads, workers, gpu, cluster, episode_seconds)
    if env_args is not None and not isinstance(env_args, dict):
        raise UsageError(f"env_args = {env_args!r}: must be a dict of the environment's arguments by name")
    native = native_name(task)
    if cluster is None and on_cluster(engine):
        cluster = Cluster()
    if cluster is not None:
        cluster = cluster.limited(episode_seconds)
    if engine == "auto" and native in TASKS and not is_built():
        warnings.warn(f"{NOT_BUILT}; using the gymnasium engine, which is slower", stacklevel=3)
    if (engine := resolve_engine(task, engine)) in ("mujoco", "warp", "numpy"):
        assert native is not None
        if env_args:
            raise UsageError(f"{native} takes no environment arguments (given: {', '.join(env_args)})")
        if clip_actions and engine == "numpy":
            raise UsageError(f"{native} has no bounds to clip actions to")
        if episode_seconds is not None and cluster is None:
            raise UsageError(f"episode_seconds is for environments of others: the {engine} engine runs {native} itself")
        clips = bool(clip_actions)
        if engine == "numpy":
            make = partial(NumpyEngine, LQR())
            return _limited(make(), threads) if cluster is None else on_ray(make, cluster, workers)
        if engine == "mujoco":
            if cluster is not None:
                return on_ray(partial(_native, native, cluster.slots, clips), cluster, workers, cluster.slots)
            return _native(native, threads, clips)
        if cluster is not None:
            raise UsageError("the workers of a cluster hold mujoco, gymnasium or numpy, not warp")
        from offrank.engines.warp.engine import WarpEngine

        return _limited(WarpEngine(TASKS[native], gpu or Gpu(), clips), threads)
    from offrank.engines.gymnasium.engine import GymnasiumEngine
    from offrank.engines.gymnasium.env_runner import registered

    clip = native is None if clip_actions is None else clip_actions
    if cluster is not None and ":" in task:  # the workers import the module: it may be missing here
        return on_ray(partial(_imported, task, env_args or {}, clip), cluster, workers)
    factory = registered(native or task, env_args or {})
    if cluster is not None:
        return on_ray(partial(GymnasiumEngine, factory, 0, clip), cluster, workers)
    return _limited(GymnasiumEngine(factory, workers, clip, episode_seconds), threads)


def own_engine(
    env: gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]],
    workers: int | None = None,
    clip: bool | None = None,
    cluster: Cluster | None = None,
    episode_seconds: float | None = None,
    threads: int = 0,
) -> Engine:
    """An engine for an environment of the user, or for a function that makes one; see `make_engine`."""
    from offrank.engines.gymnasium.engine import GymnasiumEngine

    if not isinstance(env, gym.Env) and not callable(env):
        raise UsageError(
            f"env is a {type(env).__name__}: give a task's name, an environment, or a function that makes one"
        )
    if cluster is None:
        return _limited(GymnasiumEngine(env, workers, clip is not False, episode_seconds), threads)
    if isinstance(env, gym.Env):
        raise UsageError("an environment object stays in this process: give a function that makes it, for a cluster")
    return on_ray(partial(GymnasiumEngine, env, 0, clip is not False), cluster.limited(episode_seconds), workers)


def check_pool(
    threads: int,
    workers: int | None,
    gpu: Gpu | None,
    cluster: Cluster | None,
    episode_seconds: float | None = None,
) -> None:
    """Raise UsageError unless these are of the types that `make_engine` takes."""
    check_whole("threads", threads, most=MAX_WORKERS)
    if workers is not None:
        check_whole("workers", workers, most=MAX_WORKERS)
    check_kind("gpu", gpu, Gpu, "Gpu(device='cuda:0')")
    check_kind("cluster", cluster, Cluster, "Cluster(address='auto')")
    if episode_seconds is not None and not (is_number(episode_seconds) and episode_seconds > 0):
        raise UsageError(f"episode_seconds = {episode_seconds!r}: must be a positive number of seconds")


def on_ray(make: Callable[[], Engine], cluster: Cluster, workers: int | None, slots: int = 1) -> Engine:
    """An engine on a cluster. Each worker has an engine made by `make` and runs `slots` episodes at a time."""
    from offrank.engines.ray.engine import RayEngine

    return RayEngine(make, cluster, workers, slots)


def _limited(engine: Engine, threads: int) -> Engine:
    """An engine whose runs learn in so many threads of this process."""
    engine.threads = threads
    return engine


def _native(name: str, threads: int, clip_actions: bool) -> Engine:
    return MujocoEngine(TASKS[name], threads, clip_actions=clip_actions)


def _imported(task: str, env_args: dict[str, Any], clip: bool) -> Engine:
    return make_engine(task, "gymnasium", workers=0, env_args=env_args, clip_actions=clip)


__all__ = [
    "ENGINES",
    "NOT_BUILT",
    "Cluster",
    "Engine",
    "Env",
    "Gpu",
    "check_pool",
    "is_built",
    "make_engine",
    "native_name",
    "on_cluster",
    "on_ray",
    "own_engine",
    "resolve_engine",
]
