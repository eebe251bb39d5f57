"""Train TD3, SAC or CrossQ on our tasks up to the same thresholds, or on any task of Gymnasium, for comparison.

    python -m offrank.lab.experiments.deep HalfCheetah-v3 td3 --seed 0 --steps 300k --out runs/deep
    python -m offrank.lab.experiments.deep Reacher-v5 sac --steps 20k --library sbx --every 5k --out runs/deep
    python -m offrank.lab.experiments.deep --table runs/deep --out results/deep.json

The learners are those of Stable-Baselines3, or of SBX, the same in JAX. On our tasks hyperparameters are those of RL
Baselines3 Zoo. TD3 and SAC: 10,000 random steps first, then one update per step, on Swimmer a discount of 0.9999,
networks of the library's default sizes. CrossQ: 5,000 random steps, on Swimmer a discount of 0.999, critics of 2048
units. On other tasks they are the library's defaults. The deterministic policy is evaluated over `--episodes` fresh
episodes as in `offrank train`; the first mean at or above the threshold counts, if `--confirm` other episodes confirm
it. Seconds are those of training alone. With Stable-Baselines3 an interrupted run continues from its last evaluation:
what it learned since is lost. With SBX it begins again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from offrank.cli.options import count, natural
from offrank.core.errors import UsageError, require
from offrank.core.files import read_json, write_atomically, write_json
from offrank.core.noise import Role, episode_seeds
from offrank.core.version import versions
from offrank.lab.script import make_parser, run_script, threshold_of
from offrank.tasks.locomotion import TASKS

PACKAGES = {"sb3": ("stable_baselines3", "torch"), "sbx": ("sbx-rl", "jax")}
DISCOUNTS = {("td3", "Swimmer-v3"): 0.9999, ("sac", "Swimmer-v3"): 0.9999, ("crossq", "Swimmer-v3"): 0.999}


def environment(task: str) -> gym.Env[Any, Any]:
    return gym.make(f"offrank/{task}" if task in TASKS else task)


def make(task: str, algo: str, env: gym.Env[Any, Any], seed: int, steps: int, library: str, device: str) -> Any:
    """A new learner."""
    sb3 = require("stable_baselines3", "bench")
    noises = require("stable_baselines3.common.noise", "bench")
    learners = {"sac": sb3.SAC, "td3": sb3.TD3}
    if library == "sbx":
        sbx = require("sbx", "bench")
        learners = {"sac": sbx.SAC, "td3": sbx.TD3, "crossq": sbx.CrossQ}
    elif algo == "crossq":
        learners["crossq"] = require("sb3_contrib", "bench").CrossQ
    given: dict[str, Any] = {"seed": seed, "device": device, "buffer_size": min(steps, 1_000_000)}
    if task in TASKS:
        given |= {"gamma": DISCOUNTS.get((algo, task), 0.99), "learning_starts": 10_000, "batch_size": 256}
        given |= {"train_freq": 1, "gradient_steps": 1}
        if algo == "crossq":
            sizes = {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}}
            given |= {"learning_starts": 5_000, "learning_rate": 1e-3, "policy_delay": 3, "policy_kwargs": sizes}
        elif algo == "td3":
            size = env.action_space.shape or ()
            noise = noises.NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
            given |= {"action_noise": noise, "learning_rate": 1e-3}
    return learners[algo]("MlpPolicy", env, **given)


def evaluate(
    model: Any, envs: Sequence[gym.Env[Any, Any]], seed: int, number: int, first: int = 0
) -> tuple[float, float]:
    """Mean and standard deviation of the returns of fresh episodes, all side by side."""
    seeds = episode_seeds(seed, number, Role.EVALUATION, np.arange(first, first + len(envs)))
    seen = np.array([env.reset(seed=int(s))[0] for env, s in zip(envs, seeds, strict=True)])
    totals, running = np.zeros(len(envs)), list(range(len(envs)))
    while running:
        actions, _ = model.predict(seen, deterministic=True)  # of all: JAX would compile again for fewer
        still = []
        for i in running:
            seen[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            totals[i] += float(reward)
            if not terminated and not truncated:
                still.append(i)
        running = still
    return float(totals.mean()), float(totals.std())


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train to the threshold or the budget; returns the result, which is also written to the folder."""
    task, algo, seed, library = args.task, args.algo, args.seed, args.library
    threshold = threshold_of(task) if task in TASKS else None
    folder: Path = args.out / f"{task}-{algo}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    result_file, model_file = folder / "result.json", folder / "model.pkl"
    if library == "sb3":
        require("torch", "torch").set_num_threads(1)
    model = make(task, algo, environment(task), seed, args.steps, library, args.device)
    result: dict[str, Any] = {
        "task": task,
        "algo": algo,
        "library": library,
        "seed": seed,
        "threshold": threshold,
        "steps_to_threshold": None,
        "seconds_to_threshold": None,
        "seconds": 0.0,
        "steps": 0,
        "evaluations": [],  # of each: steps, mean, standard deviation, seconds of training
        "eval_episodes": args.episodes,
        "confirm_episodes": args.confirm,
        "device": args.device,
        "versions": versions() | {name: metadata.version(name) for name in PACKAGES[library]},
    }
    if model_file.is_file():
        result = read_json(result_file)
        if (before := result.get("eval_episodes", 100)) != args.episodes:
            raise UsageError(f"{folder} holds a run with --episodes {before}, not {args.episodes}: that cannot change")
        parameters, replay, model.num_timesteps, model._n_updates = pickle.loads(model_file.read_bytes())
        model.set_parameters(parameters)
        model.replay_buffer = replay
    envs = [environment(task) for _ in range(args.episodes)]
    others = [environment(task) for _ in range(args.confirm)]
    while result["steps_to_threshold"] is None and result["steps"] < args.steps:
        began = time.perf_counter()
        model.learn(args.every, reset_num_timesteps=False, log_interval=None)
        result["seconds"] += time.perf_counter() - began
        result["steps"] = model.num_timesteps
        number = len(result["evaluations"])
        mean, std = evaluate(model, envs, seed, number)
        if others and threshold is not None and mean >= threshold:
            mean, std = evaluate(model, others, seed, number, first=len(envs))
        result["evaluations"].append([result["steps"], round(mean, 2), round(std, 2), round(result["seconds"], 1)])
        if threshold is not None and mean >= threshold:
            result |= {"steps_to_threshold": model.num_timesteps, "seconds_to_threshold": result["seconds"]}
        if library == "sb3":
            state = (model.get_parameters(), model.replay_buffer, model.num_timesteps, model._n_updates)
            temporary = model_file.with_suffix(".new")
            temporary.write_bytes(pickle.dumps(state, protocol=5))
            temporary.replace(model_file)
        write_json(result_file, result)
        done = f"{result['steps']:,} steps, {result['seconds']:,.0f} s"
        print(f"{task} {algo} seed {seed}: {done}, {mean:.1f} ± {std:.1f}", flush=True)
    return result


def table(folder: Path, out: Path) -> None:
    """Gather the results of runs in a file, and print them."""
    rows = [read_json(file) for file in sorted(folder.glob("*/result.json"))]
    if not rows:
        raise UsageError(f"{folder} holds no results of runs")
    write_atomically(out, (json.dumps(rows, indent=2) + "\n").encode())
    for row in rows:
        steps, took = row["steps_to_threshold"], row["seconds_to_threshold"]
        end = f"> {row['steps']:,} steps" if steps is None else f"{steps:,} steps, {took:,.0f} s of training"
        print(f"{row['task']} {row['algo']} seed {row['seed']}: {end}")


def compare(args: argparse.Namespace) -> None:
    if args.table is not None:
        table(args.table, args.out)
    elif args.task is None or args.algo is None:
        raise UsageError("give a task and an algorithm, or --table DIR")
    else:
        train(args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("deep", __doc__)
    parser.add_argument("task", nargs="?", metavar="TASK")
    parser.add_argument("algo", nargs="?", choices=["td3", "sac", "crossq"])
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--steps", type=count, default=300_000)
    parser.add_argument("--every", type=count, default=10_000, help="steps between evaluations (10k)")
    parser.add_argument("--episodes", type=count, default=100, help="per evaluation (100)")
    parser.add_argument("--confirm", type=natural, default=0, help="others that confirm a threshold (0)")
    parser.add_argument("--library", choices=sorted(PACKAGES), default="sb3")
    parser.add_argument("--device", default="cpu", help="of PyTorch: cuda for a GPU; JAX takes one if there is")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing: gather the results of runs")
    parser.add_argument("--out", type=Path, required=True)
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
