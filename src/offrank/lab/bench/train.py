"""A whole training run, compared with sb3-contrib's ARS: same task, hyperparameters and number of steps."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from offrank.engines import make_engine
from offrank.lab.bench.rounds import ratio
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.recipe import resolve
from offrank.runs.run import Run
from offrank.tasks.models import quiet_mujoco

PEER = "sb3-contrib"
HOW = "pip install 'offrank[bench]'"


def ours(name: str, iterations: int) -> tuple[float, int]:
    """Seconds and steps of an ARS run with the task's presets, without evaluation."""
    engine = make_engine(name)
    run = Run(configure(name, resolve(name, "ars"), engine.space, iterations=iterations, eval_every=0), engine.space)
    begin = time.perf_counter()
    drive([run], engine)
    seconds = time.perf_counter() - begin
    engine.close()
    return seconds, run.state.steps


def theirs(name: str, steps: int, processes: int) -> tuple[float, int]:
    """Seconds and steps of sb3-contrib's ARS for at least `steps` steps, in this process or in several."""
    from sb3_contrib import ARS
    from sb3_contrib.common.vec_env import AsyncEval
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    h = resolve(name, "ars").hyperparameters
    id = name.replace("v3", "v4")

    def make() -> Any:
        with warnings.catch_warnings(), quiet_mujoco():
            warnings.simplefilter("ignore")
            return VecNormalize(make_vec_env(id, n_envs=1), norm_reward=False)

    env = make()
    model = ARS(
        "LinearPolicy",
        env,
        n_delta=h["n_directions"],
        n_top=h["n_top"],
        learning_rate=h["step_size"],
        delta_std=h["noise_std"],
        alive_bonus_offset=-h["reward_shift"],
        zero_policy=True,
        seed=0,
        device="cpu",
    )
    pool = AsyncEval([make for _ in range(processes)], model.policy) if processes > 1 else None
    begin = time.perf_counter()
    model.learn(total_timesteps=steps, async_eval=pool)
    seconds = time.perf_counter() - begin
    taken = model.num_timesteps
    if pool is not None:
        pool.close()
    env.close()
    return seconds, taken  # it always finishes its last iteration


def compare(name: str, iterations: int, rounds: int) -> dict[str, Any]:
    """Times of ours, of theirs in one process and of theirs in one process per CPU, alternating, for the steps that
    ours takes; the time of a contestant that took more or fewer steps is scaled."""
    _, steps = ours(name, iterations)
    contestants: dict[str, Callable[[], tuple[float, int]]] = {
        "offrank": lambda: ours(name, iterations),
        "sb3-contrib": lambda: theirs(name, steps, 1),
        "sb3-contrib, asynchronous": lambda: theirs(name, steps, os.cpu_count() or 1),
    }
    times: dict[str, list[float]] = {key: [] for key in contestants}
    for _ in range(rounds):
        for key, call in contestants.items():
            seconds, taken = call()
            times[key].append(seconds / taken * steps)
    fastest = min((key for key in times if key != "offrank"), key=lambda key: sorted(times[key])[len(times[key]) // 2])
    return {
        "task": name,
        "steps": steps,
        "seconds": times,
        "fastest_setting": fastest,
        "times_faster": ratio(times[fastest], times["offrank"]),
    }
